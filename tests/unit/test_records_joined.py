"""Columns of many small messages: joined here as Arrow joins them, or not at all."""

import struct
import tracemalloc

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp_core.errors import RecordBatchError
from sbp_core.records import ROWS_SCHEMA, StreamSchema
from sbp_core.records.arrow_body import decode_joined, encode_body
from sbp_core.records.arrow_message import Outlines, read_outline
from sbp_core.records.small_batches import maybe_join_columns
from tests.support.clock import examples
from tests.support.data import typed as typed_batches


def body_of(batch):
    return encode_body(batch, "none")


def read_outlines(bodies, batches):
    return [
        read_outline(body, record_count=batch.num_rows)
        for body, batch in zip(bodies, batches, strict=True)
    ]


def outlines_of(bodies, batches):
    return Outlines.of(read_outlines(bodies, batches))


def maybe_joined(batches, schema, wanted=None):
    bodies = [body_of(each) for each in batches]
    return maybe_join_columns(bodies, outlines_of(bodies, batches), schema, wanted)


@st.composite
def several_batches(draw):
    schema = draw(typed_batches.SCHEMAS)
    batches = draw(st.lists(typed_batches.batches(schema), min_size=1, max_size=6))
    return schema, batches


@settings(deadline=None)
@given(several_batches(), st.data())
def test_the_rows_are_those_of_all_messages(given_batches, data):
    schema, batches = given_batches
    names = schema.arrow.names
    wanted = data.draw(st.none() | st.sets(st.integers(0, len(names) - 1), min_size=1))
    found = maybe_joined(batches, schema.arrow, wanted)
    kept = [name for index, name in enumerate(names) if wanted is None or index in wanted]
    expected = pa.Table.from_batches(batches).select(kept)
    if found is None:  # no bytes: there is nothing to gather
        assert all(len(body_of(each)) == len(body_of(each.slice(0, 0))) for each in batches)
    else:
        found.validate(full=True)
        assert found.schema.equals(expected.schema)
        rows = [typed_batches.rows_of(each.select(kept)) for each in batches]
        assert typed_batches.rows_of(found) == [row for each in rows for row in each]


ROWS = [
    [
        {"key": None, "value": b"aaa", "headers": None, "timestamp": 1},
        {"key": None, "value": None, "headers": [("n", b"v"), ("m", None)], "timestamp": None},
    ],
    [{"key": b"k", "value": b"", "headers": [], "timestamp": 2}],
    [{"key": b"k", "value": b"bb", "headers": None, "timestamp": 3}] * 9,
]
BATCHES = [pa.RecordBatch.from_pylist(each, ROWS_SCHEMA) for each in ROWS]
SCHEMA_MESSAGE = bytes(ROWS_SCHEMA.serialize())


@settings(deadline=None, max_examples=examples(500))
@given(st.integers(0, 2), st.data())
def test_wrong_bytes_are_read_as_arrow_reads_them_or_refused(index, data):
    bodies = [bytearray(body_of(each)) for each in BATCHES]
    at = data.draw(st.integers(0, len(bodies[index]) - 1))
    bodies[index][at] = data.draw(st.integers(0, 255))
    views = [memoryview(bytes(each)) for each in bodies]
    try:
        read = read_outlines(views, BATCHES)
        shapes = {(len(each.nodes), len(each.buffers), each.compression) for each in read}
        if len(shapes) > 1 or read[0].compression or not Outlines.of(read).are_sound():
            return
        outlines = Outlines.of(read)
        found = maybe_join_columns(views, outlines, ROWS_SCHEMA)
    except (RecordBatchError, pa.ArrowException):
        return
    if found is not None:
        found.validate(full=True)
        assert found.equals(decode_joined(views, SCHEMA_MESSAGE))


VALUES = pa.schema([pa.field("value", pa.binary())])
OFFSETS = struct.pack("<3i", 0, 3, 6)


def changed(batch, old, new):
    encoded = bytes(body_of(batch))
    assert encoded.count(old) == 1
    return memoryview(encoded.replace(old, new))


def joined_values(body, batch):
    """The values of a message behind a good one."""
    bodies, batches = [body_of(batch), body], [batch, batch]
    found = maybe_join_columns(bodies, outlines_of(bodies, batches), batch.schema)
    return None if found is None else found.column(0).to_pylist()


def test_the_first_value_need_not_be_the_first_byte():
    batch = pa.record_batch([pa.array([b"abc", b"def"])], VALUES)
    body = changed(batch, OFFSETS, struct.pack("<3i", 1, 3, 6))
    assert joined_values(body, batch) == [b"abc", b"def", b"bc", b"def"]


@pytest.mark.parametrize("offsets", [(-1, 3, 6), (0, 7, 6), (0, 3, 2**31 - 1), (0, -(2**31), 6)])
def test_offsets_that_lead_elsewhere_are_left_to_arrow(offsets):
    batch = pa.record_batch([pa.array([b"abc", b"def"])], VALUES)
    assert joined_values(changed(batch, OFFSETS, struct.pack("<3i", *offsets)), batch) is None


def test_nulls_that_are_not_counted_are_left_to_arrow():
    batch = pa.record_batch([pa.array([b"abc", None, b"def"])], VALUES)
    body = changed(batch, struct.pack("<qq", 3, 1), struct.pack("<qq", 3, 2))
    assert joined_values(body, batch) is None


def test_a_list_that_passes_over_the_first_element_is_left_to_arrow():
    batch = pa.record_batch([pa.array([[1, 2, 3], [4, 5, 6]], pa.list_(pa.int64()))], ["list"])
    body = changed(batch, OFFSETS, struct.pack("<3i", 1, 3, 6))
    assert joined_values(body, batch) is None


def test_no_room_is_made_for_what_a_message_only_claims():
    """A list of 2**31 - 1 elements, which are said to be there and none of them null."""
    columns = [pa.array([[1, None, 3], [4, 5, 6]], pa.list_(pa.int64()))]
    batch = pa.record_batch(columns, ["list"])
    encoded = bytes(changed(batch, OFFSETS, struct.pack("<3i", 0, 3, 2**31 - 1)))
    claimed = encoded.replace(struct.pack("<qq", 6, 1), struct.pack("<qq", 2**31 - 1, 0))
    assert claimed != encoded
    tracemalloc.start()
    try:
        assert joined_values(memoryview(claimed), batch) is None
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "kind",
    [
        pa.large_binary(),
        pa.binary_view(),
        pa.binary(2),
        pa.list_(pa.int8(), 2),
        pa.struct([pa.field("inner", pa.large_string())]),
    ],
)
@pytest.mark.parametrize("wanted", [None, {1}])
def test_other_types_are_left_to_arrow_even_where_they_are_not_wanted(kind, wanted):
    schema = pa.schema([pa.field("other", kind), pa.field("number", pa.int64())])
    batch = pa.record_batch([pa.nulls(2, kind), pa.array([1, 2])], schema)
    assert maybe_joined([batch, batch], schema, wanted) is None


def test_messages_of_another_schema_are_left_to_arrow():
    batch = pa.record_batch([pa.array([1]), pa.array([2])], ["a", "b"])
    fewer, more = pa.schema([batch.schema.field(0)]), batch.schema.append(pa.field("c", pa.int64()))
    assert maybe_joined([batch, batch], fewer) is None
    assert maybe_joined([batch, batch], more) is None


def test_text_that_is_none_is_refused():
    schema = StreamSchema.of(pa.schema([pa.field("name", pa.string())])).arrow
    batch = pa.record_batch([pa.array(["abcd"])], schema)
    with pytest.raises(pa.ArrowInvalid, match="UTF8"):
        joined_values(changed(batch, b"abcd", b"\xff\xff\xff\xff"), batch)
