"""`sbp streams copy` against a running server."""

import json

import pyarrow as pa
import pytest

from sbp_core.app import Connection
from sbp_core.app.blocking import Committer
from sbp_core.cli.main import main
from sbp_core.client import AppendItem, Client
from sbp_core.errors import ConnectError
from sbp_core.records import StreamSchema
from tests.support.cluster import rows_batch


@pytest.fixture
def run(cluster, capfd):
    """Runs a command; returns its exit code and what it wrote."""

    def run_command(*words):
        exit_code = main(["streams", "copy", *words, "--json", "--endpoint", cluster.endpoint])
        return exit_code, *capfd.readouterr()

    return run_command


@pytest.fixture
def sbp(cluster):
    """A connection of an application."""
    with Connection(Client(cluster.endpoint)) as connection:
        yield connection


@pytest.fixture
def names(new_streams):
    """A stream of the test's own, and the name of one that is not there."""
    (name,) = new_streams(1)
    return name, f"{name}-copy"


def copied(run, *words):
    exit_code, output, errors = run(*words)
    assert (exit_code, errors) == (0, "")
    return json.loads(output)


def records(sbp, name):
    return [each._replace(stream="", offset=0) for each in sbp.consumer(name)]


def values(sbp, name):
    return [each.value for each in sbp.consumer(name)]


def test_records_are_as_they_were(run, sbp, names):
    source, target = names
    with sbp.producer(source) as producer:
        producer.send(b"a", key=b"k", headers={"h": b"1", "n": None}, timestamp_us=1_700_000_000)
        producer.flush()
        producer.send(None, key=b"", timestamp_us=5)
    assert copied(run, source, target, "--create") == {
        "from": source,
        "to": target,
        "records": 2,
        "start_offset": 0,
        "end_offset": 2,
    }
    assert records(sbp, target) == records(sbp, source)


def test_a_copy_continues_where_it_was(run, sbp, client, names):
    source, target = names
    (info,) = client.describe_streams([source])
    client.append([AppendItem(info.stream_id, rows_batch([b"0", b"1", b"2"]))])
    assert copied(run, source, target, "--create", "--to", "2")["records"] == 2
    client.append([AppendItem(info.stream_id, rows_batch([b"3"]))])
    again = copied(run, source, target, "--create")
    assert (again["records"], again["start_offset"]) == (2, 2)
    assert copied(run, source, target)["records"] == 0
    assert values(sbp, target) == [b"0", b"1", b"2", b"3"]
    assert copied(run, source, target, "--id", "twice", "--from", "-1")["records"] == 1
    assert values(sbp, target)[4:] == [b"3"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--from", "1", "--to", "5"], "1234"),
        (["--from", "-2"], "56"),
        (["--from", "latest"], ""),
        (["--from", "1970-01-01", "--to", "-6"], "0"),
    ],
)
def test_a_part_is_cut_out_of_batches(run, sbp, client, names, options, expected):
    source, target = names
    (info,) = client.describe_streams([source])
    batches = [rows_batch([b"0", b"1", b"2"]), rows_batch([b"3", b"4", b"5", b"6"])]
    client.append([AppendItem(info.stream_id, each) for each in batches])
    assert copied(run, source, target, "--create", *options)["records"] == len(expected)
    assert values(sbp, target) == [each.encode() for each in expected]


def test_a_typed_stream_is_copied_with_all_versions_of_its_schema(run, sbp, client, names):
    source, target = names
    (info,) = client.describe_streams([source])
    for rows in (
        pa.table({"n": pa.array([1, 2, 3])}),
        pa.table({"n": pa.array([4, 5]), "s": pa.array(["x", None])}),
    ):
        schema = StreamSchema.of(rows.schema)
        client.evolve_schema(info.stream_id, schema, may_change=True)
        with sbp.producer(source) as producer:
            producer.send_many(rows)
    assert copied(run, source, target, "--create", "--from", "1")["records"] == 4
    assert records(sbp, target) == records(sbp, source)[1:]
    (into,) = client.describe_streams([target])
    versions = client.describe_schemas([info.stream_id, into.stream_id])
    assert [each.schema for each in versions[into.stream_id]] == [
        each.schema for each in versions[info.stream_id]
    ]


def test_what_was_copied_before_an_error_is_said(run, sbp, client, names, monkeypatch):
    source, target = names
    (info,) = client.describe_streams([source])
    for value in (b"0", b"1"):
        client.append([AppendItem(info.stream_id, rows_batch([value]))])
    monkeypatch.setattr("sbp_core.cli.stream_copy._COMMIT_BYTES", 1)
    commit, commits = Committer.commit, []

    def fail_later(committer, batches, count):
        if commits:
            raise ConnectError("the cable is cut")
        commits.append(count)
        commit(committer, batches, count)

    with monkeypatch.context() as patch:
        patch.setattr(Committer, "commit", fail_later)
        exit_code, output, errors = run(source, target, "--create")
    assert (exit_code, output) == (1, "")
    assert json.loads(errors)["message"] == (
        "the cable is cut; 1 record copied; the same call continues behind them"
    )
    assert copied(run, source, target)["start_offset"] == 1
    assert values(sbp, target) == [b"0", b"1"]


def test_what_cannot_be_copied_says_why(run, sbp, client, names):
    source, target = names
    sbp.create_stream(target, schema=pa.schema([("n", pa.int64())]))
    for words, exit_code, reason in (
        ([source, source], 2, "cannot be copied into itself"),
        ([source, f"{target}-2"], 1, "not found"),
        ([source, "123", "--create"], 2, "only digits"),
        ([source, target], 1, "has no schema"),
        ([source, target, "--from", "9"], 1, "offset 9"),
        ([source, target, "--from", "soon"], 2, "is not earliest"),
    ):
        found, output, errors = run(*words)
        assert (found, output) == (exit_code, ""), words
        assert reason in errors
    sbp.create_stream(f"{target}-other", schema=pa.schema([("s", pa.string())]))
    assert "has another schema" in run(target, f"{target}-other")[2]


def test_columns_are_not_mixed_with_plain_records(run, sbp, client, names, new_streams):
    source, _ = names
    (plain,) = new_streams(1)
    (info,) = client.describe_streams([source])
    schema = StreamSchema.of(pa.schema([("n", pa.int64())]))
    client.evolve_schema(info.stream_id, schema, may_change=True)
    with sbp.producer(plain) as producer:
        producer.send(b"a")
    assert "has records without one" in run(source, plain)[2]
    assert "has no schema and" in run(plain, source)[2]
    assert values(sbp, plain) == [b"a"]
