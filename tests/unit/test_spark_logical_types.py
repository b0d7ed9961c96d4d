"""Spark's types in the schemas of streams, and back: each is kept, or is refused by name."""

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.ml.linalg import MatrixUDT, VectorUDT
from pyspark.mllib.linalg import VectorUDT as OldVectorUDT
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)

from sbp_core.errors import ConfigurationError, SchemaError
from sbp_core.records import (
    StreamSchema,
    decode_envelope,
    decode_stream_schema,
    encode_columns,
    with_logical_type,
)
from sbp_spark.column_schema import written_columns
from sbp_spark.logical_types import is_kept_by_arrow, logical_arrow_schema, logical_spark_schema
from sbp_spark.options.endpoints import Servers
from sbp_spark.options.sink_targets import ColumnOptions
from sbp_spark.reading.layout import ColumnsLayout
from sbp_spark.reading.partition_planning import StreamSpan
from sbp_spark.reading.schema_versions import SchemaVersions
from sbp_spark.row_schema import as_wide, check_selection
from sbp_spark.spark_internals import CHAR_VARCHAR_KEY
from tests.support.data.typed import rows_in, versions_of

INTERVALS = [DayTimeIntervalType(first, last) for first in range(4) for last in range(first, 4)]
TIMES = [TimeType(precision) for precision in range(10)]
STRINGS = [StringType(name) for name in ("UTF8_BINARY", "UTF8_LCASE", "UNICODE", "sr_Cyrl_CI_AI")]
USER_DEFINED = [VectorUDT(), MatrixUDT(), OldVectorUDT()]
PLAIN = [
    *[BooleanType(), ByteType(), ShortType(), IntegerType(), LongType(), FloatType()],
    *[DoubleType(), DecimalType(1, 0), DecimalType(38, 18), BinaryType(), DateType()],
    *[TimestampType(), TimestampNTZType()],
]
SIMPLE = st.sampled_from([*INTERVALS, *TIMES, *STRINGS, *USER_DEFINED, *PLAIN])
NAMES = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=3, unique=True)


@st.composite
def structs(draw, inner):
    return StructType([StructField(name, draw(inner), draw(st.booleans())) for name in draw(NAMES)])


KINDS = st.recursive(
    SIMPLE,
    lambda inner: (
        st.builds(ArrayType, inner, st.booleans())
        | st.builds(MapType, inner, inner, st.booleans())
        | structs(inner)
    ),
    max_leaves=6,
)


def stored(schema):
    """The schema of the columns as a placement driver stores it."""
    return decode_stream_schema(written_columns(schema, ColumnOptions()).encode())


def column(kind, metadata=None):
    return StructType([StructField("x", kind, metadata=metadata)])


@given(structs(KINDS))
def test_every_type_comes_back_as_it_was(schema):
    assert logical_spark_schema(stored(schema).arrow) == schema


@pytest.mark.parametrize("kind", [*INTERVALS, *TIMES, *STRINGS], ids=str)
def test_a_type_fits_into_itself_and_into_the_widest(kind):
    family = next(each for each in (INTERVALS, TIMES, STRINGS) if kind in each)
    widest = {id(INTERVALS): DayTimeIntervalType(), id(TIMES): TimeType(9)}
    for wanted in family:
        is_fitting = wanted in (kind, widest.get(id(family), StringType()))
        faults = list(as_wide(StructField("x", wanted), StructField("x", kind), ""))
        assert (not faults) == is_fitting, wanted


def test_a_vector_is_read_as_the_struct_that_it_is():
    check_selection(column(VectorUDT().sqlType()), column(VectorUDT()), check=as_wide)
    with pytest.raises(ConfigurationError, match="expected x struct"):
        check_selection(column(VectorUDT()), column(VectorUDT().sqlType()), check=as_wide)


@pytest.mark.parametrize("text", ["char(5)", "varchar(70)", "array<struct<y:varchar(3)>>"])
def test_char_and_varchar_are_strings_of_which_spark_keeps_more(text):
    kind = StringType() if "<" not in text else ArrayType(column(StringType()))
    found = logical_spark_schema(stored(column(kind, {CHAR_VARCHAR_KEY: text})).arrow)
    assert [(each.dataType, each.metadata) for each in found] == [(kind, {CHAR_VARCHAR_KEY: text})]


@pytest.mark.parametrize(
    ("arrow", "kind"),
    [
        (pa.string(), StringType()),
        (pa.duration("us"), DayTimeIntervalType()),
        (pa.time64("ns"), TimeType(9)),
    ],
)
@pytest.mark.parametrize(
    "text", [None, "decimal(9,2)", "time(10)", "interval second to day", "unknown"]
)
def test_a_schema_without_a_logical_type_that_is_known_is_read_as_arrow_has_it(arrow, kind, text):
    schema = StreamSchema.of(pa.schema([with_logical_type(pa.field("x", arrow), text)]))
    assert logical_spark_schema(schema.arrow) == column(kind)


@pytest.mark.parametrize(
    "text",
    ["time(0)", "string collate UNICODE", "interval day", "org.apache.spark.ml.linalg.VectorUDT"],
)
def test_a_logical_type_of_another_type_in_arrow_counts_for_nothing(text):
    schema = StreamSchema.of(pa.schema([with_logical_type(pa.field("x", pa.int8()), text)]))
    assert logical_spark_schema(schema.arrow) == column(ByteType())


class Driver:
    """A placement driver that knows these versions of every stream's schema."""

    def __init__(self, *schemas):
        self.schemas = schemas

    def describe_schemas(self, stream_ids, *, newest_only=False):
        return {each: versions_of(each, *self.schemas) for each in stream_ids}


def test_a_column_that_lost_its_logical_type_since_the_query_started():
    days, hours = (
        logical_arrow_schema(column(DayTimeIntervalType(*each))) for each in ((0, 0), ())
    )
    narrow, wide = StreamSchema.of(days), StreamSchema.of(hours)
    versions = SchemaVersions(Driver(narrow, wide), Servers(("nowhere:1",)), {})

    def decoded(written, wanted):
        rows = rows_in(written, [{"x": dt.timedelta(days=1)}])
        envelope = decode_envelope(encode_columns(rows, written, stream_id=7, timestamp_ms=0))
        span = StreamSpan(7, "s7", 0, 0, 1, ("h:1",))
        layout = ColumnsLayout(wanted, versions)
        return layout.join(list(layout.decode([envelope], span, 0, 1))).to_pylist()

    assert decoded(narrow, days) == decoded(narrow, hours) == decoded(wide, hours)
    with pytest.raises(SchemaError) as raised:
        decoded(wide, days)
    for told in ("offset 0 of stream s7", 'from duration as "interval day"', "with version 2"):
        assert told in str(raised.value)


@pytest.mark.parametrize("kind", [*INTERVALS, *TIMES, *STRINGS, *USER_DEFINED, *PLAIN], ids=str)
def test_which_types_spark_finds_by_arrow_alone(kind):
    is_told = kind in PLAIN or kind in (StringType(), DayTimeIntervalType(), TimeType(6))
    for schema in (column(kind), column(ArrayType(column(MapType(kind, kind))))):
        assert is_kept_by_arrow(schema) == is_told
