"""Bodies of HTTP requests that would take memory or time out of proportion are refused at once."""

import asyncio
import gzip
import io

import pyarrow as pa
import pytest
from starlette.requests import Request

from sbp_core.errors import SchemaError
from sbp_core.records import StreamSchema
from sbp_core.web.problems import ProblemError
from sbp_core.web.records.contents import ARROW, NDJSON, PARSERS, TEXT, Target
from sbp_core.web.records.requests import Bodies
from tests.support.clock import counted_turns

POINT = pa.struct([pa.field("x", pa.int64()), pa.field("y", pa.string())])
NESTED = StreamSchema.of(
    pa.schema(
        [
            pa.field("id", pa.int64()),
            pa.field("points", pa.list_(POINT)),
            pa.field("by_name", pa.map_(pa.string(), POINT)),
        ]
    )
)
WIDE = StreamSchema.of(pa.schema([pa.field(f"c{index}", pa.int64()) for index in range(2000)]))


def target(schema=None):
    return Target(schema, 0)


def ipc(batch, count=1, compression=None):
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        for _ in range(count):
            writer.write_batch(batch)
    return bytearray(sink.getvalue())


def values(size_bytes):
    return pa.record_batch([pa.array([bytes(size_bytes)])], ["value"])


def empty_structs(count):
    """Return a list of structs without fields, which have no bytes."""
    lists = pa.ListArray.from_arrays(
        pa.array([0, count], pa.int32()), pa.nulls(count, pa.struct([]))
    )
    return pa.record_batch([lists], ["points"])


@pytest.mark.parametrize(
    ("batch", "count", "schema", "name"),
    [
        (values(21 << 20), 1, None, "batch-too-large"),
        (values(6 << 20), 4, None, "batch-too-large"),  # together
        (pa.record_batch([pa.array([1])], ["c0"]), 700, WIDE, "batch-too-large"),
        (empty_structs(10_000_000), 1, NESTED, "batch-too-large"),
        (pa.record_batch([pa.nulls(1_000_001, pa.struct([]))], ["p"]), 1, None, "too-many-records"),
        (pa.record_batch([pa.nulls(0, pa.binary())], ["key"]), 50_001, None, "bad-request"),
    ],
    ids=["one", "together", "columns that are missing", "empty structs", "rows", "batches"],
)
def test_arrow_is_judged_before_it_is_decoded(batch, count, schema, name):
    if batch.schema.names == ["p"]:
        schema = StreamSchema.of(pa.schema([pa.field("p", pa.struct([pa.field("b", pa.bool_())]))]))
    body = ipc(batch, count, "zstd")
    assert len(body) < 10 << 20
    before = pa.total_allocated_bytes()
    with pytest.raises(ProblemError) as raised:
        PARSERS[ARROW](body, target(schema))
    assert raised.value.problem.name == name
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_a_type_that_does_not_fit_is_refused_before_its_rows():
    nulls = pa.record_batch([pa.nulls(2**31 - 1, pa.null())], ["value"])
    with pytest.raises(SchemaError, match="column value is null"):
        PARSERS[ARROW](ipc(nulls), target())


@pytest.mark.parametrize("body", [b"", b"a", bytes(ipc(values(9)))[:-30], b"\xff" * 64])
def test_what_is_no_arrow_stream_is_refused(body):
    with pytest.raises(ProblemError, match="Arrow's IPC format"):
        PARSERS[ARROW](bytearray(body), target())


def test_nested_columns_that_lack_parts_are_filled_up():
    part = pa.struct([pa.field("y", pa.string())])
    given = pa.record_batch(
        {
            "by_name": pa.array([[("n", {"y": "b"})], None], pa.map_(pa.string(), part)),
            "points": pa.array([[{"y": "a"}, None], []], pa.list_(part)),
        }
    ).replace_schema_metadata({"pandas": "{}"})
    rows = PARSERS[ARROW](ipc(given, 3, "lz4"), target(NESTED)).to_pylist()
    assert (
        rows[::2]
        == [
            {
                "id": None,
                "points": [{"x": None, "y": "a"}, None],
                "by_name": [("n", {"x": None, "y": "b"})],
            }
        ]
        * 3
    )
    assert rows[1::2] == [{"id": None, "points": [], "by_name": None}] * 3


@pytest.mark.parametrize(
    ("kind", "body", "schema", "name"),
    [
        (TEXT, b"\n" * 1_000_001, None, "too-many-records"),
        (TEXT, b"\n" * 600_000, None, "batch-too-large"),
        (NDJSON, b"\n" * 1_000_001 + b"{}", None, "too-many-records"),
        (NDJSON, b"{}\n" * 700, WIDE, "batch-too-large"),
    ],
    ids=["lines", "rows", "empty lines", "wide rows"],
)
def test_lines_are_counted_before_they_are_parsed(kind, body, schema, name):
    with pytest.raises(ProblemError) as raised:
        PARSERS[kind](bytearray(body), target(schema))
    assert raised.value.problem.name == name


def test_a_long_line_has_few_objects_and_lists_but_its_texts_may_have_brackets():
    with pytest.raises(ProblemError, match="line 1: it has more than 250000 objects and lists"):
        PARSERS[NDJSON](bytearray(b'{"value": [' + b"[]," * 400_000 + b"1]}"), target())
    text = b"[" * (2 << 20)
    rows = PARSERS[NDJSON](bytearray(b'{"value": "%b"}' % text), target())
    assert rows.column("value").to_pylist() == [text]


@pytest.mark.parametrize(("kind", "body"), [(ARROW, ipc(values(9))), (NDJSON, b"{}\n")])
def test_rows_that_nobody_waits_for_are_not_parsed(kind, body):
    left = target()
    left.has_left.set()
    with pytest.raises(ProblemError, match="the client has left"):
        PARSERS[kind](bytearray(body), left)


def received(body, **headers):
    """Return a body as `Bodies` receives it, and how many turns other tasks had."""
    fields = [(name.replace("_", "-").encode(), each.encode()) for name, each in headers.items()]
    pieces = [body[start : start + 65_536] for start in range(0, len(body), 65_536)]
    messages = [{"type": "http.request", "body": each, "more_body": True} for each in pieces]
    messages.append({"type": "http.request", "body": b""})

    async def receive():
        return messages.pop(0)

    async def run():
        request = Request({"type": "http", "headers": fields}, receive)
        async with counted_turns() as turns, Bodies().received(request) as found:
            return bytes(found), turns()

    return asyncio.run(run())


def test_gzip_is_bounded_by_members_and_by_bytes_and_gives_others_a_turn():
    empty = gzip.compress(b"")
    assert received(empty * 1024, content_encoding="gzip")[0] == b""
    with pytest.raises(ProblemError, match="more than 1024 members"):
        received(empty * 1025, content_encoding="gzip")
    named = empty[:3] + b"\x08" + empty[4:10] + b"a" * (17 << 20) + b"\0" + empty[10:]
    with pytest.raises(ProblemError, match="more than 16777216 bytes"):
        received(named, content_encoding="gzip")
    content = b"a" * (4 << 20)
    found, turns = received(gzip.compress(content), content_encoding="gzip")
    assert found == content
    assert turns >= 64


def test_a_body_is_in_utf_8():
    for kind in ("text/plain", "text/plain; charset=UTF-8", 'text/plain;charset="utf-8"'):
        assert received(b"a", content_type=kind)[0] == b"a"
    for charset in ("latin-1", "utf-16", '"us-ascii"', ""):
        with pytest.raises(ProblemError, match="expected utf-8, or none"):
            received(b"a", content_type=f"text/plain; charset={charset}")


def test_a_client_whose_body_is_refused_waits_while_others_are_served():
    async def run():
        request = Request({"type": "http", "headers": []}, receive)
        async with counted_turns() as turns:
            with pytest.raises(SchemaError):
                async with Bodies().received(request):
                    raise SchemaError("no such column")
            return turns()

    async def receive():
        return {"type": "http.request", "body": b"x"}

    assert asyncio.run(run()) > 10
