"""Typed streams on the command line, against a running server."""

from __future__ import annotations

import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sbp_core.cli.main import main
from sbp_core.client import AppendItem, Client
from sbp_core.client.operations import stream_changes as schemas
from sbp_core.errors import SchemaError
from sbp_core.records import StreamSchema, decode_stream_schema, encode_columns

FIRST = pa.schema([pa.field("id", pa.int32(), nullable=False), pa.field("name", pa.string())])
SECOND = pa.schema([pa.field("id", pa.int64()), FIRST.field("name"), pa.field("at", pa.date32())])


class Shell:
    """Runs subcommands of `sbp` for one stream."""

    def __init__(self, endpoint, stream, capfd) -> None:
        self.stream = stream
        self._endpoint = endpoint
        self._capfd = capfd

    def run(self, *words: str) -> tuple[int, list[str]]:
        """The exit code and the lines that were written, those of errors last."""
        exit_code = main([*words, "--endpoint", self._endpoint])
        output, errors = self._capfd.readouterr()
        return exit_code, [*output.splitlines(), *errors.splitlines()]

    def done(self, *words: str) -> list[str]:
        exit_code, lines = self.run(*words)
        assert exit_code == 0, lines
        return lines


@pytest.fixture
def shell(cluster, new_streams, capfd) -> Shell:
    return Shell(cluster.endpoint, new_streams(1)[0], capfd)


@pytest.fixture
def stream_id(client, shell) -> int:
    return client.describe_streams([shell.stream])[0].stream_id


def append(client, stream_id, schema, rows) -> None:
    batch = pa.RecordBatch.from_pylist(rows, schema=schema.arrow)
    encoded = encode_columns(batch, schema, stream_id=stream_id, timestamp_ms=1_000)
    client.append([AppendItem(stream_id, encoded)])


def evolve(client, stream_id, schema) -> StreamSchema:
    return client.evolve_schema(stream_id, StreamSchema.of(schema), may_change=True).schema


def saved(path, schema):
    pq.write_table(schema.empty_table(), path)
    return str(path)


def test_a_schema_and_how_it_came_to_be(shell, client, stream_id):
    exit_code, (error,) = shell.run("schema", "show", shell.stream)
    assert exit_code == 1
    assert "has no schema" in error
    assert shell.run("schema", "history", shell.stream) == (1, [error])
    evolve(client, stream_id, FIRST)
    newest = evolve(client, stream_id, SECOND)
    title, *columns = shell.done("schema", "show", shell.stream)
    assert title.startswith(f"{shell.stream} (id {stream_id}), version 2 of 20")
    assert columns == ["  id int64", "  name string", "  at date"]
    (line,) = shell.done("schema", "show", str(stream_id), "--json")
    printed = json.loads(line)
    assert (printed["version"], printed["fingerprint"]) == (2, newest.fingerprint)
    assert printed["columns"] == ["id int64", "name string", "at date"]
    first, *lines = shell.done("schema", "history", shell.stream)
    assert first.startswith("version 1 of 20")
    assert lines[:2] == ["  + column id int32 not null", "  + column name string"]
    assert lines[2].startswith("version 2 of 20")
    assert lines[3:] == [
        "  ~ column id widens from int32 to int64",
        "  ? column id may have nulls; the stream requires a value",
        "  + column at date is new",
    ]
    versions = [
        json.loads(line) for line in shell.done("schema", "history", shell.stream, "--json")
    ]
    assert [len(each["changes"]) for each in versions] == [2, 3]
    described = shell.done("streams", "describe", shell.stream)
    assert "  schema     version 2: id, name, at" in described
    (line,) = shell.done("streams", "describe", shell.stream, "--json")
    assert json.loads(line)["schema_version"] == 2


def test_whether_a_file_fits(shell, client, stream_id, tmp_path):
    def check(schema, *words):
        return shell.run(
            "schema", "check", shell.stream, saved(tmp_path / "a.parquet", schema), *words
        )

    exit_code, (printed,) = check(FIRST)
    assert exit_code == 0
    assert "gets the schema of what is written first" in printed
    evolve(client, stream_id, FIRST)
    exit_code, (printed,) = check(FIRST)
    assert exit_code == 0
    assert f"fits as it is into {shell.stream}" in printed
    exit_code, (difference, printed) = check(pa.schema([pa.field("id", pa.int16())]))
    assert (exit_code, difference[:5]) == (0, "  ? c")
    assert "fits as it is" in printed
    exit_code, (*differences, printed) = check(SECOND)
    assert (exit_code, len(differences)) == (0, 3)
    assert "fits with mergeSchema=true" in printed
    wrong = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("NAME", pa.string())])
    exit_code, (*differences, printed) = check(wrong)
    assert exit_code == 1
    assert [each[:3] for each in differences] == ["  !", "  !"]
    assert "does not fit" in printed
    exit_code, (line,) = check(wrong, "--json")
    assert (exit_code, json.loads(line)["fits"]) == (1, None)
    assert {each["change"] for each in json.loads(line)["differences"]} == {"FAULTY"}


def test_files_that_cannot_be_compared_are_refused(shell, client, stream_id, tmp_path):
    (tmp_path / "text").write_text("no table")
    exit_code, (error,) = shell.run("schema", "check", shell.stream, str(tmp_path / "text"))
    assert exit_code == 2
    assert "cannot be read as Parquet" in error
    nothing = saved(tmp_path / "a.parquet", pa.schema([pa.field("x", pa.null())]))
    exit_code, (error,) = shell.run("schema", "check", shell.stream, nothing)
    assert exit_code == 1
    assert "column x has type null" in error
    path = tmp_path / "lines"
    path.write_bytes(b"plain\n")
    with path.open("rb") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", file)
        shell.done("produce", shell.stream)
    exit_code, (printed,) = shell.run(
        "schema", "check", shell.stream, saved(tmp_path / "a.parquet", FIRST)
    )
    assert exit_code == 1
    assert "plain records and no schema" in printed


def test_rows_of_all_versions_are_printed(shell, client, stream_id):
    first = evolve(client, stream_id, FIRST)
    append(client, stream_id, first, [{"id": 1, "name": "\u00fc"}, {"id": 2, "name": None}])
    second = evolve(client, stream_id, SECOND)
    append(client, stream_id, second, [{"id": 2**40, "name": "x", "at": 1}])
    assert shell.done("consume", shell.stream) == [
        '{"id": 1, "name": "\u00fc"}',
        '{"id": 2, "name": null}',
        '{"id": 1099511627776, "name": "x", "at": "1970-01-02"}',
    ]
    lines = shell.done("consume", shell.stream, "--from", "1", "--max", "1", "--json")
    assert [json.loads(line) for line in lines] == [
        {"stream": shell.stream, "offset": 1, "columns": {"id": 2, "name": None}}
    ]


def test_a_schema_of_a_later_release_does_not_hide_others(
    shell, client, stream_id, new_streams, monkeypatch
):
    (other,) = new_streams(1)
    (info,) = client.describe_streams([other])
    evolve(client, stream_id, SECOND)
    evolve(client, info.stream_id, FIRST)

    def decode_first_only(data):
        schema = decode_stream_schema(data)
        if schema.arrow == SECOND:
            raise SchemaError("unknown type")
        return schema

    monkeypatch.setattr(schemas, "decode_stream_schema", decode_first_only)
    printed = shell.done("streams", "describe", shell.stream, other)
    found = [line for line in printed if line.startswith("  schema  ")]
    assert found[1:] == ["  schema     version 1: id, name"]
    assert "unknown type; a later release may know it" in found[0]
    lines = shell.done("streams", "describe", shell.stream, other, "--json")
    unknown, known = map(json.loads, lines)
    assert (unknown["schema_version"], known["schema_version"]) == (None, 1)
    assert "unknown type" in unknown["schema_error"]
    assert "schema_error" not in known


def test_whether_a_file_fits_is_asked_of_the_placement_driver_alone(
    shell, client, stream_id, tmp_path, monkeypatch
):
    evolve(client, stream_id, FIRST)
    monkeypatch.delattr(Client, "stream_bounds")
    path = saved(tmp_path / "a.parquet", FIRST)
    shell.done("schema", "check", shell.stream, path)
