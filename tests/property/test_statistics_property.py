"""Statistics never rule out a batch that has a matching row; order keys compare as values do."""

import math
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sbp_core import filter_limits, limits
from sbp_core.records import (
    ColumnBounds,
    encode_statistics,
    may_match,
    maybe_statistics_type,
    order_key,
)
from sbp_core.records.order_keys import has_order
from tests.support.clock import examples
from tests.support.data.typed import PLAIN_TYPES, column_values, decimals, values

EXAMPLES = settings(deadline=None, max_examples=examples(100))
KINDS = st.sampled_from(PLAIN_TYPES) | decimals()
LONG = {
    pa.string(): st.text(st.characters(codec="utf-8"), max_size=40),
    pa.binary(): st.binary(max_size=40) | st.integers(30, 40).map(lambda size: b"\xff" * size),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
}


def orderly(kind):
    """Values of a type, those that are hard to compare included."""
    return LONG[kind] if kind in LONG else values(kind)


def rank(value):
    """What Spark compares values by: NaN is the largest number, and equal to itself."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return value.encode() if isinstance(value, str) else value


@st.composite
def pairs(draw):
    kind = draw(KINDS)
    return kind, draw(orderly(kind)), draw(orderly(kind))


@given(pairs())
@EXAMPLES
def test_keys_compare_as_values(pair):
    kind, one, other = pair
    keys = order_key(one, kind), order_key(other, kind)
    assert (keys[0] < keys[1]) == (rank(one) < rank(other))
    assert (keys[0] == keys[1]) == (rank(one) == rank(other))


@st.composite
def searches(draw):
    """A column, in a struct or not, and bounds that are keys of some values of its type."""
    kind = draw(KINDS)
    made = draw(st.lists(st.none() | orderly(kind), max_size=6))
    array = pa.array(made, kind)
    bounds = draw(st.tuples(st.none() | orderly(kind), st.none() | orderly(kind), st.booleans()))
    start = draw(st.integers(0, len(array)))
    mask = draw(st.lists(st.booleans(), min_size=len(array), max_size=len(array)))
    return array, start, bounds, mask if draw(st.booleans()) else None


@given(searches())
@EXAMPLES
def test_no_matching_row_is_ruled_out(search):
    array, start, (least, most, takes_null), mask = search
    kind, name, column = array.type, "a", array
    if mask is not None:
        column = pa.StructArray.from_arrays([array], ["b"], mask=pa.array(mask, pa.bool_()))
        name = "a.b"
    batch = pa.RecordBatch.from_arrays([column], ["a"]).slice(start)
    found = column_values(array)
    if mask is not None:
        found = [None if hidden else value for value, hidden in zip(found, mask, strict=True)]
    keys = [None if value is None else order_key(value, kind) for value in found[start:]]
    lowest, highest = (None if each is None else order_key(each, kind) for each in (least, most))
    bounds = ColumnBounds(name, lowest, highest, takes_null)

    def is_wanted(key):
        if key is None:
            return takes_null
        return (lowest is None or key >= lowest) and (highest is None or key <= highest)

    text = encode_statistics(batch, ["other", name])
    is_wanting = may_match(text, [bounds])
    assert is_wanting >= any(map(is_wanted, keys))
    known = [key for key in keys if key is not None]
    if known and max(map(len, known)) <= filter_limits.KEY_BYTES_MAX:  # none was shortened
        has_nan = pa.types.is_floating(kind) and order_key(math.nan, kind) in known
        is_high = lowest is None or has_nan or max(known) >= lowest
        is_low = highest is None or min(known) <= highest
        assert is_wanting == ((is_high and is_low) or (takes_null and None in keys))
    other = ColumnBounds("other", b"", None, takes_null=False)
    assert may_match(text, [other, bounds]) == is_wanting


@given(st.data())
@EXAMPLES
def test_damaged_statistics_rule_nothing_out(data):
    batch = pa.record_batch({"a": pa.array([1, 2], pa.int64())})
    text = encode_statistics(batch, ["a"])
    nothing = [ColumnBounds("a", order_key(3, pa.int64()), None, False)]
    assert not may_match(text, nothing)
    at = data.draw(st.integers(0, len(text)))
    damaged = text[:at] + data.draw(st.text(max_size=3)) + text[at + data.draw(st.integers(0, 3)) :]
    assume(damaged != text)
    assert may_match(damaged, nothing)


def test_columns_without_order_or_room_are_left_out():
    long_name = "c" * limits.SCHEMA_NAME_BYTES_MAX
    one = pa.array([1], pa.int64())
    columns = {"list": pa.array([[1]]), "a.b": one, "struct": pa.array([{"a.b": 1}]), "last": one}
    columns |= {f"{at}{long_name}"[: len(long_name)]: one for at in range(9)}
    batch = pa.record_batch(columns)
    text = encode_statistics(batch, [*columns, "struct.a.b", "missing"])
    assert len(text) <= filter_limits.STATISTICS_LENGTH_MAX
    above = order_key(2, pa.int64())

    def has_statistics(name):
        return not may_match(text, [ColumnBounds(name, above, None, False)])

    assert [has_statistics(name) for name in columns] == [False] * 3 + [True] * 3 + [False] * 7
    assert encode_statistics(batch, ["list", "missing"]) is None
    assert maybe_statistics_type(batch.schema, "a.b") is None


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (2**63, pa.int8()),
        (1.5, pa.int64()),
        ("one", pa.int64()),
        ("one", pa.float64()),
        (Decimal("0.125"), pa.decimal128(10, 2)),
        (Decimal("1e99999999"), pa.decimal128(10, 2)),
        (Decimal("NaN"), pa.decimal128(10, 2)),
        (10**38, pa.decimal128(10, 2)),
        (1, pa.string()),
    ],
)
def test_values_that_have_no_key_are_refused(value, kind):
    with pytest.raises(ValueError, match=f"is no value of type {kind.__str__().split('(')[0]}"):
        order_key(value, kind)


def test_only_plain_types_have_an_order():
    assert all(map(has_order, PLAIN_TYPES))
    nested = pa.list_(pa.int8())
    assert not has_order(nested)
    assert order_key([1], nested) is None
