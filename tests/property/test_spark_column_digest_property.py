"""The digest of typed rows depends on their values only, not on batches, order or types."""

from functools import reduce

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp_core.records import StreamSchema, map_columns
from sbp_spark.writing.digest import digest_of_columns, join_digests

SCHEMA = pa.schema(
    {
        "flag": pa.bool_(),
        "small": pa.int8(),
        "number": pa.int32(),
        "rate": pa.float32(),
        "amount": pa.decimal128(12, 2),
        "word": pa.string(),
        "bytes": pa.binary(),
        "day": pa.date32(),
        "at": pa.timestamp("us", tz="UTC"),
        "span": pa.duration("us"),
        "time": pa.time64("ns"),
        "list": pa.list_(pa.int16()),
        "map": pa.map_(pa.string(), pa.int8()),
        "struct": pa.struct({"x": pa.int8(), "y": pa.list_(pa.struct({"z": pa.string()}))}),
    }
)
GROWN = pa.schema(
    {
        "new": pa.string(),
        "struct": pa.struct(
            {
                "added": pa.int64(),
                "y": pa.list_(pa.struct({"more": pa.binary(), "z": pa.string()})),
                "x": pa.int64(),
            }
        ),
        **{name: SCHEMA.field(name).type for name in SCHEMA.names if name != "struct"},
        "small": pa.int64(),
        "number": pa.int64(),
        "rate": pa.float64(),
        "amount": pa.decimal128(38, 9),
        "list": pa.list_(pa.int64()),
        "map": pa.map_(pa.string(), pa.int32()),
    }
)

tiny = st.integers(-128, 127)
texts = st.text("ab\0é", max_size=12)
items = st.fixed_dictionaries({"z": st.none() | texts})
values = {
    "flag": st.booleans(),
    "small": tiny,
    "number": st.integers(-(2**31), 2**31 - 1),
    "rate": st.floats(width=32, allow_nan=False),
    "amount": st.decimals("-9999999999.99", "9999999999.99", places=2),
    "word": texts,
    "bytes": st.binary(max_size=80),
    "day": st.integers(-700_000, 2_900_000),
    "at": st.integers(-(2**50), 2**50),
    "span": st.integers(-(2**50), 2**50),
    "time": st.integers(0, 86_399_999_999).map(lambda us: us * 1_000),  # as Python's have
    "list": st.lists(st.none() | tiny, max_size=4),
    "map": st.lists(st.tuples(texts, st.none() | tiny), max_size=3),
    "struct": st.fixed_dictionaries(
        {"x": st.none() | tiny, "y": st.none() | st.lists(st.none() | items, max_size=3)}
    ),
}
rows = st.fixed_dictionaries({name: st.none() | value for name, value in values.items()})
many_rows = st.lists(rows, max_size=5)


def batch_of(given_rows):
    columns = [
        pa.array([row[field.name] for row in given_rows], pa.int32()).cast(field.type)
        if field.name == "day"
        else pa.array([row[field.name] for row in given_rows], field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def digest(given_rows):
    return digest_of_columns(batch_of(given_rows), 7)


def told(given_rows):
    """Return the rows as sorted text, with one form for equal numbers."""
    found = batch_of(given_rows).to_pylist()
    return sorted(repr(row).replace("-0.0", "0.0") for row in found)


@given(many_rows, st.randoms(use_true_random=False), st.integers(0, 5))
def test_neither_order_nor_division_counts(given_rows, random, cut):
    shuffled = list(given_rows)
    random.shuffle(shuffled)
    whole = digest(given_rows)
    assert join_digests(digest(shuffled[:cut]), digest(shuffled[cut:])) == whole
    assert reduce(join_digests, (digest([row]) for row in given_rows), 0) == whole
    batch = batch_of(shuffled)
    sliced = (digest_of_columns(part, 7) for part in (batch[:cut], batch[cut:]))
    assert join_digests(*sliced) == whole


@given(many_rows, st.randoms(use_true_random=False))
def test_neither_the_order_of_columns_counts_nor_how_the_schema_grows(given_rows, random):
    batch = batch_of(given_rows)
    names = list(SCHEMA.names)
    random.shuffle(names)
    assert digest_of_columns(batch.select(names), 7) == digest_of_columns(batch, 7)
    grown = map_columns(batch, StreamSchema.of(GROWN).arrow)
    assert digest_of_columns(grown, 7) == digest_of_columns(batch, 7)


@given(rows, st.data())
def test_every_value_counts(row, data):
    name = data.draw(st.sampled_from(SCHEMA.names))
    changed = {**row, name: data.draw(st.none() | values[name])}
    assert (digest([row]) == digest([changed])) == (told([row]) == told([changed]))
    assert digest([row, changed]) != digest([row])


@settings(max_examples=30)
@given(rows, rows)
def test_values_that_two_rows_swap_make_a_difference(first, second):
    both = [first, second]
    for name in SCHEMA.names:
        swapped = [{**first, name: second[name]}, {**second, name: first[name]}]
        assert (digest(swapped) == digest(both)) == (told(swapped) == told(both))


def test_the_same_value_in_another_column_or_stream_is_another_row():
    one = pa.record_batch({"a": pa.array([5]), "b": pa.array([None], pa.int64())})
    other = one.rename_columns(["b", "a"])
    assert digest_of_columns(one, 7) != digest_of_columns(other, 7)
    assert digest_of_columns(one, 7) != digest_of_columns(one, 8)
    both = pa.concat_batches([one, one])
    apart = digest_of_columns(both, np.array([7, 8]))
    assert apart == join_digests(digest_of_columns(one, 7), digest_of_columns(one, 8))


def test_numbers_that_are_equal_have_one_hash():
    def of(array):
        return digest_of_columns(pa.record_batch({"n": array}), 0)

    nans = np.array([0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)
    assert of(pa.array(nans[:1])) == of(pa.array(nans[1:])) == of(pa.array([float("nan")]))
    assert of(pa.array([0.0])) == of(pa.array([-0.0])) != of(pa.array([1.0]))
    extremes = [10**37, 10**37 + 1, -(10**37), -1, 1, 0, 2**64, 2**63, -(2**64)]
    assert len({of(pa.array([n], pa.decimal128(38, 0))) for n in extremes}) == len(extremes)
    assert len({of(pa.array([1], pa.decimal128(20, scale))) for scale in (0, 5, 19)}) == 1


def test_values_outside_slices_or_under_nulls_do_not_count():
    hiding = pa.Array.from_buffers(pa.int64(), 1, [pa.py_buffer(b"\0"), pa.py_buffer(b"\1" * 8)])
    null = pa.record_batch({"n": pa.array([None], pa.int64())})
    assert digest_of_columns(pa.record_batch({"n": hiding}), 7) == digest_of_columns(null, 7)
    mask = pa.array([True, False])
    structs = pa.StructArray.from_arrays([pa.array([1, 2])], names=["x"], mask=mask)
    lists = pa.array([[1, 2], None, [3]])
    whole = pa.record_batch({"s": structs, "l": lists[1:]})
    copied = pa.RecordBatch.from_pylist(whole.to_pylist(), schema=whole.schema)
    assert digest_of_columns(whole, 7) == digest_of_columns(copied, 7)
    assert digest_of_columns(whole[1:], 7) == digest_of_columns(copied[1:], 7)
