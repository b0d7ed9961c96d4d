"""Columns by name onto those of another schema."""

import pyarrow as pa
import pytest

from sbp_core.errors import SchemaError
from sbp_core.records import map_columns


def required(name, kind):
    return pa.field(name, kind, nullable=False)


def mapped(array, kind, *, nullable=True):
    batch = pa.RecordBatch.from_arrays([array], names=["x"])
    found = map_columns(batch, pa.schema([pa.field("x", kind, nullable=nullable)]))
    found.validate(full=True)
    return found.column(0).to_pylist()


def test_equal_columns_are_not_copied():
    column = pa.array([[1, 2], [3]])
    batch = pa.RecordBatch.from_arrays([column], names=["x"])
    found = map_columns(batch, pa.schema([("y", pa.int8()), ("x", pa.list_(pa.int64()))]))
    assert found.column(1).values.buffers()[1].address == column.values.buffers()[1].address


def test_structs_are_mapped_by_name_too():
    inner = [{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}]
    array = pa.array(
        [inner, None, inner[:1]], pa.list_(pa.struct({"a": pa.int8(), "b": pa.string()}))
    )
    target = pa.struct({"b": pa.string(), "c": pa.date32(), "a": pa.int16()})
    for start in (0, 1, 2):
        assert mapped(array.slice(start), pa.list_(target)) == [
            None if rows is None else [None if row is None else {"c": None, **row} for row in rows]
            for rows in array.slice(start).to_pylist()
        ]


def test_structs_with_offsets_and_longer_children():
    child = pa.array([1, 2, 3, 4, 5], pa.int8())
    array = pa.Array.from_buffers(pa.struct({"a": pa.int8()}), 2, [None], 0, 1, [child])
    assert mapped(array, pa.struct({"a": pa.int64(), "b": pa.int8()})) == [
        {"a": 2, "b": None},
        {"a": 3, "b": None},
    ]


def test_maps_whose_entries_are_longer_than_they_need():
    entry = pa.struct([required("key", pa.string()), pa.field("value", pa.int8())])
    children = [pa.array(list("abcde")), pa.array([1, 2, 3], pa.int8())]
    entries = pa.Array.from_buffers(entry, 3, [None], 0, 0, children)
    offsets = pa.array([0, 1, 3], pa.int32()).buffers()[1]
    kind = pa.map_(pa.string(), pa.int8())
    array = pa.Array.from_buffers(kind, 2, [None, offsets], 0, 0, [entries])
    array.validate(full=True)
    assert mapped(array, pa.map_(pa.string(), pa.int16())) == [[("a", 1)], [("b", 2), ("c", 3)]]


@pytest.mark.parametrize(
    ("array", "kind", "words"),
    [
        (pa.array([1], pa.int64()), pa.int32(), "x is int64, which does not fit into int32"),
        (pa.array(["1"]), pa.int32(), "x is string, which does not fit into int32"),
        (pa.array([[1]]), pa.list_(pa.int8()), "x.element is int64, which does not fit into int8"),
        (
            pa.array([[(1, 1)]], pa.map_(pa.int8(), pa.int8())),
            pa.map_(pa.int16(), pa.int8()),
            "x is map<int8, int8>, which does not fit into map<int16, int8>",
        ),
        (
            pa.array([{"a": [("k", 1.0)]}], pa.struct({"a": pa.map_(pa.string(), pa.float64())})),
            pa.struct({"a": pa.map_(pa.string(), pa.float32())}),
            "x.a.value is float64, which does not fit into float32",
        ),
        (pa.array([1], pa.uint8()), pa.int64(), "x is uint8, which does not fit into int64"),
    ],
)
def test_types_that_do_not_widen(array, kind, words):
    with pytest.raises(SchemaError, match=words):
        mapped(array, kind)


def test_a_name_that_stands_there_twice_is_not_guessed():
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    with pytest.raises(SchemaError, match="column x occurs twice"):
        map_columns(batch, pa.schema([("x", pa.int64())]))


# Required columns and fields.

REQUIRED_STRUCT = pa.struct([required("a", pa.int8()), pa.field("b", pa.int8())])
LOOSE_STRUCT = pa.struct({"a": pa.int8(), "b": pa.int8()})


def test_a_required_column_must_have_values():
    with pytest.raises(SchemaError, match="column x is required, and 2 of 3 rows have none"):
        mapped(pa.array([1, None, None]), pa.int64(), nullable=False)
    assert mapped(pa.array([1, None, None]).slice(0, 1), pa.int64(), nullable=False) == [1]
    batch = pa.record_batch({"y": [1]})
    with pytest.raises(SchemaError, match="column x is required, and 1 of 1 rows have none"):
        map_columns(batch, pa.schema([required("x", pa.int8())]))
    assert map_columns(batch.slice(0, 0), pa.schema([required("x", pa.int8())])).num_rows == 0


@pytest.mark.parametrize(
    ("loose", "kind", "good", "bad", "place"),
    [
        (LOOSE_STRUCT, REQUIRED_STRUCT, {"a": 1, "b": None}, {"a": None, "b": 1}, "x.a"),
        (pa.struct({"b": pa.int8()}), REQUIRED_STRUCT, None, {"b": 1}, "x.a"),
        (
            pa.list_(pa.int8()),
            pa.list_(required("element", pa.int8())),
            [1],
            [1, None],
            "x.element",
        ),
        (
            pa.map_(pa.string(), pa.int8()),
            pa.map_(pa.string(), required("value", pa.int8())),
            [("k", 1)],
            [("k", None)],
            "x.value",
        ),
        (
            pa.map_(LOOSE_STRUCT, pa.int8()),
            pa.map_(REQUIRED_STRUCT, pa.int8()),
            [({"a": 1}, 1)],
            [({"a": None}, 1)],
            "x.key.a",
        ),
        (
            pa.list_(pa.struct({"s": LOOSE_STRUCT})),
            pa.list_(pa.struct({"s": REQUIRED_STRUCT})),
            [{"s": None}, None, {"s": {"a": 1}}],
            [{"s": {"a": None}}],
            "x.element.s.a",
        ),
    ],
)
def test_required_nested_fields_must_have_values(loose, kind, good, bad, place):
    if pa.types.is_map(kind) and kind.key_type != loose.key_type:
        loose = kind  # keys do not change, but Arrow builds null parts of them
    array = pa.array([good, None, bad], loose)
    assert len(mapped(array.slice(0, 2), kind)) == 2
    for start in (0, 1, 2):
        with pytest.raises(SchemaError, match=f"column {place} is required, and 1 of"):
            mapped(array.slice(start), kind)


@pytest.mark.parametrize(
    ("given", "target", "place"),
    [
        (pa.struct({"a": pa.int8(), "b": pa.int8()}), pa.struct({"a": pa.int64()}), "x.b"),
        (
            pa.list_(pa.struct({"a": pa.int8(), "b": pa.int8()})),
            pa.list_(pa.struct({"a": pa.int8()})),
            "x.element.b",
        ),
        (
            pa.map_(pa.string(), pa.struct({"a": pa.int8(), "b": pa.int8()})),
            pa.map_(pa.string(), pa.struct({"a": pa.int8()})),
            "x.value.b",
        ),
    ],
)
def test_nothing_is_left_out_unless_that_is_allowed(given, target, place):
    batch = pa.RecordBatch.from_arrays([pa.nulls(2, given)], ["x"])
    assert map_columns(batch, pa.schema({"x": target})).num_rows == 2
    with pytest.raises(SchemaError, match=f"column {place} has no place"):
        map_columns(batch, pa.schema({"x": target}), is_loss_allowed=False)
    wider = pa.schema({"new": pa.int8(), "x": given})
    assert map_columns(batch, wider, is_loss_allowed=False).schema == wider
    with pytest.raises(SchemaError, match="column x has no place"):
        map_columns(batch, pa.schema({"y": given}), is_loss_allowed=False)
