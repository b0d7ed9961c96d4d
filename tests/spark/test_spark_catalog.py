"""Metadata as DataFrames, and views of both kinds in SQL."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from sbp_core.client import StreamSpec
from tests.support.spark import append_values, numbered, wait_until_over


def load_table(sbp, table, **options):
    reader = sbp.spark.read.format("sbp").options(endpoint=sbp.endpoint, table=table, **options)
    return reader.load()


@pytest.fixture
def stream(client):
    """A stream of two ranges with 5 records trimmed and 20 left, which two groups read."""
    name = f"catalogued-{len(client.list_streams())}"
    spec = StreamSpec(name, retention_period_ms=60_000_000, retention_bytes=10_000_000)
    (info,) = client.create_streams([spec])
    append_values(client, name, numbered(0, 15))
    client.seal_streams([info.stream_id])
    append_values(client, name, numbered(15, 25))
    client.trim_streams({info.stream_id: 5})
    client.commit_cursors(f"slow-{name}", {info.stream_id: 3})
    client.commit_cursors(f"fast-{name}", {info.stream_id: 25})
    return info


def test_streams(sbp, client, stream, new_streams):
    (plain,) = new_streams(1)
    table = load_table(sbp, "STREAMS")
    assert table.schema["created"].dataType == TimestampType()
    (row,) = table.where(table.stream == stream.name).collect()
    assert datetime.now(UTC).replace(tzinfo=None) - row.created < timedelta(hours=1)
    assert row.asDict() == {
        "stream": stream.name,
        "stream_id": stream.stream_id,
        "created": row.created,
        "replica_count": 1,
        "retention_ms": 60_000_000,
        "retention_bytes": 10_000_000,
        "start_offset": 5,
        "next_offset": 25,
    }
    (row,) = table.where(table.stream == plain).collect()
    assert (row.retention_ms, row.retention_bytes, row.next_offset) == (None, None, 0)
    assert table.count() == len(client.list_streams())


def test_ranges(sbp, cluster, stream):
    table = load_table(sbp, "ranges").where(f"stream_id = {stream.stream_id}")
    servers = list(cluster.range_servers)
    assert sorted(tuple(row) for row in table.drop("stream", "stream_id").collect()) == [
        (0, "sealed", 5, 15, servers),
        (1, "open", 15, None, servers),
    ]


def test_cursors(sbp, client, stream):
    table = load_table(sbp, "cursors")
    rows = {row.consumer_group: row for row in table.collect()}
    slow, fast = rows[f"slow-{stream.name}"], rows[f"fast-{stream.name}"]
    assert (slow.stream, slow.next_offset, slow.lag_records, slow.lost_records) == (
        *(stream.name, 3),
        *(20, 2),
    )
    assert (fast.next_offset, fast.lag_records, fast.lost_records) == (25, 0, 0)
    assert fast.committed >= slow.committed


def test_columns_are_chosen_by_a_schema(sbp, stream):
    reader = sbp.spark.read.format("sbp").options(endpoint=sbp.endpoint, table="streams")
    chosen = reader.schema("next_offset bigint, stream string").load()
    assert (25, stream.name) in [tuple(row) for row in chosen.collect()]
    with pytest.raises(PySparkException, match="column nam does not exist") as raised:
        reader.schema("nam string").load().count()
    assert "replica_count int" in str(raised.value)


def test_tables_are_for_batches(sbp, stream, tmp_path):
    streaming = sbp.spark.readStream.format("sbp")
    frame = streaming.options(endpoint=sbp.endpoint, table="streams").load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(PySparkException, match="table is for batches only"):
        writer.trigger(availableNow=True).start().awaitTermination()
    with pytest.raises(PySparkException, match="table is for reading only"):
        sbp.save(sbp.load(stream.name), stream=stream.name, table="streams")


@pytest.mark.spark_feature("`CREATE TEMPORARY VIEW ... USING sbp OPTIONS (...)`")
def test_views_in_sql(sbp, stream):
    for view, options in (
        ("some_records", f"streams '{stream.name}', startingOffsets '-4'"),
        ("all_streams", "table 'streams'"),
    ):
        sbp.spark.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW {view} USING sbp"
            f" OPTIONS (endpoint '{sbp.endpoint}', {options})"
        )
    found = sbp.spark.sql(
        "SELECT string(value), next_offset FROM some_records JOIN all_streams USING (stream_id)"
        " ORDER BY offset"
    )
    assert [tuple(row) for row in found.collect()] == [(str(n), 25) for n in range(21, 25)]


@pytest.fixture
def table(sbp, tmp_path):
    """A name for a table, which is dropped after the test, as is a view of it."""
    name = re.sub(r"\W", "_", f"of_{tmp_path.name}")
    yield name
    sbp.spark.sql(f"DROP VIEW IF EXISTS {name}_view")
    sbp.spark.sql(f"DROP TABLE IF EXISTS {name}")


def of_table(sbp, table, **options):
    """A table with options, as it is named in SQL."""
    pairs = {"endpoint": sbp.endpoint, **options}.items()
    return f"{table} WITH ({', '.join(f'{name} = {value!r}' for name, value in pairs)})"


def texts(frame):
    """The values of a DataFrame as texts, sorted."""
    return sorted(row[0] for row in frame.selectExpr("string(value)").collect())


@pytest.mark.spark_feature("`CREATE TABLE ... USING sbp` with columns")
def test_a_table_has_its_options_where_it_is_used(sbp, new_streams, table, checkpoint):
    origin, copy = new_streams(2)
    sql = sbp.spark.sql
    settings = f"endpoint '{sbp.endpoint}', streams '{origin}'"
    sql(f"CREATE TABLE {table} (offset BIGINT, value STRING) USING sbp OPTIONS ({settings})")
    into = of_table(sbp, table, stream=origin)
    sql(f"INSERT INTO {into} (value) VALUES ('a'), ('b')")
    found = of_table(sbp, table, streams=origin)
    assert texts(sql(f"SELECT * FROM {found}")) == ["a", "b"]
    sql(f"CREATE VIEW {table}_view AS SELECT * FROM {found}")
    assert texts(sbp.spark.newSession().table(f"{table}_view")) == ["a", "b"]
    into = of_table(sbp, table, stream=origin, truncate="true")
    sql(f"INSERT OVERWRITE {into} (value) VALUES ('c')")
    assert texts(sbp.spark.table(f"{table}_view")) == ["c"]
    frame = sbp.spark.createDataFrame([("d",)], "value string")
    frame.writeTo(table).options(endpoint=sbp.endpoint, stream=origin).append()
    options = {"endpoint": sbp.endpoint, "streams": origin}
    assert texts(sbp.spark.read.options(**options).table(table)) == ["c", "d"]
    stream = sbp.spark.readStream.options(startingOffsets="earliest", **options).table(table)
    sbp.copy(stream, copy, checkpoint)
    assert sbp.values(copy) == [b"c", b"d"]


@pytest.mark.spark_feature("options of `CREATE TABLE`", works=False)
def test_a_table_without_options_names_their_place(sbp, new_streams, table, refused):
    (stream,) = new_streams(1)
    settings = f"endpoint '{sbp.endpoint}', streams '{stream}'"
    sbp.spark.sql(f"CREATE TABLE {table} (value BINARY) USING sbp OPTIONS ({settings})")
    for use in (f"SELECT * FROM {table}", f"INSERT INTO {table} VALUES (binary('a'))"):
        with refused("endpoint is missing") as raised:
            sbp.spark.sql(use).collect()
        for words in ("FROM t WITH (endpoint", "no options of a table"):
            assert words in str(raised.value)
    assert sbp.values(stream) == []


@pytest.mark.spark_feature("`CREATE TABLE ... USING sbp` without columns", works=False)
@pytest.mark.parametrize("options", ["", "OPTIONS (endpoint '{}', streams 'a')"])
def test_a_table_without_columns_is_refused(sbp, table, options, refused):
    with refused("CREATE TABLE ... USING sbp without columns") as raised:
        sbp.spark.sql(f"CREATE TABLE {table} USING sbp {options.format(sbp.endpoint)}")
    for words in ("(offset BIGINT, ", "CREATE TEMPORARY VIEW v USING sbp"):
        assert words in str(raised.value)
    assert not sbp.spark.catalog.tableExists(table)


@pytest.mark.spark_feature("`saveAsTable`, `toTable`, `writeTo(...).create()`")
@pytest.mark.parametrize("way", ["saveAsTable", "create", "toTable"])
def test_a_saved_table_is_read_with_options(sbp, new_streams, table, checkpoint, way):
    origin, stream = new_streams(2)
    options = {"endpoint": sbp.endpoint, "stream": stream}
    frame = sbp.spark.createDataFrame([("k", "a"), (None, "ä")], "key string, value string")
    if way == "saveAsTable":
        frame.write.format("sbp").options(**options).saveAsTable(table)
    elif way == "create":
        frame.writeTo(table).using("sbp").options(**options).create()
    else:
        sbp.save(frame, stream=origin)
        texts_of = sbp.load_stream(origin).selectExpr("string(key) key", "string(value) value")
        writer = texts_of.writeStream.format("sbp").options(**options)
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        wait_until_over(writer.toTable(table))
    read = sbp.spark.sql(f"SELECT * FROM {of_table(sbp, table, streams=stream)}")
    assert_df_equality(read, frame, ignore_row_order=True, ignore_nullable=True)


def test_bytes_that_are_no_text_stay_as_they_are_in_strings(sbp, new_streams, client, checkpoint):
    values = [b"text", b"\xff\x00", None, "ä".encode()]
    origin, copy = new_streams(2)
    append_values(client, origin, values)
    read = sbp.spark.read.format("sbp").schema("Value string")
    read = read.options(endpoint=sbp.endpoint, streams=origin).load()
    assert read.schema == StructType([StructField("Value", StringType())])
    found = read.selectExpr("binary(Value)").collect()
    assert [row[0] and bytes(row[0]) for row in found] == values
    reader = sbp.spark.readStream.format("sbp").schema("value string")
    reader = reader.options(endpoint=sbp.endpoint, streams=origin, startingOffsets="earliest")
    sbp.copy(reader.load().selectExpr("binary(value) value"), copy, checkpoint)
    assert sbp.values(copy) == values
