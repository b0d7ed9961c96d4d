"""Changes that a schema allows, and the errors for those that it does not."""

import pyarrow as pa
import pytest

from sbp_core import limits
from sbp_core.errors import SchemaError
from sbp_core.records import (
    Change,
    StreamSchema,
    check_evolution,
    compare_schemas,
    merge_schemas,
    schema_text,
    union_schemas,
    with_logical_type,
)


def of(*fields):
    return StreamSchema.of(pa.schema(list(fields)))


def required(name, kind):
    return pa.field(name, kind, nullable=False)


def only(kind, *, nullable=True):
    return of(pa.field("x", kind, nullable=nullable))


def compared(old, new):
    found = compare_schemas(old, new)
    return schema_text(found.merged.arrow), [str(each) for each in found.differences]


BASE = of(required("id", pa.int64()), pa.field("name", pa.string()), ("price", pa.decimal128(9, 2)))


def test_a_required_column_may_not_be_left_out():
    given = of(("name", pa.string()))
    _, differences = compared(BASE, given)
    assert differences == ["! column id int64 not null is missing; it is required"]
    with pytest.raises(SchemaError, match="column id int64 not null is missing; it is required"):
        merge_schemas(BASE, given)


def test_a_required_column_may_become_one_that_may_be_null():
    given = of(("id", pa.int64()))
    found = compare_schemas(BASE, given)
    assert [each.change for each in found.differences] == [Change.RELAXED]
    assert str(found.differences[0]) == "? column id may have nulls; the stream requires a value"
    assert found.merged.arrow.field("id").nullable
    check_evolution(BASE, found.merged)
    assert compare_schemas(found.merged, BASE).differences == ()


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        (pa.int8(), pa.int16()),
        (pa.int8(), pa.int64()),
        (pa.int32(), pa.int64()),
        (pa.float32(), pa.float64()),
        (pa.decimal128(9, 2), pa.decimal128(10, 2)),
        (pa.decimal128(9, 2), pa.decimal128(38, 31)),
        (pa.list_(pa.int8()), pa.list_(pa.int16())),
        (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int16())),
        (pa.struct({"a": pa.float32()}), pa.struct({"a": pa.float64()})),
        (pa.struct({"a": pa.int8()}), pa.struct({"a": pa.int8(), "b": pa.int8()})),
        (pa.list_(required("element", pa.int8())), pa.list_(pa.int8())),
        (pa.map_(pa.string(), required("value", pa.int8())), pa.map_(pa.string(), pa.int8())),
        (pa.struct([required("a", pa.int8())]), pa.struct({"a": pa.int8()})),
    ],
)
def test_types_widen_and_narrow_ones_fit(narrow, wide):
    assert merge_schemas(only(narrow), only(wide)) == only(wide)
    assert merge_schemas(only(wide), only(narrow)) == only(wide)
    assert compare_schemas(only(narrow), only(wide)).differences
    assert not compare_schemas(only(wide), only(narrow)).differences
    check_evolution(only(narrow), only(wide))
    with pytest.raises(SchemaError, match=r"column is missing|expected x .*, found x"):
        check_evolution(only(wide), only(narrow))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (pa.int32(), pa.float64(), "is float64; the stream has int32"),
        (pa.int64(), pa.string(), "is string; the stream has int64"),
        (pa.string(), pa.binary(), "is binary; the stream has string"),
        (pa.timestamp("us"), pa.timestamp("us", tz="UTC"), "is timestamp; the stream has"),
        (pa.int32(), pa.decimal128(10, 0), "is decimal(10, 0); the stream has int32"),
        (pa.decimal128(38, 0), pa.decimal128(2, 1), "is decimal(2, 1); the stream has"),
        (pa.list_(pa.int8()), pa.int8(), "is int8; the stream has list<int8>"),
        (pa.map_(pa.int8(), pa.int8()), pa.map_(pa.int16(), pa.int8()), "is map<int16, int8>"),
        (pa.map_(pa.int8(), pa.int8()), pa.list_(pa.int8()), "is list<int8>; the stream has map"),
    ],
)
def test_types_that_do_not_go_together(old, new, words):
    for first, second in ((only(old), only(new)), (nested(old), nested(new))):
        with pytest.raises(SchemaError) as caught:
            merge_schemas(first, second)
        head, fault = str(caught.value).split("\n")
        assert head == "this does not fit the stream's schema:"
        assert words in fault
        assert fault.endswith("cast it")
        with pytest.raises(SchemaError):
            check_evolution(first, second)
        with pytest.raises(SchemaError, match="do not go together"):
            union_schemas([first, second])


def nested(kind):
    return only(pa.list_(pa.map_(pa.string(), pa.struct({"y": kind}))))


def test_a_nested_field_is_named_by_its_path():
    _, differences = compared(nested(pa.int8()), nested(pa.int64()))
    assert differences == ["~ column x.element.value.y widens from int8 to int64"]
    old = only(pa.list_(pa.struct([required("a b", pa.int8())])))
    new = only(pa.list_(pa.struct([pa.field("c", pa.int8())])))
    _, differences = compared(old, new)
    assert differences == [
        '! column x.element."a b" int8 not null is missing; it is required',
        "+ column x.element.c int8 is new",
    ]


def test_all_faults_are_reported_at_once():
    given = of(("NAME", pa.string()), ("price", pa.string()), ("more", pa.int8()))
    with pytest.raises(SchemaError) as caught:
        merge_schemas(BASE, given)
    assert str(caught.value).split("\n") == [
        "this does not fit the stream's schema:",
        "  - column id int64 not null is missing; it is required",
        "  - column price is string; the stream has decimal(9, 2): cast it",
        "  - column NAME differs from name by case only: rename it",
    ]


@pytest.mark.parametrize(
    ("new", "words"),
    [
        (of(*reversed(list(BASE.arrow))), "expected id int64 not null, found price decimal"),
        (of(*list(BASE.arrow)[:2]), "column price decimal(9, 2) is missing"),
        (of(*BASE.arrow, required("new", pa.int8())), "expected new int8, found new int8 not null"),
        (of(("new", pa.int8()), *BASE.arrow), "expected id int64 not null, found new int8"),
    ],
)
def test_some_changes_are_refused_although_the_rows_would_fit(new, words):
    merge_schemas(BASE, new)
    with pytest.raises(SchemaError) as caught:
        check_evolution(BASE, new)
    assert words in str(caught.value)


def test_a_union_has_the_columns_of_all():
    other = of(("extra", pa.int8()), ("name", pa.string()), ("id", pa.int8()))
    union = union_schemas([BASE, of(required("id", pa.int8()), required("z", pa.int8())), other])
    assert schema_text(union.arrow) == (
        "id int64, name string, price decimal(9, 2), z int8, extra int8"
    )
    assert schema_text(union_schemas([BASE, of(("name", pa.string()))]).arrow).startswith(
        "id int64,"
    )


def test_nested_fields_that_cannot_be_merged_count_too():
    count = limits.SCHEMA_FIELDS_MAX - 1
    first = of(("s", pa.struct({f"a{index}": pa.int8() for index in range(count)})))
    second = of(("s", pa.struct({"b": pa.int8()})))
    with pytest.raises(SchemaError, match="10001 columns with all that are in them; at most 10000"):
        merge_schemas(first, second)


def logical(kind, text, name="x"):
    return with_logical_type(pa.field(name, kind), text)


DAYS, HOURS = (logical(pa.duration("us"), f"interval {unit}") for unit in ("day", "hour"))
SPAN = pa.field("x", pa.duration("us"))


def inside(field):
    element = field.with_name("element")
    return [
        field,
        pa.field("x", pa.list_(element)),
        pa.field("x", pa.struct([field])),
        pa.field("x", pa.map_(pa.string(), field.with_name("value"))),
        pa.field("x", pa.map_(field.with_name("key").with_nullable(False), pa.int8())),
    ]


PLACES = range(5)


@pytest.mark.parametrize("place", PLACES)
def test_a_field_without_a_logical_type_takes_all_of_them(place):
    plain, days = (of(inside(field)[place]) for field in (SPAN, DAYS))
    found = compare_schemas(plain, days)
    assert (found.merged, found.differences) == (plain, ())
    with pytest.raises(SchemaError, match="does not go on from the one before"):
        check_evolution(plain, days)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("other", [SPAN, HOURS])
def test_a_field_loses_a_logical_type_that_others_have_not(place, other):
    plain, days, given = (of(inside(field)[place]) for field in (SPAN, DAYS, other))
    found = compare_schemas(days, given)
    assert found.merged == plain
    (difference,) = found.differences
    assert difference.change is Change.WIDENED
    assert 'widens from duration as "interval day" to duration' in difference.text
    check_evolution(days, found.merged)
    assert union_schemas([days, given]) == union_schemas([given, days]) == plain


@pytest.mark.parametrize("place", PLACES)
def test_the_same_logical_type_stays(place):
    days = of(inside(DAYS)[place])
    assert compare_schemas(days, days).differences == ()
    given = of(inside(DAYS)[place], ("new", pa.int8()))
    assert compared(days, given)[1] == ["+ column new int8 is new"]
    assert (
        merge_schemas(days, given)
        .arrow.field("x")
        .equals(days.arrow.field("x"), check_metadata=True)
    )


def test_another_type_is_named_alone():
    _, differences = compared(of(DAYS), only(pa.int64()))
    assert differences == ["! column x is int64; the stream has duration: cast it"]
    small, large = (of(logical(kind, "count")) for kind in (pa.int32(), pa.int64()))
    assert compared(small, large) == (
        'x int64 as "count"',
        ["~ column x widens from int32 to int64"],
    )
