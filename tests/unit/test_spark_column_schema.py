"""DataFrames as schemas of streams: which columns there may be, and which options name."""

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    CalendarIntervalType,
    CharType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    GeographyType,
    GeometryType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
    UserDefinedType,
    VarcharType,
    VariantType,
    YearMonthIntervalType,
)

from sbp_core.errors import ConfigurationError
from sbp_spark.column_schema import METADATA_FIELD, without_metadata, written_columns
from sbp_spark.logical_types import logical_spark_schema
from sbp_spark.options.sink_targets import ColumnOptions
from sbp_spark.spark_internals import CHAR_VARCHAR_KEY


class Point(UserDefinedType):
    """A type of a user's own, whose values are stored as another one."""

    @classmethod
    def sqlType(cls):  # noqa: N802
        return ArrayType(DoubleType(), containsNull=False)


def columns(**types):
    return StructType([StructField(name, kind) for name, kind in types.items()])


def faults(schema, **options):
    with pytest.raises(ConfigurationError) as caught:
        written_columns(schema, ColumnOptions(**options))
    head, *lines = str(caught.value).splitlines()
    assert head == "the sbp sink cannot write these columns:"
    return [line.removeprefix("  - ") for line in lines]


def test_types_that_both_have():
    schema = columns(
        tiny=ByteType(),
        amount=DecimalType(20, 3),
        at=TimestampType(),
        wall=TimestampNTZType(),
        span=DayTimeIntervalType(),
        time=TimeType(6),
        nested=MapType(StringType(), columns(x=ArrayType(BinaryType()))),
    )
    schema.fields[0].nullable = False
    found = written_columns(schema, ColumnOptions()).arrow
    assert found.field("at").type == pa.timestamp("us", tz="UTC")
    assert found.field("time").type == pa.time64("ns")
    assert not found.field("tiny").nullable
    assert found.names == schema.names


def test_char_and_varchar_are_kept_as_spark_notes_them():
    deep = StructType([StructField("y", VarcharType(3), False)])
    written = written_columns(columns(fixed=CharType(3), deep=ArrayType(deep)), ColumnOptions())
    fixed, nested = logical_spark_schema(written.arrow)
    assert (fixed.dataType, fixed.metadata[CHAR_VARCHAR_KEY]) == (StringType(), "char(3)")
    assert nested.dataType == ArrayType(StructType([StructField("y", StringType(), False)]))
    assert nested.metadata[CHAR_VARCHAR_KEY] == "array<struct<y:varchar(3)>>"


def test_all_that_cannot_be_is_named_with_its_remedy():
    schema = columns(
        any=VariantType(),
        where=GeometryType(4326),
        there=GeographyType(4326),
        months=YearMonthIntervalType(),
        interval=CalendarIntervalType(),
        nothing=NullType(),
        deep=columns(x=ArrayType(MapType(StringType(), VariantType()))),
        own=Point(),
        fine=LongType(),
        Fine=LongType(),
    )
    lines = faults(schema, timestamp_column="fine")
    assert [line.split(" ")[:2] for line in lines[:-2]] == [
        ["column", name]
        for name in (
            *["any", "where", "there", "months", "interval", "nothing"],
            *["deep.x.element.value", "own"],
        )
    ]
    assert all("; " in line or ": " in line for line in lines)
    assert "cast it to the type that it is to have" in lines[5]
    assert "column Fine differs from fine by case only" in lines[-2]
    assert "timestampColumn names fine, which has type bigint; expected a timestamp" in lines[-1]


@pytest.mark.parametrize("names", [["stream", "offset"], ["timestamp"], None])
def test_metadata_columns_of_a_source_are_left_out(names):
    kind = METADATA_FIELD.dataType
    some = StructType([field for field in kind if names is None or field.name in names])
    schema = columns(a=LongType(), _metadata=some, b=LongType())
    assert without_metadata(schema) == columns(a=LongType(), b=LongType())


@pytest.mark.parametrize(
    "kind",
    [
        StringType(),
        StructType([StructField("offset", StringType())]),
        StructType([StructField("offset", LongType()), StructField("file_path", StringType())]),
    ],
)
@pytest.mark.parametrize("name", ["_metadata", "_Metadata"])
def test_a_column_of_that_name_that_is_another_one_is_never_dropped(name, kind):
    schema = columns(**{"a": LongType(), name: kind})
    assert without_metadata(schema) == schema
    (line,) = faults(schema)
    assert line.startswith(f"column {name} has the name of the column that a source adds")
    assert "rename it, or drop it" in line


def test_there_has_to_be_a_column():
    source = StructType([METADATA_FIELD])
    assert faults(without_metadata(source)) == ["there is no column"]
    assert len(faults(columns(only=NullType()))) == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"routing_column": "accuont"},
            "routingColumn names accuont, which is no column; did you mean Account?",
        ),
        ({"routing_column": "zzz"}, "there are Account, rate, at, wall"),
        ({"routing_column": "rate"}, "has type double; expected a string, binary, integer"),
        ({"timestamp_column": "wall"}, "has type timestamp_ntz; expected a timestamp with a time"),
    ],
)
def test_options_name_columns_that_are_there(options, told):
    schema = columns(
        Account=IntegerType(),
        rate=DoubleType(),
        at=TimestampType(),
        wall=TimestampNTZType(),
    )
    (line,) = faults(schema, **options)
    assert told in line
    written_columns(schema, ColumnOptions(routing_column="Account", timestamp_column="at"))


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("idd", "statsColumns: column idd does not exist; did you mean id?"),
        ("zzz", "statsColumns: column zzz does not exist; there are id, place, a.b, tags, opens"),
        ("Place.cty", "column place.cty does not exist; did you mean place.City?"),
        ("id.x", "column id.x does not exist: id is no struct"),
        ("a.b", "names a.b, which has a dot in its name"),
        ("`A.b`", "names `A.b`, which has a dot in its name"),
        ("TAGS", "names tags, which has type array<bigint> and no statistics"),
        ("opens", "names opens, which has type time(6) and no statistics"),
    ],
)
def test_columns_that_can_have_no_statistics_are_named(path, told):
    schema = columns(
        **{
            "id": LongType(),
            "place": columns(City=StringType()),
            "a.b": LongType(),
            "tags": ArrayType(LongType()),
            "opens": TimeType(6),
        }
    )
    (line,) = faults(schema, stats_columns=("id", path))
    assert told in line
    written_columns(schema, ColumnOptions(stats_columns=("ID", "PLACE.city")))
