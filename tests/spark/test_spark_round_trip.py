"""Records written by Spark are read by Spark: in batch, every column, every odd value."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from chispa import assert_df_equality

from sbp_core.client import StreamSpec
from tests.support.spark import append_values, numbered

time = datetime.fromisoformat
SCHEMA = "key binary, value binary, headers map<string,binary>, timestamp timestamp"
RECORDS = [
    (b"k", b"v", {"trace": b"\x00\xff", "empty": b""}, time("2024-02-29T12:00:00.123456")),
    (None, b"", {}, time("1969-12-31T23:59:59.999999")),
    (b"", None, None, time("9999-12-31T23:59:59")),
    (
        "Schlüssel".encode(),
        "значение 🚀".encode(),
        {"ключ": None, "n": b"1"},
        time("2024-01-01T00:00:00"),
    ),
    (None, None, None, time("1970-01-01T00:00:00")),
]


def test_every_column_survives(sbp, new_streams):
    (stream,) = new_streams(1)
    written = sbp.spark.createDataFrame(RECORDS, SCHEMA).coalesce(1)
    sbp.save(written, stream=stream)
    read = sbp.load(stream, includeHeaders="true").orderBy("offset")
    assert_df_equality(read.select("key", "value", "headers", "timestamp"), written)
    assert [row.offset for row in read.select("offset").collect()] == list(range(len(RECORDS)))
    assert {(row.stream, row.range_index) for row in read.collect()} == {(stream, 0)}


def test_every_column_survives_compressed_and_in_a_class_of_its_own(sbp, new_streams):
    (stream,) = new_streams(1)
    long = [(b"k", b"one of many that are alike" * 40, {}, RECORDS[0][3])] * 500
    written = sbp.spark.createDataFrame(long, SCHEMA)
    sbp.save(written, stream=stream, networkCompression="zstd")
    options = {"includeHeaders": "true", "networkCompression": "zstd", "isolationClass": "backfill"}
    read = sbp.load(stream, **options)
    assert_df_equality(read.select("key", "value", "headers", "timestamp"), written)


def test_records_without_a_time_get_the_time_of_the_append(sbp, new_streams):
    (stream,) = new_streams(1)
    before = datetime.now(UTC).replace(tzinfo=None)
    frame = sbp.spark.createDataFrame([(b"a", None)], "value binary, timestamp timestamp")
    sbp.save(frame, stream=stream)
    sbp.save(frame.drop("timestamp"), stream=stream)
    after = datetime.now(UTC).replace(tzinfo=None)
    times = sbp.load(stream).selectExpr("cast(timestamp as string) as at").collect()
    assert len(times) == 2
    assert all(before <= datetime.fromisoformat(row["at"]) <= after for row in times)


def test_a_column_routes_rows_to_many_streams(sbp, new_streams, client):
    streams = new_streams(30)
    ids = {info.name: info.stream_id for info in client.describe_streams(streams)}
    names = sbp.spark.createDataFrame(list(enumerate(streams)), "number int, stream string")
    frame = sbp.spark.range(6_000).selectExpr("id", "cast(id % 30 as int) as number")
    frame = frame.join(names, "number").selectExpr("stream", "cast(id as string) as value")
    sbp.save(frame.repartition(3))
    read = sbp.load(*streams)
    read_back = read.selectExpr("stream", "cast(value as string) as value")
    assert_df_equality(read_back, frame, ignore_row_order=True, ignore_nullable=True)
    found = {}
    for row in read.select("stream", "stream_id", "offset").collect():
        assert row.stream_id == ids[row.stream]
        found.setdefault(row.stream, []).append(row.offset)
    assert {name: sorted(offsets) for name, offsets in found.items()} == {
        name: list(range(200)) for name in streams
    }


def test_a_batch_of_all_streams_that_match_and_by_path(sbp, client):
    client.create_streams([StreamSpec("match-1"), StreamSpec("match-2"), StreamSpec("a-match-3")])
    for name in ("match-1", "match-2", "a-match-3"):
        append_values(client, name, numbered(0, 2))
    reader = sbp.spark.read.format("sbp").option("endpoint", sbp.endpoint)
    assert reader.load("match-2").select("stream").distinct().collect() == [("match-2",)]
    found = reader.option("streamsPattern", "match-.*").load().groupBy("stream").count().collect()
    assert sorted(map(tuple, found)) == [("match-1", 2), ("match-2", 2)]


@pytest.mark.spark_feature("columns chosen by `.schema(...)`")
def test_only_the_columns_of_a_schema(sbp, new_streams, client, checkpoint):
    stream, copy = new_streams(2)
    append_values(client, stream, numbered(0, 3))
    options = {"endpoint": sbp.endpoint, "streams": stream, "startingOffsets": "earliest"}
    frame = sbp.spark.read.format("sbp").schema("value binary, offset bigint").options(**options)
    rows = frame.load().orderBy("offset").collect()
    assert [tuple(row) for row in rows] == [(bytearray(b"%d" % n), n) for n in range(3)]
    one = sbp.spark.readStream.format("sbp").schema("offset bigint").options(**options).load()
    sbp.copy(one.selectExpr("cast(offset as string) as value"), copy, checkpoint)
    assert sorted(sbp.values(copy)) == numbered(0, 3)


@pytest.mark.spark_feature("batch read, a snapshot")
def test_a_batch_is_a_snapshot(sbp, new_streams, client):
    (stream,) = new_streams(1)
    append_values(client, stream, numbered(0, 3))
    frame = sbp.load(stream)
    assert frame.count() == 3
    append_values(client, stream, numbered(3, 5))
    assert frame.count() == 3
    assert sbp.load(stream).count() == 5


@pytest.mark.parametrize("count", [1_000_000])
def test_a_million_small_records(sbp, new_streams, count):
    (stream,) = new_streams(1)
    written = sbp.spark.range(count).selectExpr("cast(id as string) as value")
    sbp.save(written, stream=stream)
    sums = "count(*)", "sum(offset)", "sum(cast(cast(value as string) as bigint))"
    row = sbp.load(stream).selectExpr(*sums).collect()[0]
    assert tuple(row) == (count, count * (count - 1) // 2, count * (count - 1) // 2)
