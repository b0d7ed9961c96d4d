"""One read over a stream's table and its log: each offset once, in batch and in streaming."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import sbp_core
from sbp_core.client import StreamSpec, StreamUpdate
from sbp_core.records import StreamSchema
from tests.support.lake import catalog_in, has_landed, land_until

DAY_US = 86_400_000_000
COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("tags", pa.list_(pa.string())),
    ]
)


@pytest.fixture
def catalog(tmp_path):
    return catalog_in(tmp_path)


@pytest.fixture
def stream(client, new_streams):
    (name,) = new_streams(1)
    client.update_streams([StreamUpdate(name, properties={"lake.table": f"lake.{name}"})])
    return name


@pytest.fixture
def typed(client, stream):
    name = f"{stream}-typed"
    (info,) = client.create_streams([StreamSpec(name)])
    client.evolve_schema(info.stream_id, StreamSchema.of(COLUMNS), may_change=True)
    client.update_streams([StreamUpdate(name, properties={"lake.table": f"lake.{name}"})])
    return name


def send(cluster, stream, start, stop):
    with sbp_core.connect(cluster.endpoint) as sbp, sbp.producer(stream) as producer:
        for number in range(start, stop):
            producer.send(b"%d" % number, timestamp_us=number * DAY_US // 100)


def send_typed(cluster, stream, start, stop):
    rows = [
        {
            "id": each,
            "at": datetime.fromtimestamp(each * 864, UTC),
            "tags": None if each % 3 else [str(each)],
        }
        for each in range(start, stop)
    ]
    with sbp_core.connect(cluster.endpoint) as sbp, sbp.producer(stream) as producer:
        producer.send_many(rows)


def trim(client, stream, offset):
    (info,) = client.describe_streams([stream])
    client.trim_streams({info.stream_id: offset})


@pytest.fixture
def kept(cluster, client, catalog, stream):
    """A stream of 600 records: 0 to 499 have landed, and the log begins at 300."""
    send(cluster, stream, 0, 500)
    land_until(cluster, catalog, stream, has_landed(500))
    send(cluster, stream, 500, 600)
    trim(client, stream, 300)
    return stream


def reading(sbp, stream, tmp_path, **options):
    return sbp.spark.read.format("sbp").options(
        endpoint=sbp.endpoint, streams=stream, history=str(tmp_path), **options
    )


@pytest.mark.parametrize(
    ("options", "first", "last"),
    [
        ({}, 0, 599),
        ({"startingOffsets": "-400"}, 200, 599),
        ({"startingTimestamp": "1970-01-02T00:00"}, 100, 599),
        ({"maxRecordsPerPartition": "37", "endingOffsets": "-100"}, 0, 499),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_a_batch_reads_the_table_and_then_the_log(sbp, kept, tmp_path, options, first, last):
    rows = reading(sbp, kept, tmp_path, **options).load().collect()
    assert sorted((row.offset, row.value) for row in rows) == [
        (each, bytearray(b"%d" % each)) for each in range(first, last + 1)
    ]
    assert {row.timestamp for row in rows if row.offset == 300} <= {datetime(1970, 1, 4)}  # noqa: DTZ001


def test_without_history_the_log_is_read_alone(sbp, kept, tmp_path):
    assert reading(sbp, kept, tmp_path).option("history", "off").load().count() == 300


def test_typed_columns_conditions_and_metadata_apply_to_both(
    sbp, cluster, client, catalog, typed, tmp_path
):
    send_typed(cluster, typed, 0, 500)
    land_until(cluster, catalog, typed, has_landed(500))
    send_typed(cluster, typed, 500, 600)
    trim(client, typed, 450)
    frame = reading(sbp, typed, tmp_path, where="id >= 100 and id < 550", columns="id,tags").load()
    found = sorted((row.id, row.tags) for row in frame.collect())
    assert found == [(each, None if each % 3 else [str(each)]) for each in range(100, 550)]
    frame = reading(sbp, typed, tmp_path, includeMetadata="true").load()
    rows = frame.selectExpr("id", "at", "_metadata.offset", "_metadata.timestamp").collect()
    assert sorted((row.id, row.offset) for row in rows) == [(each, each) for each in range(600)]


def test_a_stream_is_read_across_restarts_while_it_lands_and_is_trimmed(
    sbp, cluster, client, catalog, stream, tmp_path, checkpoint
):
    rolls = random.Random(3)
    out = tmp_path / "out"
    sent = 0
    for _ in range(4):
        count = rolls.randrange(50, 200)
        send(cluster, stream, sent, sent + count)
        sent += count
        land_until(cluster, catalog, stream, has_landed(sent))
        send(cluster, stream, sent, sent + 20)
        trim(client, stream, rolls.randrange(sent - 40, sent))
        sent += 20
        query = (
            sbp.spark.readStream.format("sbp")
            .options(endpoint=sbp.endpoint, streams=stream, startingOffsets="earliest")
            .options(history=str(tmp_path), maxRecordsPerTrigger="70")
            .load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start(str(out))
        )
        query.awaitTermination(120)
        assert query.exception() is None
    rows = sbp.spark.read.parquet(str(out)).select("offset", "value").collect()
    assert sorted((row.offset, row.value) for row in rows) == [
        (each, bytearray(b"%d" % each)) for each in range(sent)
    ]


def test_records_that_neither_has_are_a_loss(sbp, cluster, client, catalog, kept, tmp_path):
    trim(client, kept, 550)
    with pytest.raises(PySparkException, match=r"\[500, 550\)"):
        reading(sbp, kept, tmp_path).load().collect()
    frame = reading(sbp, kept, tmp_path, failOnDataLoss="false").load()
    assert sorted(row.offset for row in frame.collect()) == [*range(500), *range(550, 600)]
