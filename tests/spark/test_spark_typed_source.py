"""Typed streams as DataFrames: columns, versions of schemas, metadata, and what is refused."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException

from sbp_core.client import StreamSpec
from sbp_core.records import StreamSchema
from tests.support.data.typed import append_columns, rows_in, schema_of
from tests.support.spark import append_values, numbered, wait_until_over

moment = dt.datetime.fromisoformat
PERSON = schema_of(id=pa.int32(), name=pa.string())
PERSON_WITH_CITY = schema_of(id=pa.int32(), name=pa.string(), city=pa.string())
WIDE_PERSON = schema_of(id=pa.int64(), name=pa.string())


def people(first, stop, schema=PERSON, **more):
    """Rows that show which they are."""
    return rows_in(schema, [{"id": n, "name": f"name {n}", **more} for n in range(first, stop)])


class Collected:
    """A foreachBatch function that keeps the rows."""

    def __init__(self):
        self.rows = []

    def __call__(self, frame, batch_id):
        self.rows += map(tuple, frame.collect())


def run(frame, checkpoint):
    """Read what is available now; returns the rows."""
    collected = Collected()
    writer = frame.writeStream.foreachBatch(collected).option("checkpointLocation", str(checkpoint))
    wait_until_over(writer.trigger(availableNow=True).start())
    return sorted(collected.rows)


def people_rows(first, stop, *more):
    return [(n, f"name {n}", *more) for n in range(first, stop)]


NESTED = pa.struct(
    [
        pa.field("required", pa.int32(), nullable=False),
        ("times", pa.list_(pa.field("element", pa.time64("ns"), nullable=False))),
        ("took", pa.map_(pa.string(), pa.duration("us"))),
    ]
)
EVERY_TYPE = StreamSchema.of(
    pa.schema(
        [
            ("bool", pa.bool_()),
            ("byte", pa.int8()),
            ("short", pa.int16()),
            ("int", pa.int32()),
            pa.field("long", pa.int64(), nullable=False),
            ("float", pa.float32()),
            ("double", pa.float64()),
            ("decimal", pa.decimal128(38, 10)),
            ("string", pa.string()),
            ("binary", pa.binary()),
            ("date", pa.date32()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("local", pa.timestamp("us")),
            ("took", pa.duration("us")),
            ("time", pa.time64("ns")),
            ("decimals", pa.list_(pa.decimal128(9, 2))),
            ("locals", pa.map_(pa.int32(), pa.timestamp("us"))),
            ("nested", pa.list_(NESTED)),
        ]
    )
)
FULL_ROW = {
    "bool": True,
    "byte": -128,
    "short": 2**15 - 1,
    "int": -(2**31),
    "long": 2**63 - 1,
    "float": 0.5,
    "double": -1e300,
    "decimal": Decimal("-1234567890123456789012345678.0123456789"),
    "string": "значение 🚀",
    "binary": b"\x00\xff",
    "date": dt.date(1582, 10, 15),
    "at": moment("1969-12-31T23:59:59.999999+00:00"),
    "local": moment("9999-12-31T23:59:59.000001"),
    "took": dt.timedelta(days=-3, microseconds=1),
    "time": dt.time(23, 59, 59, 999_999),
    "decimals": [Decimal("1.50"), None],
    "locals": [(1, moment("2024-02-29")), (2, None)],
    "nested": [
        {"required": 1, "times": [dt.time(1, 2)], "took": [("a", dt.timedelta(hours=25))]},
        {"required": 2, "times": None, "took": []},
        None,
    ],
}
EMPTY_ROW = {"long": 0, "string": "", "binary": b"", "decimals": [], "locals": [], "nested": []}


def test_every_type(sbp, new_streams, client):
    (stream,) = new_streams(1)
    rows = rows_in(EVERY_TYPE, [FULL_ROW, {"long": 1}, EMPTY_ROW])
    append_columns(client, stream, rows)
    append_columns(client, stream, rows, compression="zstd")
    read = sbp.load(stream)
    expected = sbp.spark.createDataFrame(pa.Table.from_batches([rows, rows]), read.schema)
    assert dict(read.dtypes)["local"] == "timestamp_ntz"
    assert dict(read.dtypes)["took"] == "interval day to second"
    assert dict(read.dtypes)["time"] == "time(9)"
    assert_df_equality(read, expected)
    texts = read.selectExpr("cast(took as string)", "cast(at as string)", "cast(time as string)")
    assert tuple(texts.first()) == (
        "INTERVAL '-2 23:59:59.999999' DAY TO SECOND",
        "1969-12-31 23:59:59.999999",
        "23:59:59.999999",
    )


def test_columns_and_metadata_of_a_schema(sbp, new_streams, client):
    (stream,) = new_streams(1)
    for first in range(0, 100, 20):
        append_columns(client, stream, people(first, first + 20))
    reader = sbp.spark.read.format("sbp").options(
        endpoint=sbp.endpoint, streams=stream, startingOffsets="-70", includeMetadata="true"
    )
    frame = reader.schema("_metadata struct<offset:bigint,stream:string>, id long").load()
    assert [tuple(row) for row in frame.selectExpr("id", "_metadata.*").collect()] == [
        (n, n, stream) for n in range(30, 100)
    ]
    for given, message in (
        ("_metadata struct<offset:bigint>, id smallint", "expected id int: cast it afterwards"),
        ("nome string, _metadata struct<offset:bigint>", "did you mean name"),
        ("name string", "_metadata is left out, but includeMetadata asks for it"),
    ):
        with pytest.raises(PySparkException, match=message):
            reader.schema(given).load().collect()


def test_one_record_batch_is_read_by_several_tasks(sbp, new_streams, client):
    (stream,) = new_streams(1)
    append_columns(client, stream, people(0, 100))
    frame = sbp.load(stream, minPartitions="4", includeMetadata="true")
    rows = frame.selectExpr("spark_partition_id()", "id", "_metadata.offset").collect()
    assert len({row[0] for row in rows}) == 4
    assert sorted((row[1], row[2]) for row in rows) == [(n, n) for n in range(100)]


def test_a_restarted_query_sees_the_schema_that_has_grown(sbp, new_streams, client, checkpoint):
    (stream,) = new_streams(1)
    append_columns(client, stream, people(0, 5))
    assert run(sbp.load_stream(stream), checkpoint) == people_rows(0, 5)
    old = sbp.load_stream(stream)
    append_columns(client, stream, people(5, 7))
    append_columns(client, stream, people(7, 9, PERSON_WITH_CITY, city="Ulm"))
    assert run(old, checkpoint) == people_rows(5, 9)
    append_columns(client, stream, people(9, 11, PERSON_WITH_CITY, city="Bonn"))
    grown = sbp.load_stream(stream, minPartitions="2")
    assert grown.columns == ["id", "name", "city"]
    assert run(grown, checkpoint) == people_rows(9, 11, "Bonn")


def test_a_column_that_is_widened_while_a_query_runs(sbp, new_streams, client, checkpoint):
    (stream,) = new_streams(1)
    append_columns(client, stream, people(0, 5))
    collected = Collected()
    frame = sbp.load_stream(stream)
    writer = frame.writeStream.foreachBatch(collected)
    writer = writer.option("checkpointLocation", str(checkpoint))
    query = writer.trigger(processingTime="0 seconds").start()
    query.processAllAvailable()
    assert sorted(collected.rows) == people_rows(0, 5)
    append_columns(client, stream, people(5, 7, WIDE_PERSON))
    with pytest.raises(PySparkException) as raised:
        wait_until_over(query)
    for message in ("offset 5 of stream", "column id is int64", "version 2", "start the query"):
        assert message in str(raised.value)
    with pytest.raises(PySparkException, match="column id int; expected id bigint"):
        run(frame, checkpoint)
    assert run(sbp.load_stream(stream), checkpoint) == people_rows(5, 7)


def test_a_stream_that_matches_later_is_read_in_the_columns_of_the_query(sbp, client, checkpoint):
    client.create_streams([StreamSpec("typed-later-1")])
    append_columns(client, "typed-later-1", people(0, 3))
    reader = sbp.spark.readStream.format("sbp").options(
        endpoint=sbp.endpoint, streamsPattern="typed-later-.*", startingOffsets="earliest"
    )
    frame = reader.load()
    assert run(frame, checkpoint) == people_rows(0, 3)
    client.create_streams([StreamSpec("typed-later-2"), StreamSpec("typed-later-3")])
    narrow = schema_of(city=pa.string(), id=pa.int8())
    append_columns(client, "typed-later-2", rows_in(narrow, [{"id": 3, "city": "Ulm"}]))
    assert run(frame, checkpoint) == [(3, None)]
    append_values(client, "typed-later-3", numbered(0, 2))
    with pytest.raises(PySparkException, match=r"offset 0 of stream typed-later-3 .*encoding=rows"):
        run(frame, checkpoint)


def test_names_may_differ_in_case(sbp, new_streams, client, checkpoint):
    stream, plain = new_streams(2)
    place = pa.struct([("City", pa.string()), ("zip", pa.int32())])
    schema = schema_of(ID=pa.int32(), Place=place, tags=pa.list_(place))
    where = {"City": "x", "zip": 1}
    rows = [{"ID": 1, "Place": where, "tags": [where, None]}, {"ID": 2}]
    append_columns(client, stream, rows_in(schema, rows))
    wanted = "id bigint, PLACE struct<city: string>, Tags array<struct<ZIP: int>>"
    expected = [(1, ("x",), [(1,), None]), (2, None, None)]

    def found(frame):
        assert frame.columns == ["id", "PLACE", "Tags"]
        assert frame.schema["PLACE"].dataType.names == ["city"]
        return sorted(tuple(row) for row in frame.collect())

    reader = sbp.spark.read.format("sbp").options(endpoint=sbp.endpoint)
    assert found(reader.schema(wanted).load(streams=stream)) == expected
    for tasks, options in enumerate(({}, {"minPartitions": "2"})):
        reader = sbp.spark.readStream.format("sbp").schema(wanted)
        reader = reader.options(endpoint=sbp.endpoint, streams=stream, **options)
        came = []
        writer = reader.option("startingOffsets", "earliest").load().writeStream
        writer = writer.foreachBatch(lambda batch, _, came=came: came.extend(found(batch)))
        writer = writer.option("checkpointLocation", f"{checkpoint}-{tasks}")
        wait_until_over(writer.trigger(availableNow=True).start())
        assert sorted(came) == expected
    append_values(client, plain, [b"a"])
    reader = sbp.spark.read.format("sbp").options(endpoint=sbp.endpoint)
    assert reader.schema("VALUE binary").load(streams=plain).collect()[0].VALUE == b"a"
    tables = sbp.spark.read.format("sbp").options(endpoint=sbp.endpoint, table="streams")
    assert plain in [row.STREAM for row in tables.schema("STREAM string").load().collect()]


DOUBLES = schema_of(**{f"c{at}": pa.float64() for at in range(10)})
DOUBLES_COUNT = 12_000


def test_some_columns_of_large_batches(sbp, new_streams, client, tmp_path):
    """The server leaves the others out."""
    (stream,) = new_streams(1)
    values = [{f"c{at}": n * 10.0 + at for at in range(10)} for n in range(DOUBLES_COUNT)]
    append_columns(client, stream, rows_in(DOUBLES, values))
    expected = [(n * 10.0 + 7, n * 10.0 + 2) for n in range(DOUBLES_COUNT)]
    given = "C7 double, c2 double"
    reader = sbp.spark.read.format("sbp").options(endpoint=sbp.endpoint, streams=stream)
    assert sorted(map(tuple, reader.schema(given).load().collect())) == expected
    assert sorted(map(tuple, sbp.load(stream, columns="C7,c2").collect())) == expected
    found = sbp.spark.readStream.format("sbp").options(
        endpoint=sbp.endpoint, streams=stream, startingOffsets="earliest"
    )
    assert run(found.schema(given).load(), tmp_path / "checkpoint") == expected
