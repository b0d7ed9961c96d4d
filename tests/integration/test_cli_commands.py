"""The client commands against a running server: in this process, and as processes with pipes."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from sbp_core import limits
from sbp_core.cli.main import main
from sbp_core.client import EARLIEST, FetchItem
from sbp_core.records import split_envelopes
from tests.support.warm import WarmCluster, WarmProcess, sbp

TIMEOUT_SECONDS = 60


@dataclass
class Ended:
    """How a command ended."""

    exit_code: int
    output: bytes
    errors: bytes


Run = Callable[..., Ended]


@pytest.fixture
def run(cluster, capfdbinary, monkeypatch, tmp_path) -> Run:
    """Runs a command in this process."""

    def run_command(*words: str, stdin: bytes = b"", endpoint: str = cluster.endpoint) -> Ended:
        path = tmp_path / "stdin"
        path.write_bytes(stdin)
        with path.open("rb") as file, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", file)
            exit_code = main([*words, "--endpoint", endpoint])
        return Ended(exit_code, *capfdbinary.readouterr())

    return run_command


@pytest.fixture
def stream(new_streams) -> str:
    """A stream of the test's own, by name."""
    return new_streams(1)[0]


def start(cluster, *words: str) -> WarmProcess:
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return sbp(*words, "--endpoint", cluster.endpoint, **pipes)


def done(ended: Ended) -> bytes:
    """The output of a command that succeeded without a word of complaint."""
    assert (ended.exit_code, ended.errors) == (0, b"")
    return ended.output


def failed(ended: Ended, exit_code: int) -> str:
    """The one line that a failed command prints."""
    error = ended.errors.decode()
    assert (ended.exit_code, ended.output) == (exit_code, b""), error
    assert error.startswith("sbp: ")
    assert error.count("\n") == 1
    return error


def objects(output: bytes) -> list[dict]:
    return [json.loads(line) for line in output.splitlines()]


def names(output: bytes) -> list[str]:
    return [each["name"] for each in objects(output)]


def test_produced_records_are_consumed(run, stream):
    text = b"one\n\n\xff\x00\r\n" + "\u00fcnf".encode() + b"\n"
    assert done(run("produce", stream, stdin=text)) == b"4 records appended to %s\n" % (
        stream.encode()
    )
    done(run("produce", stream, stdin=b"no newline"))
    assert done(run("consume", stream)) == text + b"no newline\n"
    assert done(run("consume", stream, "--from", "3", "--max", "1")) == ("\u00fcnf\n".encode())
    assert done(run("consume", stream, "--from", "latest")) == b""
    assert done(run("consume", stream, "--from", "5")) == b""


def test_json_of_records(run, stream):
    (summary,) = objects(
        done(
            run(
                *("produce", stream, "--key-separator", "=", "--json"),
                stdin=b"k=v\n\xff=\nnone",
            )
        )
    )
    assert summary == {
        "stream": stream,
        "stream_id": summary["stream_id"],
        "records": 3,
        "first_offset": 0,
        "last_offset": 2,
        "skipped": 0,
    }
    records = objects(done(run("consume", str(summary["stream_id"]), "--json")))
    assert [(each["offset"], each["key"], each["value"]) for each in records] == [
        (0, "k", "v"),
        (1, {"base64": "/w=="}, ""),
        (2, None, "none"),
    ]
    assert [list(each) for each in records] == [
        ["stream", "offset", "timestamp", "key", "value", "headers"]
    ] * 3
    assert {each["stream"] for each in records} == {stream}
    nothing = objects(done(run("produce", stream, "--json")))
    assert [(each["records"], each["last_offset"]) for each in nothing] == [(0, None)]


def test_lines_go_through_pipes_unchanged(cluster, stream):
    lines = b"".join(b"%07d %s\n" % (number, b"\xff" * 90) for number in range(100_000))
    with start(cluster, "produce", stream) as producer:
        outputs = producer.communicate(lines, timeout=TIMEOUT_SECONDS)
        assert (producer.returncode, *outputs) == (
            0,
            f"100000 records appended to {stream}\n".encode(),
            b"",
        )
    with start(cluster, "consume", stream) as consumer:
        outputs = consumer.communicate(timeout=TIMEOUT_SECONDS)
        assert (consumer.returncode, *outputs) == (0, lines, b"")


def test_lines_travel_in_few_batches(run, client, stream):
    done(run("produce", stream, stdin=b"some line of text\n" * 50_000))
    (info,) = client.describe_streams([stream])
    item = FetchItem(info.stream_id, EARLIEST, None, 8 * limits.MIB)
    (outcome,) = client.fetch([item])
    counts = [envelope.record_count for envelope in split_envelopes(outcome.payload)]
    assert sum(counts) == 50_000
    assert len(counts) <= 4


def test_follow_sees_what_comes_later(run, cluster, stream):
    with start(cluster, "consume", stream, "--follow", "--max", "3") as follower:
        done(run("produce", stream, stdin=b"first\n"))
        assert follower.stdout.readline() == b"first\n"
        done(run("produce", stream, stdin=b"second\nthird\nfourth\n"))
        assert follower.stdout.read() == b"second\nthird\n"
        assert (follower.wait(TIMEOUT_SECONDS), follower.stderr.read()) == (0, b"")


def test_lines_are_appended_while_input_is_still_open(run, cluster, stream):
    with (
        start(cluster, "produce", stream) as producer,
        start(cluster, "consume", stream, "--follow") as follower,
    ):
        producer.stdin.write(b"at once\n")
        producer.stdin.flush()
        assert follower.stdout.readline() == b"at once\n"
        follower.kill()
        producer.stdin.close()
        assert producer.wait(TIMEOUT_SECONDS) == 0


def test_a_reader_that_has_enough_is_no_error(run, cluster, stream):
    done(run("produce", stream, stdin=b"some line of text\n" * 50_000))
    with start(cluster, "consume", stream) as consumer:
        assert consumer.stdout.readline() == b"some line of text\n"
        consumer.stdout.close()
        assert (consumer.wait(TIMEOUT_SECONDS), consumer.stderr.read()) == (0, b"")


@pytest.mark.parametrize("as_json", [True, False])
def test_created_streams_are_printed_though_others_are_refused(run, as_json):
    done(run("streams", "create", f"some-{as_json}-1"))
    ended = run("streams", "create", f"some-{as_json}", "--count", "3", *["--json"] * as_json)
    assert ended.exit_code == 1
    assert f"'some-{as_json}-1'" in ended.errors.decode()
    if as_json:
        names = [each["name"] for each in objects(ended.output)]
    else:
        names = re.findall(r"^created (\S+) \(id \d+\)$", ended.output.decode(), re.MULTILINE)
    assert names == [f"some-{as_json}-0", f"some-{as_json}-2"]
    again = ("streams", "create", f"some-{as_json}", "--count", "4", "--if-missing", "--json")
    assert [each["name"] for each in objects(done(run(*again)))] == [f"some-{as_json}-3"]


def test_the_ranges_of_a_stream_are_described_with_their_ends(run, stream):
    done(run("produce", stream, stdin=b"a\nb\n"))
    done(run("streams", "seal", stream))
    done(run("produce", stream, stdin=b"c\n"))
    (described,) = objects(done(run("streams", "describe", stream, "--json")))
    ends = [(piece["end_offset"], piece["next_offset"]) for piece in described["ranges"]]
    assert ends == [(2, 2), (None, 3)]


def test_streams_created_before_a_limit_are_printed(run, tmp_path):
    config = tmp_path / "server.toml"
    config.write_text(f"[placement_driver]\nstreams_max = {limits.STREAMS_PER_CALL}\n")
    with WarmCluster(tmp_path / "data", options=["--config", str(config)]) as small:
        words = ["streams", "create", "s", "--count", str(limits.STREAMS_PER_CALL + 1), "--json"]
        ended = run(*words, endpoint=small.endpoint)
        listed = run("streams", "list", "--json", endpoint=small.endpoint)
    assert ended.exit_code == 1
    assert "streams_max" in ended.errors.decode()
    assert names(ended.output) == names(done(listed))
    assert len(objects(ended.output)) == limits.STREAMS_PER_CALL


def test_streams_are_created_listed_described_and_deleted(run, cluster):
    created = objects(done(run("streams", "create", "many", "--count", "3", "--json")))
    assert [each["name"] for each in created] == ["many-0", "many-1", "many-2"]
    assert done(run("streams", "create", "kept", "--retention", "7d")).startswith(
        b"created kept (id "
    )
    all_streams = objects(done(run("streams", "list", "--json")))
    listed = {each["name"]: each for each in all_streams}
    empty = {"start_offset": 0, "next_offset": 0, "stored_bytes": 0, "last_append_ms": None}
    assert [listed[each["name"]] for each in created] == [{**each, **empty} for each in created]
    assert (listed["kept"]["retention_period_ms"], listed["kept"]["replica_count"]) == (
        604_800_000,
        1,
    )
    table = done(run("streams", "list")).decode().splitlines()
    assert table[0].split()[:4] == ["ID", "NAME", "RECORDS", "SIZE"]
    assert len(table) == 1 + len(all_streams)

    done(run("produce", "many-1", stdin=b"a\nb\n"))
    listed = {each["name"]: each for each in objects(done(run("streams", "list", "--json")))}
    assert listed["many-1"]["next_offset"] == 2
    assert listed["many-1"]["stored_bytes"] > len("ab")
    assert listed["many-1"].pop("last_append_ms") > 0
    (described,) = objects(done(run("streams", "describe", "many-1", "--json")))
    assert described.items() > listed["many-1"].items()
    assert (described["start_offset"], described["next_offset"]) == (0, 2)
    assert [piece["servers"] for piece in described["ranges"]] == [list(cluster.range_servers)]
    assert [piece["next_offset"] for piece in described["ranges"]] == [2]
    shown = done(run("streams", "describe", "many-1", "kept")).decode()
    assert "many-1 (id" in shown
    assert "records    2" in shown
    assert "retention  7d" in shown

    doomed = ("many-0", str(created[1]["stream_id"]), "many-1")
    preview = done(run("streams", "delete", *doomed)).decode().splitlines()
    assert preview[1].startswith("would delete many-1 (id ")
    assert preview[1].endswith("): 2 records")
    assert preview[2:] == ["nothing is deleted yet: repeat this with --yes"]
    previewed = objects(done(run("streams", "delete", *doomed, "--json")))
    assert [(each["name"], each["done"]) for each in previewed] == [
        ("many-0", False),
        ("many-1", False),
    ]
    assert done(run("consume", "many-1")) == b"a\nb\n"
    deleted = objects(done(run("streams", "delete", *doomed, "--yes", "--json")))
    assert [each["done"] for each in deleted] == [True, True]
    left = {each["name"] for each in objects(done(run("streams", "list", "--json")))}
    assert {"many-2", "kept"} <= left
    assert not {"many-0", "many-1"} & left


def test_names_of_streams_are_completed(run, cluster, stream, monkeypatch):
    monkeypatch.setenv("SBP_ENDPOINT", cluster.endpoint)
    monkeypatch.setenv("_SBP_COMPLETE", "bash_complete")
    for words in ("streams trim", "schema show"):
        monkeypatch.setenv("COMP_WORDS", f"sbp {words} {stream[:-1]}")
        monkeypatch.setenv("COMP_CWORD", "3")
        assert f"plain,{stream}" in done(run()).decode().splitlines()


def test_ping(run, cluster):
    (answer,) = objects(done(run("ping", "--json")))
    assert answer["endpoint"] == cluster.endpoint
    assert answer["round_trip_ms"] > 0
    assert done(run("ping")).startswith(f"{cluster.endpoint} answers in ".encode())


@pytest.mark.parametrize(
    ("words", "exit_code", "named"),
    [
        (["consume", "absent"], 1, "'absent'"),
        (["produce", "absent"], 1, "'absent'"),
        (["streams", "describe", "absent", "4611686018427387904"], 1, "4611686018427387904"),
        (["streams", "delete", "absent"], 1, "'absent'"),
        (["streams", "create", "not allowed"], 2, "'not allowed'"),
        (["streams", "create", "123"], 2, "'123'"),
        (["streams", "create", "a", "--count", "20001"], 2, "20001"),
    ],
)
def test_an_error_is_one_line(run, words, exit_code, named):
    assert named in failed(run(*words), exit_code)


def test_an_offset_that_the_stream_does_not_have(run, stream):
    error = failed(run("consume", stream, "--from", "1"), 1)
    assert "offset 1:" in error
    assert "0 to 0" in error
    assert re.search(rf"; stream \d+ is '{stream}'$", error)


def test_a_name_that_is_taken(run, stream):
    assert stream in failed(run("streams", "create", stream), 1)


@pytest.mark.parametrize("words", [["ping"], ["consume", "a"], ["streams", "list"]])
def test_no_server_at_the_endpoint(run, words):
    error = failed(run(*words, endpoint="127.0.0.1:1"), 1)
    assert "127.0.0.1:1" in error
    assert "sbp serve" in error


def test_a_producer_prints_its_progress(run, stream):
    text = b"fits\n" * 300_000 + b"x" * (limits.RECORD_BYTES_MAX + 1)
    error = failed(run("produce", stream, stdin=text), 1)
    assert "sbp: line 300001 has at least" in error
    assert "; acknowledged before: 300000 records, the last one at offset 299999" in error
    assert len(done(run("consume", stream)).splitlines()) == 300_000


def test_the_installed_command_is_the_same(cluster):
    installed = Path(sys.executable).with_name("sbp")
    words = [installed, "ping", "--endpoint", cluster.endpoint]
    answer = subprocess.run(words, capture_output=True, timeout=TIMEOUT_SECONDS, check=True)
    assert b"answers in" in answer.stdout


def test_streams_are_updated_trimmed_and_sealed(run, stream):
    done(run("produce", stream, stdin=b"a\nb\nc\n"))
    new_name = f"{stream}-renamed"
    output = done(run("streams", "update", stream, "--retention", "2h", "--rename", new_name))
    assert output.endswith(b": retention 2h\n")
    output = done(run("streams", "update", new_name, "--retention-size", "10GiB"))
    assert output.endswith(b": retention 2h, 10GiB\n")
    (info,) = objects(done(run("streams", "update", new_name, "--rename", stream, "--json")))
    assert (info["name"], info["retention_period_ms"]) == (stream, 7_200_000)
    assert info["retention_bytes"] == 10 * 2**30
    preview = done(run("streams", "trim", stream, "2")).decode()
    assert preview.startswith(f"would remove 2 records of {stream} (id ")
    assert preview.endswith("nothing is removed yet: repeat this with --yes\n")
    assert done(run("consume", stream)) == b"a\nb\nc\n"
    output = done(run("streams", "trim", stream, "2", "--yes"))
    assert output.endswith(b": offsets 2 to 3, exclusive\n")
    assert done(run("consume", stream)) == b"c\n"
    (opened,) = objects(done(run("streams", "seal", stream, "--json")))
    assert (opened["range_index"], opened["start_offset"], opened["end_offset"]) == (1, 3, None)
    done(run("produce", stream, stdin=b"d\n"))
    assert done(run("consume", stream)) == b"c\nd\n"
    assert b"it continues in range 2 from 4, on " in done(run("streams", "seal", stream))
    (trimmed,) = objects(done(run("streams", "trim", stream, "3", "--yes", "--json")))
    assert (trimmed["start_offset"], trimmed["next_offset"]) == (3, 4)


def test_replicas_that_no_server_is_there_for_are_noticed(run, stream):
    warning = b"sbp: a stream wants 2 replicas, and only 1 range server can have them now: "
    several = ("--replicas", "2", "--ack-count", "1")
    for words in (("create", f"{stream}-copied"), ("update", stream)):
        ended = run("streams", *words, *several)
        assert ended.exit_code == 0
        assert ended.errors.startswith(warning)
        assert ended.errors.count(b"\n") == 1
    assert done(run("streams", "update", stream, "--replicas", "1"))
    assert done(run("streams", "delete", f"{stream}-copied", "--yes"))


def test_replicas_that_the_cluster_never_had_servers_for_are_refused(run, stream):
    for words, option in (((), "--replicas"), (("--ack-count", "3"), "--ack-count")):
        for action in (("create", f"{stream}-copied"), ("update", stream)):
            error = failed(run("streams", *action, "--replicas", "3", *words), 1)
            assert "--replicas 3 needs " in error
            assert "the cluster has 1: start more range servers" in error
            assert f"or lower {option}" in error


def test_names_that_are_close_to_an_unknown_one_are_suggested(run, stream):
    for words in (("consume",), ("produce",), ("streams", "delete"), ("streams", "describe")):
        assert f"; did you mean '{stream}'" in failed(run(*words, f"{stream}x"), 1)
    assert "did you mean" not in failed(run("consume", "quite-different"), 1)
    assert "did you mean" not in failed(run("streams", "create", stream), 1)


def test_changes_that_cannot_be_are_one_line(run, stream):
    assert "has offsets 0 to 0" in failed(run("streams", "trim", stream, "1"), 1)
    assert "beyond its tail, 0" in failed(run("streams", "trim", stream, "1", "--yes"), 1)
    assert "nothing to change" in failed(run("streams", "update", stream), 2)
    assert "only digits" in failed(run("streams", "update", stream, "--rename", "12"), 2)
    assert "missing" in failed(run("streams", "seal", "missing"), 1)


def test_the_placement_drivers_are_listed(run, cluster):
    listed = run("cluster", "--json")
    assert listed.exit_code == 0
    driver, server, *_, lacking = objects(listed.output)
    expected = {"role": "placement driver", "endpoint": cluster.endpoint, "is_leader": True}
    assert driver == expected | {"is_live": True}
    assert lacking.keys() == {"role", "ranges", "missing_replicas"}
    assert (server["role"], server["server_id"], server["is_live"]) == ("range server", 1, True)
    shown = [line.split() for line in run("cluster").output.decode().splitlines()]
    assert shown[1] == [cluster.endpoint, "leader", "live"]
    assert shown[4][:4] == ["1", server["endpoint"], "-", "live"]


def test_rights_are_granted_listed_and_revoked(run):
    assert run("acl", "grant", "CN=b", "read", "orders-*").output == (
        b"CN=b has the right read on streams orders-*\n"
    )
    granted = run("acl", "grant", "CN=b", "group", "g", "--json")
    assert json.loads(granted.output) == {"subject": "CN=b", "right": "group", "pattern": "g"}
    listed = run("acl", "list", "--subject", "CN=b").output.decode().splitlines()
    assert [line.split() for line in listed] == [
        ["SUBJECT", "RIGHT", "PATTERN"],
        ["CN=b", "group", "g"],
        ["CN=b", "read", "orders-*"],
    ]
    missing = run("acl", "revoke", "CN=b", "read", "orders-raw")
    assert b"CN=b has no grant of read on streams orders-raw; see `sbp acl list" in missing.errors
    assert missing.output == b"CN=b still has the right read on orders-*\n"
    revoked = run("acl", "revoke", "CN=b", "read", "orders-*")
    assert revoked.output == b"revoked: CN=b, read on streams orders-*\n"
    left = run("acl", "list", "--json").output.decode().splitlines()
    assert [json.loads(line)["right"] for line in left] == ["group"]
    for subject, pattern, why in (
        ("CN=b", "*-orders", b"is not a pattern"),
        ("/O=c/CN=b", "*", b"write CN=b,O=c, the most specific part first"),
        ("O=c/CN=b", "*", b"write CN=b,O=c, the most specific part first"),
    ):
        refused = run("acl", "grant", subject, "read", pattern)
        assert (refused.exit_code, why in refused.errors) == (2, True)


def test_subjects_may_be_written_with_spaces_and_are_shown_in_one_form(run):
    granted = run("acl", "grant", "cn = b, O=c", "read", "*")
    assert (granted.output, granted.errors) == (b"CN=b,O=c has the right read on streams *\n", b"")
    listed = run("acl", "list", "--subject", "CN=b ,O=c", "--json")
    assert json.loads(listed.output)["subject"] == "CN=b,O=c"
    revoked = run("acl", "revoke", "CN=b,  O=c", "read", "*")
    assert revoked.output == b"revoked: CN=b,O=c, read on streams *\n"
    reversed_order = run("acl", "grant", "O=c, CN=b", "read", "*")
    assert b"the subject begins with O=c; if" in reversed_order.errors
