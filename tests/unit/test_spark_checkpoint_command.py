"""`sbp checkpoint` on folders made by hand."""

import json
import shutil
import subprocess
import sys

import pytest

from sbp_core.errors import ConfigurationError
from sbp_spark.command import main
from tests.support.queries import everything, sbp_offset, write_checkpoint

THREE = [
    sbp_offset(s1={"next": 10, "base": 4}, s22={"next": 0, "base": 0}),
    sbp_offset(s1=15, s22=6),
    sbp_offset(s1=20, s22=6),
]
FOREIGN = {"logOffset": 3}


@pytest.fixture
def run(capsys):
    """Run the command; its exit code, what it printed, and its error."""

    def call(*words):
        code = main(["checkpoint", *map(str, words)])
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def folder(tmp_path):
    """Three micro-batches, the last of them not committed."""
    return write_checkpoint(tmp_path / "checkpoint", *THREE, committed=2)


def shown(run, folder, *words):
    code, output, error = run("show", folder, "--json", *words)
    assert (code, error) == (0, "")
    return json.loads(output)


def test_rewind_shows_batches_that_were_read_and_those_to_read_again(run, folder):
    found = shown(run, folder)
    assert (found["query_id"], found["logged"], found["committed"]) == (
        *("the-query", [0, 1, 2]),
        [0, 1],
    )
    streams = [(s["stream_id"], s["next_offset"], s["begun_offset"]) for s in found["streams"]]
    assert streams == [(1, 15, 20), (22, 6, 6)]
    code, output, _ = run("show", folder)
    assert code == 0
    assert "batches 0 to 2 are kept; 1 is the last committed one" in output
    assert "batch 2 is not committed: it is repeated" in output
    assert output.splitlines()[-1].split() == ["22", "-", "6", "6", "-", "-"]


def test_streams_whose_servers_are_away(run, tmp_path):
    """One was read before; where to start in the other was not decided yet."""
    away = sbp_offset(stalled={"1": 1_700_000_000_000, "5": 1_700_000_000_000}, s1=15, s22=6)
    folder = write_checkpoint(tmp_path / "checkpoint", away, committed=1)
    streams = shown(run, folder)["streams"]
    assert [(s["stream_id"], s["next_offset"], s["begun_offset"]) for s in streams] == [
        *((1, 15, 15), (22, 6, 6), (5, None, None)),
    ]
    stalled = "stalled: a range server was down, since 2023-11-14T22:13:20+00:00"
    assert [s["remark"] for s in streams] == [stalled, "", stalled]
    assert run("show", folder)[0] == 0
    code, output, error = run("to-starting-offsets", folder)
    assert (code, output) == (2, "")
    assert "not yet known where streams 5 start" in error


def test_a_stream_that_is_left_out_and_read_again(run, tmp_path):
    batches = [sbp_offset(s1=15, s22=6), sbp_offset(s1=20, left_out="22=6@7")]
    folder = write_checkpoint(tmp_path / "left", *batches, committed=2)
    streams = shown(run, folder)["streams"]
    assert [
        (s["stream_id"], s["next_offset"], s["begun_offset"], s["remark"]) for s in streams
    ] == [
        *((1, 20, 20, ""), (22, 6, None, "no longer selected")),
    ]
    assert run("to-starting-offsets", folder) == (0, '{"1": 20}\n', "")
    batches.append(sbp_offset(s1=20, s22=9))
    folder = write_checkpoint(tmp_path / "back", *batches, committed=2)
    streams = shown(run, folder)["streams"]
    assert [(s["stream_id"], s["next_offset"], s["begun_offset"]) for s in streams] == [
        *((1, 20, 20), (22, 6, 9)),
    ]
    assert (
        "stream 22 is read again from offset 6 (it was at 9)"
        in run("rewind", folder, "--to-batch", "1")[1]
    )


def test_nothing_is_committed_yet(run, tmp_path):
    folder = write_checkpoint(tmp_path / "checkpoint", THREE[0], committed=0)
    assert [s["next_offset"] for s in shown(run, folder)["streams"]] == [4, 0]
    assert "none is committed" in run("show", folder)[1]
    for words in (["to-starting-offsets"], ["rewind", "--batches", "1", "--yes"]):
        code, _, error = run(*words, folder)
        assert (code, "no committed batch" in error) == (2, True)


def test_losses_and_ends_are_reported(run, tmp_path):
    lost = {**THREE[1], "lost": {"1": [[10, 13]], "9": [[5, None]]}}
    ends = sbp_offset(s1={"next": 20, "target": 99}, s22={"next": 6, "end": 30})
    folder = write_checkpoint(tmp_path / "checkpoint", THREE[0], lost, ends, committed=3)
    found = shown(run, folder)
    assert found["lost"] == [
        {"batch": 1, "stream_id": 1, "start_offset": 10, "end_offset": 13},
        {"batch": 1, "stream_id": 9, "start_offset": 5, "end_offset": None},
    ]
    output = run("show", folder)[1]
    for told in ("up to 30 only", "batch 1: stream 1", "[10, 13)", "from 5 on"):
        assert told in output


def test_starting_offsets(run, folder):
    assert run("to-starting-offsets", folder) == (0, '{"1": 15, "22": 6}\n', "")
    assert run("to-starting-offsets", folder, "--batch", "0") == (0, '{"1": 10, "22": 0}\n', "")
    for batch in (2, 7):
        code, output, error = run("to-starting-offsets", folder, "--batch", batch)
        assert (code, output) == (2, "")
        assert f"batch {batch} is not among the committed batches" in error
        assert "0 to 1" in error


def test_one_source_among_several(run, tmp_path):
    one = [[FOREIGN, None], [FOREIGN, THREE[0]]]
    folder = write_checkpoint(tmp_path / "one", *one, committed=2)
    assert shown(run, folder)["source"] == 1
    two = write_checkpoint(tmp_path / "two", [THREE[0], FOREIGN, THREE[1]], committed=1)
    code, _, error = run("show", two)
    assert (code, "read streams: 0, 2; choose one of them with --source" in error) == (2, True)
    assert run("to-starting-offsets", two, "--source", "2")[1] == '{"1": 15, "22": 6}\n'
    assert run("to-starting-offsets", two, "--source", "1")[0] == 2


def test_named_sources_are_matched_by_name(run, tmp_path):
    """Offset log v2: lines in any order, one source added later, another removed."""
    batches = [
        {"orders": THREE[0], "gone": FOREIGN},
        {"late": sbp_offset(s7={"next": 9, "base": 5}), "orders": THREE[1], "gone": FOREIGN},
        {"orders": THREE[2], "late": sbp_offset(s7=12)},
    ]
    folder = write_checkpoint(tmp_path / "named", *batches, committed=3)
    found = shown(run, folder, "--source", "orders")
    assert found["source"] == "orders"
    assert [each["next_offset"] for each in found["streams"]] == [20, 6]
    assert "read streams: late, orders; choose one" in run("show", folder)[2]
    starts = run("to-starting-offsets", folder, "--source", "late", "--batch", "1")
    assert starts == (0, '{"7": 9}\n', "")
    code, output, error = run("rewind", folder, "--to-batch", "0", "--yes")
    assert (code, error) == (0, "")
    assert "stream 1 of source orders is read again from offset 10 (it was at 20)" in output
    assert "stream 7 of source late is read again from offset 5 (it was at 12)" in output
    assert shown(run, folder)["streams"][0]["next_offset"] == 10


def test_a_named_source_that_was_removed(run, tmp_path):
    """It is found by its name as long as a batch that has it is kept."""
    batches = [{"orders": THREE[0], "gone": sbp_offset(s7=4)}, {"orders": THREE[1]}]
    folder = write_checkpoint(tmp_path / "removed", *batches, committed=2)
    assert run("to-starting-offsets", folder, "--source", "gone") == (0, '{"7": 4}\n', "")
    assert shown(run, folder, "--source", "gone")["streams"][0]["next_offset"] == 4
    told = "the source was removed: batch 0 is the last one that has it"
    assert told in run("show", folder, "--source", "gone")[1]
    assert told not in run("show", folder, "--source", "orders")[1]
    assert "read streams: orders; choose one" in run("show", folder, "--source", "never")[2]


def test_a_rewind_to_a_batch_without_a_source_continues_it_from_the_batch_before(run, tmp_path):
    """So does Spark, which begins it as a new one if that lacks it, too."""
    both = {"orders": THREE[0], "late": sbp_offset(s7=4)}
    back = {"orders": THREE[2], "late": sbp_offset(s7=6)}
    folder = write_checkpoint(tmp_path / "back", both, {"orders": THREE[1]}, back, committed=3)
    output = run("rewind", folder, "--to-batch", "1")[1]
    assert "stream 7 of source late is read again from offset 4 (it was at 6)" in output


def test_unnamed_sources_of_the_second_version_are_in_any_order(run, tmp_path):
    batches = [{"1": THREE[0], "0": FOREIGN}, {"0": FOREIGN, "1": THREE[1]}]
    folder = write_checkpoint(tmp_path / "unnamed", *batches, committed=2)
    found = shown(run, folder)
    assert (found["source"], found["streams"][0]["next_offset"]) == (1, 15)


def test_a_rewind_says_what_it_does_and_does_nothing_without_yes(run, folder):
    before = everything(folder)
    code, output, error = run("rewind", folder, "--to-batch", "0")
    assert code == 2
    assert "add --yes" in error
    for told in (
        "stream 1 is read again from offset 10 (it was at 20)",
        "Batches 1, 2 are repeated",
        "Delta",
    ):
        assert told in output
    assert everything(folder) == before


@pytest.mark.parametrize("words", [["--to-batch", "0"], ["--batches", "1"]])
def test_a_rewind_keeps_what_it_puts_aside(run, folder, words):
    before = everything(folder)
    code, output, _ = run("rewind", folder, *words, "--yes")
    assert code == 0
    assert str(folder / "rewound-1") in output
    after = everything(folder)
    assert {name.removeprefix("rewound-1/"): each for name, each in after.items()} == before
    assert sorted(name for name in after if not name.startswith("rewound-1/")) == [
        "commits/.0.crc",
        "commits/0",
        "metadata",
        "offsets/.0.crc",
        "offsets/0",
    ]
    assert shown(run, folder)["logged"] == [0]


def test_a_second_rewind_has_a_folder_of_its_own(run, folder):
    assert run("rewind", folder, "--to-batch", "1", "--yes")[0] == 0
    assert run("rewind", folder, "--to-batch", "0", "--yes")[0] == 0
    assert [path.name for path in sorted(folder.glob("rewound-*"))] == ["rewound-1", "rewound-2"]
    code, _, error = run("rewind", folder, "--to-batch", "0", "--yes")
    assert (code, "nothing to undo" in error) == (2, True)


@pytest.mark.parametrize("done", range(9))
def test_an_interrupted_rewind_leaves_what_spark_could_have_left(tmp_path, monkeypatch, done):
    """At any step the last batch alone may lack a commit, and commits have offsets."""
    from pathlib import Path

    from sbp_spark.operations.checkpoint_files import carry_out, open_checkpoint, plan_rewind

    folder = write_checkpoint(tmp_path / "checkpoint", *THREE, committed=3)
    rename, left = Path.rename, [done]

    def sometimes(path, target):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", sometimes)
    try:
        carry_out(plan_rewind(open_checkpoint(str(folder)), 0))
    except KeyboardInterrupt:
        pass
    else:
        assert done >= 8
    there = open_checkpoint(str(folder))
    assert there.logged[: len(there.committed)] == there.committed
    assert len(there.logged) - len(there.committed) <= 1
    for kind in ("commits", "offsets"):
        for checksum in (folder / kind).glob(".*.crc"):
            assert (folder / kind / checksum.name[1:-4]).exists()


def test_a_rewind_leaves_no_start_undecided(run, tmp_path):
    """With startingOffsets=latest the start would be looked up again, and skip records."""
    away = sbp_offset(stalled={"3": 1_700_000_000_000}, s1=10)
    later = [sbp_offset(s1=20, s3={"base": 100, "next": 150}), sbp_offset(s1=30, s3=160)]
    folder = write_checkpoint(tmp_path / "checkpoint", away, *later, committed=3)
    before = everything(folder)
    code, output, error = run("rewind", folder, "--to-batch", "0", "--yes")
    assert (code, output) == (2, "")
    assert "batch 0 it was not yet known where streams 3 start" in error
    assert everything(folder) == before
    assert run("rewind", folder, "--to-batch", "1", "--yes")[0] == 0


def test_a_rewind_tells_of_streams_that_joined_in_any_of_the_batches(run, tmp_path):
    joined = [sbp_offset(s1=20, s2={"base": 5, "next": 9}), sbp_offset(s1=30, s2=40)]
    folder = write_checkpoint(tmp_path / "checkpoint", sbp_offset(s1=10), *joined, committed=3)
    output = run("rewind", folder, "--to-batch", "0")[1]
    assert "stream 2 is read again from offset 5 (it was at 40)" in output
    assert "(trimOnCommit) are lost" in output


def test_a_rewind_takes_all_sources_back(run, tmp_path):
    one, two = ([sbp_offset(s1=n), FOREIGN, sbp_offset(s7=n + 1)] for n in (10, 20))
    folder = write_checkpoint(tmp_path / "checkpoint", one, two, committed=2)
    output = run("rewind", folder, "--batches", "1")[1]
    for told in (
        "stream 1 of source 0 is read again from offset 10 (it was at 20)",
        "stream 7 of source 2 is read again from offset 11 (it was at 21)",
        "other sources of the query (1) are rewound",
    ):
        assert told in output
    assert run("rewind", folder, "--batches", "1", "--yes")[0] == 0
    assert [path.name for path in folder.glob("offsets/[0-9]*")] == ["0"]


def test_a_query_that_runs_on_is_noticed(folder):
    from sbp_spark.operations.checkpoint_files import carry_out, open_checkpoint, plan_rewind

    plan = plan_rewind(open_checkpoint(str(folder)), 0)
    shutil.copy(folder / "commits" / "1", folder / "commits" / "2")
    with pytest.raises(ConfigurationError, match="a query runs on it"):
        carry_out(plan)
    assert not list(folder.glob("rewound-*"))


def test_state_is_not_rewound(run, folder):
    (folder / "state").mkdir()
    code, _, error = run("rewind", folder, "--to-batch", "0", "--yes")
    assert (code, "has state" in error, "to-starting-offsets" in error) == (2, True, True)


def test_a_purged_batch_cannot_be_rewound_to(run, tmp_path):
    folder = write_checkpoint(tmp_path / "checkpoint", *THREE, committed=3, first=40)
    code, _, error = run("rewind", folder, "--batches", "3", "--yes")
    assert (code, "--batches 3: only 2 can be undone" in error) == (2, True)


@pytest.mark.parametrize(
    ("damage", "code", "told"),
    [
        (lambda f: (f / "metadata").unlink(), 2, "is not the checkpoint of a streaming query"),
        (
            lambda f: (f / "metadata").write_text("[]"),
            2,
            "is not the checkpoint of a streaming query",
        ),
        (lambda f: shutil.rmtree(f / "offsets"), 2, "has no micro-batch yet"),
        (lambda f: (f / "offsets" / "2").write_text("v1\n{}\n{"), 1, "offsets/2 is damaged"),
        (lambda f: (f / "offsets" / "2").write_bytes(b"v1\n{}\n\xff"), 1, "is damaged"),
        (lambda f: (f / "offsets" / "2").write_text("v3\n{}\n"), 1, "begins with 'v3'"),
        (lambda f: (f / "offsets" / "2").write_text('v2\n{}\n{"a": 1}'), 1, "NAME:OFFSET"),
        (lambda f: (f / "offsets" / "2").write_text(""), 1, "begins with 'nothing'"),
        (
            lambda f: (f / "offsets" / "2").write_text('v1\n{}\n{"a": 1}'),
            2,
            "none of them is an sbp source",
        ),
        (
            lambda f: (f / "offsets" / "2").write_text('v1\n{}\n{"streams": {}, "version": 9}'),
            1,
            "version 9",
        ),
        (lambda f: (f / "offsets" / "1").write_text("v1\n{}\n{}\n{}"), 1, "2 sources"),
        (shutil.rmtree, 2, "is not the checkpoint of a streaming query"),
    ],
)
def test_folders_that_are_none(run, folder, damage, code, told):
    damage(folder)
    found, output, error = run("show", folder)
    assert (found, output) == (code, "")
    assert told in error


@pytest.mark.parametrize("url", ["s3a://b/ck", "dbfs:/ck", "hdfs:///ck", "file://host/ck"])
def test_a_checkpoint_in_another_file_system_is_to_be_copied(run, url):
    code, _, error = run("show", url)
    assert (code, f"{url} is not on this machine: copy it" in error) == (2, True)


@pytest.mark.parametrize("scheme", ["file://", "file:"])
def test_a_local_folder_may_be_named_by_its_url(run, folder, scheme):
    assert shown(run, f"{scheme}{folder}") == shown(run, folder)


@pytest.mark.parametrize(
    "words", [["show"], ["rewind", "x"], ["rewind", "x", "--to-batch", "-1"], ["go"]]
)
def test_mistakes_are_named(words, capsys):
    assert main(["checkpoint", *words]) == 2
    assert "see `sbp checkpoint" in capsys.readouterr().err


def test_help_needs_no_spark():
    program = (
        "import sys\n"
        "from sbp_spark.command import main\n"
        "main(['checkpoint', 'rewind', '--help'])\n"
        "sys.exit(', '.join({'pyspark'} & sys.modules.keys()) or 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "--to-batch" in done.stdout
