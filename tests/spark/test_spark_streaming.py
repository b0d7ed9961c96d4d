"""Micro-batches: how far each goes, and what a restart, a crash or a replay reads."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import PySparkException

from sbp_core.client import StreamSpec, StreamUpdate
from sbp_spark.reading.offsets import SourceOffset
from tests.support.spark import append_values, batch_sizes, numbered, wait_until_over


class Collected:
    """A foreachBatch function that keeps the values of each batch, and fails on demand."""

    def __init__(self, *, fails=False):
        self.batches = {}
        self.fails = fails

    def __call__(self, frame, batch_id):
        if self.fails:
            raise RuntimeError("this batch fails")
        rows = frame.orderBy("stream", "offset").collect()
        self.batches[batch_id] = [(row.stream, row.offset, bytes(row.value)) for row in rows]

    @property
    def values(self):
        return [value for batch in self.batches.values() for _, _, value in batch]


def run(frame, checkpoint, *, fails=False):
    """Read what is available now; returns what each batch was."""
    collected = Collected(fails=fails)
    writer = frame.writeStream.foreachBatch(collected).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    if fails:
        with pytest.raises(PySparkException, match="this batch fails"):
            wait_until_over(query)
    else:
        wait_until_over(query)
    return collected


@pytest.mark.spark_feature("trigger `availableNow`")
@pytest.mark.spark_feature("`local[n]`")
def test_available_now_copies_everything_once(sbp, new_streams, client, checkpoint):
    first, second, copy = new_streams(3)
    append_values(client, first, numbered(0, 300))
    append_values(client, second, numbered(300, 500))
    query = sbp.copy(sbp.load_stream(first, second), copy, checkpoint)
    assert sorted(sbp.values(copy)) == sorted(numbered(0, 500))
    source = query.lastProgress["sources"][0]
    tails = SourceOffset.from_json(json.loads(source["latestOffset"])).next_offsets()
    assert sorted(tails.values()) == [200, 300]


@pytest.mark.spark_feature("trigger `once`")
def test_once_takes_everything_whatever_the_limits_are(sbp, new_streams, client, checkpoint):
    stream, copy = new_streams(2)
    append_values(client, stream, numbered(0, 25))
    frame = sbp.load_stream(stream, maxRecordsPerTrigger="10", minRecordsPerTrigger="10")
    query = sbp.start_copy(frame.select("value"), copy, checkpoint, once=True)
    wait_until_over(query)
    assert batch_sizes(query) == [25]


def test_a_crash_in_the_first_batch_loses_nothing(sbp, new_streams, client, checkpoint):
    """`latest` is where the tail was at the first start, however often that start fails."""
    (stream,) = new_streams(1)
    append_values(client, stream, numbered(0, 100))
    frame = sbp.load_stream(stream, startingOffsets="latest")
    run(frame, checkpoint, fails=True)
    append_values(client, stream, numbered(100, 105))
    run(frame, checkpoint, fails=True)
    append_values(client, stream, numbered(105, 110))
    assert run(frame, checkpoint).values == numbered(100, 110)
    assert run(frame, checkpoint).values == []


def test_streams_that_are_created_while_a_pattern_is_read(sbp, new_streams, client, checkpoint):
    (copy,) = new_streams(1)
    client.create_streams([StreamSpec("found-1"), StreamSpec("unfound-1")])
    append_values(client, "found-1", numbered(0, 5))
    reader = sbp.spark.readStream.format("sbp").options(endpoint=sbp.endpoint)
    reader = reader.options(streamsPattern="found-[0-9]+", startingOffsets="latest")
    query = sbp.start_copy(
        reader.load().select("value"), copy, checkpoint, processingTime="0 seconds"
    )
    query.processAllAvailable()
    client.create_streams([StreamSpec("found-2")])
    append_values(client, "found-2", numbered(5, 10))
    append_values(client, "found-1", numbered(10, 15))
    query.processAllAvailable()
    query.stop()
    assert sorted(sbp.values(copy)) == sorted(numbered(5, 15))


def test_trimmed_records_fail_a_query_or_are_reported(sbp, new_streams, client, checkpoint):
    stream, copy = new_streams(2)
    append_values(client, stream, numbered(0, 5))
    sbp.copy(sbp.load_stream(stream).select("value"), copy, checkpoint)
    append_values(client, stream, numbered(5, 20))
    (info,) = client.describe_streams([stream])
    client.trim_streams({info.stream_id: 12})
    message = rf"7 offsets are lost.*stream {info.stream_id} \({stream}\): \[5, 12\)"
    with pytest.raises(PySparkException, match=message):
        sbp.copy(sbp.load_stream(stream).select("value"), copy, checkpoint)
    lenient = sbp.load_stream(stream, failOnDataLoss="report").select("value")
    query = sbp.copy(lenient, copy, checkpoint)
    assert sbp.values(copy) == numbered(0, 5) + numbered(12, 20)
    ends = [json.loads(each["sources"][0]["endOffset"]) for each in query.recentProgress]
    lost = [end["lost"] for end in ends if "lost" in end]
    assert lost == [{str(info.stream_id): [[5, 12]]}] * len(lost) != []
    rows = sbp.load(stream, startingOffsets=f'{{"{stream}": 3}}', failOnDataLoss="false")
    assert rows.count() == 8


@pytest.mark.spark_feature("output mode `complete`", works=False)
def test_complete_mode_is_refused(sbp, new_streams, checkpoint, refused):
    stream, copy = new_streams(2)
    counts = (
        sbp.load_stream(stream).groupBy("key").count().selectExpr("cast(count as string) value")
    )
    writer = counts.writeStream.format("sbp").options(endpoint=sbp.endpoint, stream=copy)
    writer = writer.option("checkpointLocation", str(checkpoint)).outputMode("complete")
    with refused("output mode complete"):
        wait_until_over(writer.trigger(availableNow=True).start())


def test_streams_that_are_renamed_are_read_and_written_on(sbp, new_streams, client, checkpoint):
    origin, target, letters = new_streams(3)
    ids = {info.name: info.stream_id for info in client.describe_streams([origin, target, letters])}
    names = {info.name for info in client.list_streams()}
    options = {"endpoint": sbp.endpoint, "createStreams": "true"}
    options |= {"stream": target, "onBadRecord": f"deadletter:{letters}"}
    frame = sbp.load_stream(origin).selectExpr(
        "if(value = binary('bad'), repeat('x', 9000000), string(value)) value"
    )
    writer = frame.writeStream.format("sbp").options(**options)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    append_values(client, origin, [b"first"])
    query.processAllAvailable()
    for name in ids:
        client.update_streams([StreamUpdate(name, name=f"{name}-renamed")])
    append_values(client, f"{origin}-renamed", [b"second", b"bad"])
    query.processAllAvailable()
    query.stop()
    assert sbp.values(f"{target}-renamed") == [b"first", b"second"]
    assert len(sbp.values(f"{letters}-renamed")) == 1
    append_values(client, f"{origin}-renamed", [b"third"])
    renamed = sbp.load_stream(f"{origin}-renamed")
    sbp.copy(renamed.select("value"), f"{target}-renamed", checkpoint)
    assert sbp.values(f"{target}-renamed") == [b"first", b"second", b"third"]
    assert {info.name for info in client.list_streams()} == {
        f"{name}-renamed" if name in ids else name for name in names
    }
