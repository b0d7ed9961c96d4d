"""Any columns that Spark writes to a typed stream it reads again, however the schema has grown."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.ml.functions import array_to_vector
from pyspark.sql.functions import array, lit
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
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

from tests.support.data.typed import append_columns, rows_in, schema_of

START = dt.datetime.fromisoformat("1900-01-01")
END = dt.datetime.fromisoformat("9999-12-30")
NAMES = ["a", "b", "Ünicode", "with space", "with.dot", "`quoted`"]


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


SIMPLE: list[tuple[DataType, st.SearchStrategy[Any]]] = [
    (BooleanType(), st.booleans()),
    (ByteType(), integers(8)),
    (ShortType(), integers(16)),
    (IntegerType(), integers(32)),
    (LongType(), integers(64)),
    (FloatType(), st.floats(width=32, allow_nan=False)),
    (DoubleType(), st.floats(allow_nan=False)),
    (DecimalType(9, 2), st.decimals(-(10**6), 10**6, allow_nan=False, places=2)),
    (StringType(), st.text(max_size=20)),
    (StringType("UTF8_LCASE"), st.text(max_size=20)),
    (BinaryType(), st.binary(max_size=20)),
    (DateType(), st.dates(START.date(), END.date())),
    (TimestampType(), st.datetimes(START, END)),
    (TimestampNTZType(), st.datetimes(START, END)),
    (DayTimeIntervalType(), st.timedeltas(-dt.timedelta(10**5), dt.timedelta(10**5))),
    (DayTimeIntervalType(0, 0), st.builds(dt.timedelta, st.integers(-(10**5), 10**5))),
    (TimeType(), st.times()),
    (TimeType(0), st.times().map(lambda time: time.replace(microsecond=0))),
]
WIDER: dict[type[DataType], list[DataType]] = {
    ByteType: [ShortType(), LongType()],
    ShortType: [IntegerType()],
    IntegerType: [LongType()],
    FloatType: [DoubleType()],
    DecimalType: [DecimalType(20, 4)],
}


@st.composite
def kinds(draw: st.DrawFn, depth: int = 2) -> tuple[DataType, st.SearchStrategy[Any]]:
    """A type, and values of it."""
    form = draw(st.sampled_from(["simple", "simple", "array", "map", "struct"]))
    if depth == 0 or form == "simple":
        return draw(st.sampled_from(SIMPLE))
    kind, values = draw(kinds(depth - 1))
    if form == "array":
        return ArrayType(kind), st.lists(st.none() | values, max_size=3)
    if form == "map":
        return MapType(StringType(), kind), st.dictionaries(
            st.text(max_size=3), st.none() | values, max_size=3
        )
    fields = StructType([StructField("x", kind), StructField("y", StringType())])
    return fields, st.fixed_dictionaries({"x": st.none() | values, "y": st.none() | st.text()})


def widened(kind: DataType) -> DataType:
    """A type that has all values of another one, and more if there is such a type."""
    match kind:
        case ArrayType():
            return ArrayType(widened(kind.elementType))
        case MapType():
            return MapType(kind.keyType, widened(kind.valueType))
        case StructType():
            fields = [StructField(each.name, widened(each.dataType)) for each in kind]
            return StructType([*fields, StructField(f"z{len(fields)}", LongType())])
        case _:
            return WIDER.get(type(kind), [kind])[-1]


@dataclass
class History:
    """Writes of rows in schemas of their own, and the columns that the stream has in the end."""

    writes: list[tuple[StructType, list[dict[str, Any]]]] = field(default_factory=list)
    columns: dict[str, StructField] = field(default_factory=dict)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for _, rows in self.writes for row in rows]


@st.composite
def histories(draw: st.DrawFn) -> History:
    """A first write, and some that lack columns, have others, wider ones, or another order."""
    history = History()
    firsts: dict[str, StructField] = {}
    values: dict[str, st.SearchStrategy[Any]] = {}
    unused = draw(st.permutations(NAMES))
    for step in range(3):
        added = [unused.pop() for _ in range(draw(st.integers(1, 2)))]
        for name in added:
            kind, values[name] = draw(kinds())
            firsts[name] = StructField(name, kind, nullable=step > 0 or draw(st.booleans()))
        given = []
        for name in draw(st.permutations([*history.columns, *added])):
            known = history.columns.get(name, firsts[name])
            wider = StructField(name, widened(known.dataType), nullable=True)
            if name in history.columns and known.nullable and draw(st.booleans()):
                continue
            choice = draw(st.sampled_from([known, wider, firsts[name]]))
            history.columns[name] = wider if choice is wider else known
            given.append(choice)
        row = {
            each.name: st.none() | values[each.name] if each.nullable else values[each.name]
            for each in given
        }
        rows = draw(st.lists(st.fixed_dictionaries(row), min_size=1, max_size=10))
        history.writes.append((StructType(given), rows))
    return history


@settings(
    max_examples=4,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(history=histories())
def test_columns_come_back_however_they_have_changed(sbp, new_streams, history):
    (stream,) = new_streams(1)
    for schema, rows in history.writes:
        frame = sbp.spark.createDataFrame(rows, schema).coalesce(1)
        sbp.save(frame, stream=stream, encoding="columns", mergeSchema="true")
    read = sbp.load(stream, includeMetadata="true").orderBy("_metadata.offset").drop("_metadata")
    columns = StructType(list(history.columns.values())).toNullable()
    expected = sbp.spark.createDataFrame(history.rows, columns)
    assert_df_equality(read, expected)


def test_a_typed_stream_is_copied_by_a_query_with_all_that_it_gains(
    sbp, new_streams, client, checkpoint
):
    stream, copy = new_streams(2)
    schemas = [
        schema_of(id=pa.int32(), at=pa.timestamp("us", tz="UTC")),
        schema_of(id=pa.int64(), tags=pa.list_(pa.string()), at=pa.timestamp("us", tz="UTC")),
    ]
    for number, schema in enumerate(schemas):
        rows = [{"id": n, "at": n} for n in range(number * 50, number * 50 + 50)]
        append_columns(client, stream, rows_in(schema, rows))
        frame = sbp.load_stream(stream, includeMetadata="true", maxRecordsPerTrigger="20")
        writer = frame.writeStream.format("sbp").options(
            endpoint=sbp.endpoint,
            stream=copy,
            encoding="columns",
            mergeSchema="true",
            timestampColumn="at",
            checkpointLocation=str(checkpoint),
        )
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(60)
    assert_df_equality(
        sbp.load(copy).orderBy("id"), sbp.load(stream).orderBy("id"), ignore_column_order=True
    )
    times = sbp.load(copy, includeMetadata="true").where("_metadata.timestamp <> at")
    assert times.count() == 0


KEPT = """
    'A' collate UTF8_LCASE collated, 'b' bounded, cast('12:13:14.567891234' as time(9)) t9,
    cast('12:13:14' as time(0)) t0, interval '5' hour h, interval '3' day d,
    interval '2:30' hour to minute hm, array(interval '59' second) seconds,
    map('k' collate UNICODE, named_struct('x', cast('1:0:0' as time(3)))) nested
"""


def test_types_that_arrow_does_not_distinguish_are_read_as_written(sbp, new_streams):
    """Also for Spark itself, and not only by its name: an equal text of another case is found."""
    (stream,) = new_streams(1)
    sbp.spark.conf.set("spark.sql.timeType.enabled", "true")
    frame = sbp.spark.sql(f"select {KEPT}").withColumn("vector", array_to_vector(array(lit(1.0))))
    frame = frame.withMetadata("bounded", {"__CHAR_VARCHAR_TYPE_STRING": "varchar(5)"})
    sbp.save(frame, stream=stream, encoding="columns")
    read = sbp.load(stream)
    assert read.schema.toNullable() == frame.schema.toNullable()
    assert read.collect() == frame.collect()
    assert read.schema["bounded"].metadata == frame.schema["bounded"].metadata
    texts = [f"cast({name} as string)" for name in frame.columns if name != "vector"]
    assert read.selectExpr(*texts).collect() == frame.selectExpr(*texts).collect()
    assert read.where("collated = 'a'").count() == 1


def test_a_narrower_column_of_the_stream_is_refused_or_widened(sbp, new_streams):
    (stream,) = new_streams(1)
    days, hours = (sbp.spark.sql(f"select interval '3' {unit} x") for unit in ("day", "hour"))
    sbp.save(days, stream=stream, encoding="columns")
    with pytest.raises(PySparkException, match='from duration as "interval day" to duration'):
        sbp.save(hours, stream=stream, encoding="columns")
    sbp.save(hours, stream=stream, encoding="columns", mergeSchema="true")
    read = sbp.load(stream)
    assert read.schema["x"].dataType == DayTimeIntervalType()
    expected = {dt.timedelta(days=3), dt.timedelta(hours=3)}
    assert {row.x for row in read.collect()} == expected
