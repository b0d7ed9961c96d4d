"""`sbp produce` against a running server: formats, restarts, faults and interrupts."""

import json
import os
import pty
import signal
import subprocess
import sys
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sbp_core.cli.main import main
from sbp_core.records import StreamSchema
from tests.support.warm import WarmProcess

SBP = [sys.executable, "-m", "sbp_core.cli.main"]
TIMEOUT_SECONDS = 60
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
ROWS = [{"id": 1, "name": "a"}, {"id": 2, "name": None}]


@dataclass
class Shell:
    """Runs commands in this process, for one stream and a folder."""

    endpoint: str
    stream: str
    folder: object
    capfdbinary: object

    def run(self, *words, stdin=b""):
        """The exit code, the output, and the errors."""
        path = self.folder / "stdin"
        path.write_bytes(stdin)
        with path.open("rb") as file, pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdin", file)
            code = main([*words, "--endpoint", self.endpoint])
        output, errors = self.capfdbinary.readouterr()
        return code, output.decode(), errors.decode()

    def produce(self, *words, stdin=b"", code=0):
        """What `sbp produce` printed when it ended with an exit code."""
        ended, output, errors = self.run("produce", self.stream, *words, stdin=stdin)
        assert ended == code, errors
        return errors if code else output

    def consumed(self, stream=None):
        """The records, as objects without their place."""
        code, output, errors = self.run("consume", stream or self.stream, "--json")
        assert code == 0, errors
        records = [json.loads(line) for line in output.splitlines()]
        return [
            {name: value for name, value in each.items() if name not in {"stream", "offset"}}
            for each in records
        ]


@pytest.fixture
def shell(cluster, new_streams, tmp_path, capfdbinary):
    return Shell(cluster.endpoint, new_streams(1)[0], tmp_path, capfdbinary)


@pytest.fixture
def typed(shell, client):
    """The same, for a stream with a schema."""
    (info,) = client.describe_streams([shell.stream])
    client.evolve_schema(info.stream_id, StreamSchema.of(SCHEMA), may_change=True)
    return shell


def test_files_go_to_a_typed_stream_by_its_schema(typed):
    table = pa.Table.from_pylist(ROWS, schema=SCHEMA)
    (typed.folder / "a.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in ROWS))
    (typed.folder / "a.csv").write_text("name,id\na,1\n,2\n")
    pq.write_table(table, typed.folder / "a.parquet")
    with pa.ipc.new_file(typed.folder / "a.arrow", SCHEMA) as writer:
        writer.write_table(table)
    for name in ("a.jsonl", "a.csv", "a.parquet", "a.arrow"):
        printed = typed.produce(str(typed.folder / name))
        assert printed == f"2 records appended to {typed.stream}\n"
    assert [each["columns"] for each in typed.consumed()] == ROWS * 4


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ([], "has a schema, and lines have no columns; use --format json"),
        (["--format", "json", "--key", "k"], "no --key, --header or --timestamp"),
        (["--format", "json", "--key-separator", ":"], "--key-separator is for lines"),
        (["no-such-file.csv"], "no-such-file.csv cannot be read: No such file"),
    ],
)
def test_options_that_do_not_fit(typed, words, fault):
    assert fault in typed.produce(*words, code=2)


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.csv"])
def test_a_suffix_does_not_tell_what_lines_for_a_plain_stream_are(shell, name):
    path, lines = shell.folder / name, ['{"value": "a"}', '{"value": "b"}']
    path.write_text("".join(f"{each}\n" for each in lines))
    assert "write --format lines to store each line of" in shell.produce(str(path), code=2)
    assert shell.consumed() == []
    shell.produce(str(path), "--format", "lines")
    shell.produce(str(path), "--format", "json")
    assert [each["value"] for each in shell.consumed()] == [*lines, "a", "b"]


def test_what_consume_prints_is_produced_again(shell, new_streams):
    (copy,) = new_streams(1)
    shell.produce(
        *("--key-separator", ":", "--header", "from=here", "--header", "x="),
        *("--timestamp", "2025-01-31T09:30:00"),
        stdin=b"k:v\n\xff:\xfe\nnone\n",
    )
    _, printed, _ = shell.run("consume", shell.stream, "--json")
    shell.run("produce", copy, "--format", "json", stdin=printed.encode())
    assert shell.consumed(copy) == shell.consumed()
    assert shell.consumed()[1] == {
        "timestamp": "2025-01-31T09:30:00.000000+00:00",
        "key": {"base64": "/w=="},
        "value": {"base64": "/g=="},
        "headers": [["from", "here"], ["x", ""]],
    }


@pytest.mark.parametrize("form", ["csv", "parquet", "arrow"])
def test_files_of_consume_are_produced_again(shell, new_streams, form):
    (copy,) = new_streams(1)
    shell.produce("--key-separator", ":", stdin=b"k:v\nnone\n")
    path = str(shell.folder / f"records.{form}")
    columns = "stream,offset,timestamp,key,value"
    assert shell.run("consume", shell.stream, "--columns", columns, "-o", path)[0] == 0
    assert shell.run("produce", copy, path, "--format", form)[0] == 0
    assert shell.consumed(copy) == shell.consumed()


def test_a_stream_is_created_if_it_is_missing(shell):
    code, _, errors = shell.run("produce", "12345678", "--create", stdin=b"a\n")
    assert (code, "would be taken for an id" in errors) == (2, True)
    name = f"{shell.stream}-new"
    assert shell.run("produce", name, stdin=b"a\n")[0] == 1
    assert [shell.run("produce", name, "--create", stdin=b"a\n")[0] for _ in range(2)] == [0, 0]
    assert [each["value"] for each in shell.consumed(name)] == ["a", "a"]


def test_lines_before_one_with_a_fault_are_appended(shell):
    lines = b'{"value": "a"}\n{"value": "b"}\n{"value": 3}\n{"value": "d"}\n'
    error = shell.produce("--format", "json", stdin=lines, code=1)
    assert "line 3: value: expected text" in error
    assert error.endswith("; acknowledged before: 2 records, the last one at offset 1\n")
    assert [each["value"] for each in shell.consumed()] == ["a", "b"]
    error = json.loads(shell.produce("--format", "json", "--json", stdin=b"{", code=1))
    assert error["error"] == "RecordBatchError"
    assert "acknowledged before: 0 records" in error["message"]


def test_a_run_under_the_same_id_appends_what_is_missing(shell):
    words = ("--id", "loader", "--json")
    first = json.loads(shell.produce(*words, stdin=b"a\nb\n"))
    assert (first["records"], first["skipped"]) == (2, 0)
    second = json.loads(shell.produce(*words, stdin=b"a\nb\nc\n"))
    assert (second["records"], second["skipped"]) == (1, 2)
    assert "behind 3 that are there" in shell.produce("--id", "loader", stdin=b"a\nb\nc\n")
    assert [each["value"] for each in shell.consumed()] == ["a", "b", "c"]
    error = shell.produce("--id", "loader", stdin=b"a\n", code=2)
    assert "3 records of loader are in" in error
    assert "the input has 1: it is not the input of the runs before" in error


def test_a_pipe_of_arrow_is_appended_as_it_comes(shell):
    words = ["produce", shell.stream, "--format", "arrow", "--endpoint", shell.endpoint]
    follow = ["consume", shell.stream, "--follow", "--endpoint", shell.endpoint]
    with (
        WarmProcess([*SBP, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as producer,
        WarmProcess([*SBP, *follow], stdout=subprocess.PIPE) as follower,
    ):
        schema = pa.schema([("value", pa.string())])
        with pa.ipc.new_stream(producer.stdin, schema) as writer:
            writer.write_batch(pa.record_batch([["a"]], schema=schema))
            producer.stdin.flush()
            assert follower.stdout.readline() == b"a\n"
        follower.kill()
        producer.stdin.close()
        assert producer.wait(TIMEOUT_SECONDS) == 0


def test_parquet_needs_a_file(shell):
    words = ["produce", shell.stream, "--format", "parquet", "--endpoint", shell.endpoint]
    process = WarmProcess([*SBP, *words], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    _, errors = process.communicate(b"PAR1", TIMEOUT_SECONDS)
    assert process.returncode == 2
    assert b"name a FILE" in errors


def test_an_interrupt_reports_what_is_acknowledged(shell):
    words = ["--endpoint", shell.endpoint, shell.stream]
    with (
        WarmProcess(
            [*SBP, "produce", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as producer,
        WarmProcess([*SBP, "consume", "--follow", *words], stdout=subprocess.PIPE) as follower,
    ):
        producer.stdin.write(b"a\nb\nrest without a newline")
        producer.stdin.flush()
        assert follower.stdout.readline() == b"a\n"
        follower.kill()
        producer.send_signal(signal.SIGINT)
        assert producer.wait(TIMEOUT_SECONDS) == 130
        assert producer.stdout.read() == b""
        assert producer.stderr.read() == (
            b"sbp: interrupted; acknowledged: 2 records, the last one at offset 1\n"
        )


def test_a_terminal_shows_how_far_a_file_is_read(shell, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    path = shell.folder / "lines"
    path.write_bytes(b"a\n" * 10)
    ours, theirs = pty.openpty()
    try:
        words = ["produce", shell.stream, path, "--endpoint", shell.endpoint]
        process = WarmProcess([*SBP, *words], stdout=subprocess.PIPE, stderr=theirs)
        printed, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        shown = os.read(ours, 65_536)
    finally:
        os.close(theirs)
        os.close(ours)
    assert printed == f"10 records appended to {shell.stream}\n".encode()
    assert b"20/20 bytes" in shown
