"""`sbp consume`: which records of a running cluster it reads, and the files that it writes."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sbp_core.app.blocking import Connection
from sbp_core.cli.main import main
from sbp_core.client import AppendItem, Client, StreamSpec
from sbp_core.cluster import LocalCluster
from sbp_core.records import StreamSchema, encode_columns
from sbp_core.wording import counted
from tests.support.clock import until
from tests.support.cluster import rows_batch

SBP = [sys.executable, "-m", "sbp_spark.command"]
TIMEOUT_SECONDS = 60


@pytest.fixture
def sbp(cluster, capfdbinary):
    """Runs the command in this process; returns its exit code, output and errors."""

    def run(*words: str) -> tuple[int, bytes, str]:
        exit_code = main(["consume", *words, "--endpoint", cluster.endpoint])
        output, errors = capfdbinary.readouterr()
        return exit_code, output, errors.decode()

    return run


@pytest.fixture
def shown(sbp):
    """Returns the lines that a command prints which succeeds."""

    def run(*words: str) -> list[str]:
        exit_code, output, errors = sbp(*words)
        assert (exit_code, errors) == (0, "")
        return output.decode().splitlines()

    return run


@pytest.fixture
def failed(sbp):
    """Returns the one line of a command that fails."""

    def run(*words: str) -> str:
        exit_code, output, errors = sbp(*words)
        assert (exit_code != 0, output, errors.count("\n")) == (True, b"", 1), errors
        return errors

    return run


@pytest.fixture
def streams(client, new_streams) -> list[str]:
    """Two streams: of records 0 to 9 with keys a and b in turn, and of records x and y."""
    names = new_streams(2)
    connection = Connection(client)
    for name, values in zip(names, ("0123456789", "xy"), strict=True):
        with connection.producer(name) as producer:
            for number, value in enumerate(values):
                key = b"ab"[number % 2 : number % 2 + 1]
                producer.send(value.encode(), key=key, headers={"h": b"1"})
    return names


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "0123456789"),
        (["--from", "8"], "89"),
        (["--from", "-3"], "789"),
        (["--from", "-99"], "0123456789"),
        (["--from", "-10m"], "0123456789"),
        (["--from", "latest"], ""),
        (["--to", "2"], "01"),
        (["--to", "-8"], "01"),
        (["--to", "earliest"], ""),
        (["--to", "-1h"], ""),
        (["--from", "3", "--to", "5"], "34"),
        (["--last", "2"], "89"),
        (["--last", "2", "--to", "5"], "34"),
        (["--max", "2"], "01"),
        (["--key", "b"], "13579"),
        (["--key", "b", "--max", "2"], "13"),
        (["--last", "3", "--key", "b"], "79"),
    ],
)
def test_a_part_of_a_stream(shown, streams, words, expected):
    assert shown(streams[0], *words) == [*expected]


def test_several_streams_and_patterns(shown, failed, client, streams):
    first, second = streams
    (info,) = client.describe_streams([second])
    assert sorted(shown(first, str(info.stream_id), second)) == [*"0123456789xy"]
    assert shown(f"{second}*") == ["x", "y"]
    assert "no stream has a name such as nothing-*" in failed("nothing-*")
    assert "is not a pattern" in failed("no*thing")
    assert "stream 'nothing'" in failed(first, "nothing")


def test_columns_of_plain_records(shown, failed, streams):
    lines = shown(streams[1], "--columns", "value,offset,headers")
    assert list(map(json.loads, lines)) == [
        {"value": "x", "offset": 0, "headers": [["h", "1"]]},
        {"value": "y", "offset": 1, "headers": [["h", "1"]]},
    ]
    assert "has no column 'b'; it has key, value" in failed(streams[1], "--columns", "b")


def test_a_group_goes_on_where_it_was(shown, client, streams, tmp_path):
    first, second = streams
    group = f"readers-{first}"
    assert shown(first, "--group", group, "--max", "3") == [*"012"]
    assert shown(first, "--group", group, "--key", "a", "--max", "1") == ["4"]
    path = tmp_path / "records.txt"
    assert shown(first, second, "--group", group, "--max", "2", "-o", str(path)) == []
    read = path.read_text().split()
    rest = shown(first, second, "--group", group)
    assert sorted([*read, *rest]) == [*"56789xy"]
    assert shown(first, second, "--group", group) == []
    ids = {each.name: each.stream_id for each in client.describe_streams(streams)}
    cursors = {each.stream_id: each.next_offset for each in client.describe_cursors(group)}
    assert cursors == {ids[first]: 10, ids[second]: 2}


def test_a_group_reads_on_to_the_tail(failed, streams):
    assert "leave --last and --to out" in failed(streams[0], "--group", "g", "--to", "2")


EXPECTED = {"offset": [8, 9], "key": [b"a", b"b"], "value": [b"8", b"9"]}


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("r.parquet", pq.read_table),
        ("r.arrow", lambda path: pa.ipc.open_file(path).read_all()),
        ("r.arrows", lambda path: pa.ipc.open_stream(path).read_all()),
    ],
)
def test_tables_in_files(shown, streams, tmp_path, name, read):
    path = tmp_path / name
    path.write_bytes(b"former")
    assert shown(streams[0], "--last", "2", "-o", str(path)) == []
    table = read(path)
    assert table.schema.names == ["stream", "offset", "timestamp", "key", "value", "headers"]
    assert table.select(list(EXPECTED)).to_pydict() == EXPECTED
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_tables_in_a_pipe(sbp, streams):
    _, output, _ = sbp(streams[0], "--last", "2", "--format", "arrow")
    assert pa.ipc.open_stream(output).read_all().select(list(EXPECTED)).to_pydict() == EXPECTED
    _, output, _ = sbp(streams[0], "--last", "2", "--format", "parquet")
    assert pq.read_table(io.BytesIO(output)).select(list(EXPECTED)).to_pydict() == EXPECTED


def test_text_in_files(shown, streams, tmp_path):
    path = tmp_path / "r.csv"
    shown(*streams, "-o", str(path), "--columns", "stream,value,headers")
    heading, *rows = csv.reader(path.read_text().splitlines())
    assert heading == ["stream", "value", "headers"]
    assert sorted(rows) == sorted(
        [name, value, '[["h", "1"]]']
        for name, values in zip(streams, ("0123456789", "xy"), strict=True)
        for value in values
    )
    path = tmp_path / "r.jsonl"
    shown(streams[1], "-o", str(path))
    assert [json.loads(line)["value"] for line in path.read_text().splitlines()] == ["x", "y"]
    shown(streams[1], "-o", str(path), "--format", "lines")
    assert path.read_text() == "x\ny\n"


def test_a_format_is_printed(shown, streams):
    assert shown(streams[1], "--format", "lines") == ["x", "y"]
    assert shown(streams[1], "--format", "json") == shown(streams[1], "--json")
    heading, *rows = shown(streams[1], "--format", "csv", "--columns", "key,value")
    assert (heading, rows) == ('"key","value"', ['"a","x"', '"b","y"'])


def test_a_failure_leaves_the_file_as_it_was(failed, client, streams, tmp_path):
    path = tmp_path / "r.csv"
    path.write_bytes(b"former")
    with Connection(client).producer(streams[1]) as producer:
        producer.send(b"\xff")
    assert "is not UTF-8, which CSV needs" in failed(streams[1], "-o", str(path))
    assert path.read_bytes() == b"former"
    assert list(tmp_path.iterdir()) == [path]
    assert "cannot be written" in failed(streams[0], "-o", str(tmp_path / "no" / "r.csv"))
    assert "No space left on device" in failed(streams[0], "-o", "/dev/full", "--format", "parquet")
    assert "does not follow from its name" in failed(streams[0], "-o", str(tmp_path / "r.doc"))


def test_typed_streams(shown, failed, client, new_streams, tmp_path):
    (name,) = new_streams(1)
    (info,) = client.describe_streams([name])
    narrow = StreamSchema.of(pa.schema([("a", pa.int32())]))
    wide = StreamSchema.of(pa.schema([("a", pa.int32()), ("b", pa.string())]))
    for schema, rows in ((narrow, {"a": [1]}), (wide, {"a": [2], "b": ["x"]})):
        client.evolve_schema(info.stream_id, schema, may_change=True)
        batch = pa.RecordBatch.from_pydict(rows, schema=schema.arrow)
        data = encode_columns(batch, schema, stream_id=info.stream_id, timestamp_ms=1)
        client.append([AppendItem(info.stream_id, data)])
    assert list(map(json.loads, shown(name))) == [{"a": 1}, {"a": 2, "b": "x"}]
    assert shown(name, "--columns", "b,offset") == [
        '{"b": null, "offset": 0}',
        '{"b": "x", "offset": 1}',
    ]
    assert shown(name, "--json", "--columns", "b", "--from", "1") == [
        f'{{"stream": "{name}", "offset": 1, "columns": {{"b": "x"}}}}'
    ]
    path = tmp_path / "r.parquet"
    shown(name, "-o", str(path))
    assert pq.read_table(path).to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]
    assert "has columns and no keys" in failed(name, "--key", "k")


@pytest.fixture
def heeded():
    """Let commands heed all signals, also if the tests run under `nohup` or in the background."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    defaults = (signal.default_int_handler, signal.SIG_DFL, signal.SIG_DFL)
    former = [signal.signal(*each) for each in zip(numbers, defaults, strict=True)]
    yield
    for each in zip(numbers, former, strict=True):
        signal.signal(*each)


ENDING = pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)


@ENDING
@pytest.mark.usefixtures("heeded")
def test_an_interrupt_completes_the_file(cluster, streams, tmp_path, number, exit_code):
    path = tmp_path / "r.parquet"
    log = tmp_path / "log"
    command = [
        *SBP,
        "consume",
        streams[0],
        "-f",
        "-o",
        str(path),
        "--endpoint",
        cluster.endpoint,
    ]
    with log.open("wb") as errors, subprocess.Popen(command, stderr=errors) as process:
        while not any(each.name.startswith(".r.parquet.") for each in tmp_path.iterdir()):
            assert process.poll() is None, log.read_text()
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(TIMEOUT_SECONDS) == exit_code
    count = counted(pq.read_table(path).num_rows, "record")
    assert log.read_text() == f"sbp: interrupted: {path} has {count}\n"


@ENDING
@pytest.mark.usefixtures("heeded")
def test_an_interrupt_commits_what_was_printed(cluster, client, streams, number, exit_code):
    command = [*SBP, "consume", streams[0], "-f", "--group", f"ended-{number}"]
    command += ["--endpoint", cluster.endpoint]
    (info,) = client.describe_streams([streams[0]])
    (bound,) = client.stream_bounds([info.stream_id])
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        for _ in range(bound.next_offset - bound.start_offset):
            assert process.stdout.readline()
        process.send_signal(number)
        assert process.wait(TIMEOUT_SECONDS) == exit_code
    (cursor,) = client.describe_cursors(f"ended-{number}")
    assert cursor.next_offset == bound.next_offset


@pytest.mark.parametrize("words", [["--group", "g"], ["-o", "r.jsonl"]])
def test_an_interrupt_does_not_wait_for_a_server_that_is_stopped(tmp_path, words):
    with LocalCluster() as cluster, Client(cluster.endpoint) as client:
        (info,) = client.create_streams([StreamSpec("a")])
        client.append([AppendItem(info.stream_id, rows_batch([b"v"], info.stream_id))])
        command = [*SBP, "consume", "a", "-f", "--endpoint", cluster.endpoint, *words]
        log = tmp_path / "log"
        with (
            log.open("wb") as errors,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, cwd=tmp_path
            ) as process,
        ):
            until(lambda: client.describe_cursors("g") or [*tmp_path.glob(".r.jsonl.*")])
            os.kill(cluster.pid, signal.SIGSTOP)
            try:
                process.send_signal(signal.SIGTERM)
                assert process.wait(TIMEOUT_SECONDS) == 143
            finally:
                os.kill(cluster.pid, signal.SIGCONT)
        assert not [*tmp_path.glob(".r.jsonl.*")]


def test_an_idle_command_ends_with_its_reader(cluster, streams):
    command = [*SBP, "consume", streams[0], "-f", "--endpoint", cluster.endpoint]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(TIMEOUT_SECONDS) == 0
        assert process.stderr.read() == b""
