"""Appending records over HTTP, from outside: `sbp http` and a cluster as processes."""

import base64
import gzip
import json
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sbp_core.cli.main import main
from sbp_core.records import ROWS_SCHEMA
from tests.support.web import (
    ARROW,
    TYPED,
    arrow,
    lines,
    post,
    problem,
    read,
    read_arrow,
    register,
    values,
)

NDJSON = {"Content-Type": "application/x-ndjson"}


def test_lines_become_records_and_are_read_as_sbp_consume_shows_them(cluster, http, stream, capfd):
    record = {
        "value": {"base64": "/w=="},
        "key": "k",
        "headers": [["h", "v"], ["h", None]],
        "timestamp": "2025-01-31T09:30:00.000001+00:00",
    }
    name = stream.rpartition("/")[2]
    status, found = post(http, stream, lines(record, {}, {"value": "b", "timestamp": None}))
    assert (status, found) == (
        200,
        {"stream": name, "first_offset": 0, "next_offset": 3, "record_count": 3},
    )
    first, second, third = read(http, stream)
    assert first == {"stream": name, "offset": 0} | record
    assert second["timestamp"] is not None
    assert (third["timestamp"], third["value"]) == (None, "b")
    assert main(["consume", name, "--json", "--endpoint", cluster.endpoint]) == 0
    assert [json.loads(line) for line in capfd.readouterr().out.splitlines()] == [
        first,
        second,
        third,
    ]
    assert post(http, stream, lines(first, second, third))[1]["first_offset"] == 3
    again = read(http, stream, **{"from": 3})
    assert [each | {"offset": 0} for each in again] == [
        each | {"offset": 0} for each in (first, second, third)
    ]


@pytest.mark.parametrize(
    ("kind", "content", "expected"),
    [
        ("text/plain; charset=utf-8", b"a\n\nb", ["a", "", "b"]),
        ('text/plain; charset="UTF-8"', b"a", ["a"]),
        ("text/plain", b"a\r\n\xff\n", ["a\r", {"base64": "/w=="}]),
        ("application/octet-stream", b"a\nb\n", ["a\nb\n"]),
        ("application/octet-stream", b"", [""]),
        ("application/x-ndjson", b'\n{"value": "a"}\n \n{}', ["a", None]),
        ("Application/X-NDJSON", b'{"value": "\\u00fc"}', ["ü"]),
    ],
)
def test_plain_contents(http, stream, kind, content, expected):
    for body, headers in ((content, {}), (gzip.compress(content), {"Content-Encoding": "gzip"})):
        if not content and headers:
            continue
        status, found = post(http, stream, body, kind, **headers)
        assert (status, found["record_count"]) == (200, len(expected)), found
        assert values(http, stream, **{"from": found["first_offset"]}) == expected


def test_arrow_into_a_plain_stream_and_out_of_it(http, stream):
    batch = pa.record_batch({"value": pa.array([b"a", None]), "key": pa.array([b"k", b""])})
    assert post(http, stream, arrow(batch), ARROW)[0] == 200
    table, headers = read_arrow(http, stream)
    assert table.schema.equals(ROWS_SCHEMA)
    assert table.column("value").to_pylist() == [b"a", None]
    assert (headers["sbp-first-offset"], headers["sbp-next-offset"]) == ("0", "2")
    unknown = pa.record_batch({"val": pa.array([b"a"])})
    answer = http.post(f"{stream}/records", content=arrow(unknown), headers={"Content-Type": ARROW})
    assert answer.status_code == 422
    assert "val" in answer.json()["detail"]


def test_typed_records_as_lines_and_as_arrow(http, typed):
    row = {"id": 1, "price": "1.50", "tags": ["a", None]}
    assert post(http, typed, lines(row, {"columns": {"id": 2}}))[0] == 200
    batch = pa.record_batch(
        {"tags": pa.array([["b"]]), "id": pa.array([3], pa.int32())}
    )  # in another order, narrower, and without a column
    assert post(http, typed, arrow(batch), ARROW)[0] == 200
    found = read(http, typed)
    assert found[0] == {"stream": typed.rpartition("/")[2], "offset": 0, "columns": row}
    assert [each["columns"]["id"] for each in found] == [1, 2, 3]
    assert post(http, typed, lines(*found))[1]["record_count"] == 3
    table, _ = read_arrow(http, typed, to=3)
    assert table.column("price").to_pylist() == [Decimal("1.50"), None, None]
    for kind in ("text/plain", "application/octet-stream"):
        headers = {"Content-Type": kind}
        problem(http.post(f"{typed}/records", content="a", headers=headers), 415, "typed-stream")


def test_arrow_has_the_newest_columns_also_for_older_records(cluster, http, typed):
    assert post(http, typed, lines({"id": 1}))[0] == 200
    register(cluster, typed, TYPED.append(pa.field("new", pa.string())))
    assert post(http, typed, lines({"id": 2, "new": "x"}))[0] == 200
    table, _ = read_arrow(http, typed)
    assert table.column("new").to_pylist() == [None, "x"]
    assert http.get(typed).json()["columns"] == [
        "id int64 not null",
        "price decimal(10, 2)",
        "tags list<string>",
        "new string",
    ]


TEXT_OR_BYTES = st.none() | st.text() | st.binary().map(lambda data: {"base64": encoded(data)})


def encoded(data):
    return base64.b64encode(data).decode()


def described(value):
    """Return a text or bytes as answers have it: text, if it is UTF-8."""
    if not isinstance(value, dict):
        return value
    data = base64.b64decode(value["base64"])
    try:
        return data.decode()
    except UnicodeDecodeError:
        return value


WITH_ONE_STREAM = [HealthCheck.function_scoped_fixture]


@settings(max_examples=30, deadline=None, suppress_health_check=WITH_ONE_STREAM)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "value": TEXT_OR_BYTES,
                "key": TEXT_OR_BYTES,
                "headers": st.none() | st.lists(st.tuples(st.text(), TEXT_OR_BYTES).map(list)),
                "timestamp": st.none() | st.datetimes().map(lambda at: f"{at.isoformat()}+00:00"),
            }
        ),
        min_size=1,
        max_size=5,
    )
)
def test_what_is_posted_comes_back_equal(http, stream, records):
    status, found = post(http, stream, lines(*records))
    assert status == 200, found
    back = read(http, stream, **{"from": found["first_offset"]})
    for sent, each in zip(records, back, strict=True):
        assert each["value"] == described(sent["value"])
        assert each["key"] == described(sent["key"])
        headers = sent["headers"]
        assert each["headers"] == (
            None if headers is None else [[name, described(value)] for name, value in headers]
        )
        again = {name: each[name] for name in ("value", "key", "headers", "timestamp")}
        assert post(http, stream, lines(again))[0] == 200
        (last,) = read(http, stream, **{"from": -1})
        assert {name: last[name] for name in again} == again


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"[" * 100_000, "it is nested too deeply"),
        (b'{"value": 1e999999}', "it is no JSON"),
        (b'{"timestamp": ' + b"9" * 5000 + b"}", "it is no JSON"),
        (b'{"timestamp": 99999999999999999999}', "timestamp: expected a time such as"),
        (b'{"timestamp": 1700000000000}', "timestamp: expected a time such as"),
        (b'{"value": "\xff"}', "it is no JSON"),
        (b'{"value": "\\ud800"}', "\\ud800 is half of a surrogate pair;"),
        (b'{"value": "\\\\ud800\\ud83d\\ude00\\uDE00"}', "\\uDE00 is half of a surrogate pair;"),
        (b'{"value": "\\\\ud800\\ud83d\\ude00"', "it is no JSON"),
        (b'{"value": "a"} x', "it is no JSON"),
        (b'{"val": "a"}', "unknown member 'val'"),
        (b"null", "expected an object"),
        (b'"a"', "expected an object"),
    ],
)
def test_a_line_that_is_wrong_is_named_and_nothing_is_appended(http, stream, line, reason):
    content = b'{"value": "a"}\n\n' + line + b'\n{"value": "b"}\n'
    answer = http.post(f"{stream}/records", content=content, headers=NDJSON)
    found = problem(answer, 422, "wrong-line")
    assert found["line"] == 3
    assert found["detail"].startswith(f"line 3: {reason}"), found
    assert read(http, stream) == []


@pytest.mark.parametrize(
    ("content", "headers", "status", "name"),
    [
        (b"", NDJSON, 400, "bad-request"),
        (b"\n", NDJSON, 400, "bad-request"),
        (b"a", {"Content-Type": "application/json"}, 415, "unsupported-content"),
        (b"a", {}, 415, "unsupported-content"),
        (b"a", {"Content-Type": 'text/plain; charset="Latin-1"'}, 415, "unsupported-charset"),
        (b"a", NDJSON | {"Content-Encoding": "br"}, 415, "unsupported-coding"),
        (b"a", NDJSON | {"Content-Encoding": "gzip"}, 400, "damaged-body"),
        (
            gzip.compress(b"{}", mtime=0)[:-1],
            NDJSON | {"Content-Encoding": "gzip"},
            400,
            "damaged-body",
        ),
        (b"a", {"Content-Type": ARROW}, 400, "bad-request"),
        (b"{}", NDJSON | {"Idempotency-Key": ""}, 400, "bad-request"),
        (b"{}", NDJSON | {"Idempotency-Key": "a" * 256}, 400, "bad-request"),
        (b"{}", NDJSON | {"Idempotency-Key": "\xfc".encode("latin-1")}, 400, "bad-request"),
        (b"{}", NDJSON | {"Origin": "http://evil.example"}, 403, "permission-denied"),
        (b"{}", NDJSON | {"Sec-Fetch-Site": "cross-site"}, 403, "permission-denied"),
        (b"{}", NDJSON | {"Host": "rebound.example.org"}, 403, "permission-denied"),
    ],
    ids=str,
)
def test_requests_that_are_refused(http, stream, content, headers, status, name):
    answer = http.post(f"{stream}/records", content=content, headers=headers)
    problem(answer, status, name)
    assert read(http, stream) == []


def test_a_body_that_is_too_large_is_refused_however_it_comes(http, stream):
    path, limit = f"{stream}/records", 16 << 20
    kind = {"Content-Type": "application/octet-stream"}
    huge = b"a" * (limit + 1)
    problem(http.post(path, content=huge, headers=kind), 413, "body-too-large")
    pieces = (huge[start : start + (1 << 20)] for start in range(0, len(huge), 1 << 20))
    problem(http.post(path, content=pieces, headers=kind), 413, "body-too-large")
    bomb = gzip.compress(b"a" * (10 * limit))
    bombs = kind | {"Content-Encoding": "gzip"}
    problem(http.post(path, content=bomb, headers=bombs), 413, "body-too-large")
    many = {"Content-Type": "text/plain"}
    pieces = b"\n".join([b"a" * (4 << 20)] * 3)
    problem(http.post(path, content=pieces, headers=many), 413, "batch-too-large")
    problem(http.post(path, content=b"\n" * 1_000_001, headers=many), 413, "too-many-records")
    assert read(http, stream) == []


def test_a_record_that_is_larger_than_its_server_accepts_is_named(http, stream):
    limit = 8 << 20
    kind = {"Content-Type": "text/plain"}
    answer = http.post(f"{stream}/records", content=b"a\n" + b"b" * (limit + 1), headers=kind)
    detail = problem(answer, 413, "record-too-large")["detail"]
    assert detail.startswith("record 2 of 2 has ")
    assert f" bytes; at most {limit} are allowed: " in detail
    assert read(http, stream) == []
    fitting = b"a" * (limit - 1024)  # a record is more than its value
    assert post(http, stream, fitting, "application/octet-stream")[0] == 200


def test_a_row_that_is_larger_than_its_server_accepts_is_refused(http, typed):
    row = lines({"id": 1, "tags": ["a" * (8 << 20)]})
    problem(http.post(f"{typed}/records", content=row, headers=NDJSON), 413, "record-too-large")
    assert read(http, typed) == []


def test_gzip_may_have_several_members(http, stream):
    content = gzip.compress(b"a\n") + gzip.compress(b"b\n")
    assert post(http, stream, content, "text/plain", **{"Content-Encoding": "gzip"})[0] == 200
    assert values(http, stream) == ["a", "b"]
