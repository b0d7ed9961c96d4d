"""Metadata as DataFrames, and views of both kinds in SQL."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import TimestampType
from spark_streams import append_values, numbered

from sbp_core.client import StreamSpec


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


def test_options_about_records_are_refused(sbp):
    with pytest.raises(PySparkException) as raised:
        load_table(sbp, "topics", streams="a", includeHeaders="true", grup="b")
    for told in ("4 faults", "table is 'topics'", "streams is given", "includeHeaders", "'grup'"):
        assert told in str(raised.value)


def test_tables_are_for_batches(sbp, stream, tmp_path):
    streaming = sbp.spark.readStream.format("sbp")
    frame = streaming.options(endpoint=sbp.endpoint, table="streams").load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(PySparkException, match="table is for batches only"):
        writer.trigger(availableNow=True).start().awaitTermination()
    with pytest.raises(PySparkException, match="table is for reading only"):
        sbp.save(sbp.load(stream.name), stream=stream.name, table="streams")


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
