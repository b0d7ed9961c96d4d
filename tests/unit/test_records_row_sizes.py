"""Buffer of each row, exactly: its bytes in Arrow, with a bit for each value that may be null."""

import numpy as np
import pyarrow as pa
import pytest

from sbp_core.records import record_sizes
from sbp_core.records.arrow_body import row_ends


def sizes(array, kind=None):
    """Sizes of rows of one column, without the byte of null bits."""
    array = array if kind is None else pa.array(array, kind)
    return list(record_sizes(pa.RecordBatch.from_arrays([array], names=["x"])) - 1)


@pytest.mark.parametrize(
    ("kind", "value", "size"),
    [
        (pa.bool_(), True, 1),
        (pa.int8(), 1, 1),
        (pa.int16(), 1, 2),
        (pa.int32(), 1, 4),
        (pa.int64(), 1, 8),
        (pa.float32(), 1.0, 4),
        (pa.float64(), 1.0, 8),
        (pa.decimal128(5, 2), 1, 16),
        (pa.date32(), 1, 4),
        (pa.timestamp("us", tz="UTC"), 1, 8),
        (pa.timestamp("us"), 1, 8),
        (pa.duration("us"), 1, 8),
        (pa.time64("ns"), 1, 8),
    ],
)
def test_types_of_one_size(kind, value, size):
    assert sizes([value, None, value], kind) == [size] * 3
    assert sizes(pa.array([value] * 5, kind).slice(2, 2)) == [size] * 2
    assert sizes(pa.nulls(2, kind)) == [size] * 2
    assert sizes([], kind) == []


def test_strings_and_bytes():
    for kind, values in (
        (pa.string(), ["ä", None, "", "abc"]),
        (pa.binary(), [b"12", None, b"", b"abc"]),
    ):
        assert sizes(values, kind) == [6, 4, 4, 7]
        assert sizes(pa.array(values, kind).slice(1, 3)) == [4, 4, 7]
        assert sizes(pa.array(values, kind).slice(4)) == []
    assert sizes(pa.nulls(3, pa.string())) == [4, 4, 4]


def test_lists():
    """An element has a byte for its null bit."""
    values = pa.array([[1, 2], None, [], [3]], pa.list_(pa.int16()))
    assert sizes(values) == [10, 4, 4, 7]
    assert sizes(values.slice(2)) == [4, 7]
    assert sizes(values.slice(1, 2)) == [4, 4]
    assert sizes(pa.nulls(2, pa.list_(pa.int16()))) == [4, 4]


def test_lists_of_strings_in_lists():
    values = pa.array([[["ab"], []], None, [["c", "def"]]], pa.list_(pa.list_(pa.string())))
    first = 4 + (1 + 4 + (1 + 4 + 2)) + (1 + 4)
    last = 4 + (1 + 4 + (1 + 4 + 1) + (1 + 4 + 3))
    assert sizes(values) == [first, 4, last]
    assert sizes(values.slice(1)) == [4, last]
    assert sizes(values.slice(2)) == [last]


def test_maps():
    values = pa.array([[("k", 1), ("long", None)], None, []], pa.map_(pa.string(), pa.int64()))
    assert sizes(values) == [4 + (1 + 4 + 1 + 8) + (1 + 4 + 4 + 8), 4, 4]
    assert sizes(values.slice(1)) == [4, 4]


def test_maps_whose_entries_are_longer_than_they_need():
    entry = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.int8())])
    children = [pa.array(list("abcde")), pa.array([1, 2, 3], pa.int8())]
    entries = pa.Array.from_buffers(entry, 3, [None], 0, 0, children)
    offsets = pa.array([0, 1, 3], pa.int32()).buffers()[1]
    kind = pa.map_(pa.string(), pa.int8())
    array = pa.Array.from_buffers(kind, 2, [None, offsets], 0, 0, [entries])
    assert sizes(array) == [4 + 7, 4 + 7 * 2]


def test_structs():
    kind = pa.struct({"a": pa.int8(), "s": pa.string(), "l": pa.list_(pa.int8())})
    rows = [{"a": 1, "s": "xy", "l": [1]}, None, {"a": None, "s": "z", "l": []}]
    assert sizes(rows, kind) == [1 + 6 + 6, 9, 1 + 5 + 4]
    assert sizes(pa.array(rows, kind).slice(1)) == [9, 10]
    outer = pa.array([{"o": row} for row in rows], pa.struct({"o": kind}))
    assert sizes(outer.slice(2)) == [10]


def test_structs_with_offsets_of_their_own():
    children = [pa.array(["a", "bb", "ccc", "dddd"]), pa.array([1, 2, 3, 4, 5], pa.int8())]
    kind = pa.struct({"a": pa.string(), "b": pa.int8()})
    array = pa.Array.from_buffers(kind, 2, [None], 0, 1, children)
    assert sizes(array) == [4 + 2 + 1, 4 + 3 + 1]
    assert sizes(array.slice(1)) == [4 + 3 + 1]


def test_eight_columns_share_a_byte_of_null_bits():
    for count, null_bytes in ((1, 1), (8, 1), (9, 2), (900, 113)):
        batch = pa.record_batch({f"c{index}": pa.nulls(3, pa.int8()) for index in range(count)})
        assert list(record_sizes(batch)) == [count + null_bytes] * 3
    inner = pa.struct({f"c{index}": pa.int8() for index in range(8)})
    assert sizes([[{}, {}]], pa.list_(inner)) == [4 + 2 * (8 + 2)]
    assert list(record_sizes(pa.record_batch({"x": pa.nulls(1, inner)}))) == [8 + 2]


def test_buffers_may_be_longer_than_they_need():
    offsets = pa.py_buffer(np.array([0, 1, 3], np.int32).tobytes() + b"\xff" * 3)
    array = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"abc")])
    assert sizes(array) == [5, 6]


def test_ends_never_fall_and_count_from_any_number():
    batch = pa.record_batch({"x": ["a", "bcd", None], "y": [[1], [], [2, 3]]})
    ends = row_ends(batch.slice(1))
    assert list(np.diff(ends)) == list(record_sizes(batch))[1:]
    assert len(row_ends(batch.slice(3))) == 1
