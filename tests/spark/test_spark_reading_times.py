"""Reads that start or end at a time, in Spark and against a real server."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException

from sbp_spark.reading.offsets import SourceOffset
from tests.support.spark import append_values, numbered

FUTURE = "2999-01-01"


def append_in_groups(client, stream, *bounds):
    """Append records group by group, each at a time of its own; returns these, in ms."""
    (info,) = client.describe_streams([stream])
    times = []
    for first, stop in bounds:
        while times and time.time_ns() // 1_000_000 <= times[-1]:
            time.sleep(0.001)
        append_values(client, stream, numbered(first, stop))
        times.append(client.append_times({info.stream_id: first})[info.stream_id])
    return times


def iso(time_ms):
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


def test_a_batch_between_two_times(sbp, new_streams, client):
    (stream,) = new_streams(1)
    _, second, third = append_in_groups(client, stream, (0, 5), (5, 9), (9, 12))

    def read(**options):
        rows = sbp.load(stream, **options).orderBy("offset").select("offset").collect()
        return [row.offset for row in rows]

    assert read(startingTimestamp=iso(second)) == list(range(5, 12))
    assert read(startingTimestamp=str(second), endingTimestamp=str(third)) == list(range(5, 9))
    assert read(endingTimestamp=str(second + 1)) == list(range(9))
    assert read(endingTimestamp=FUTURE, startingTimestamp="-1h") == list(range(12))
    by_stream = {
        "startingOffsetsByTimestamp": json.dumps({stream: third}),
        "endingOffsetsByTimestamp": json.dumps({stream: FUTURE}),
    }
    assert read(**by_stream) == [9, 10, 11]
    late = {"startingTimestamp": FUTURE}
    with pytest.raises(PySparkException, match="option startingTimestamp is past the end"):
        read(**late)
    assert read(**late, startingOffsetsByTimestampStrategy="latest") == []


def test_a_query_starts_at_a_time_and_ends_at_another(sbp, new_streams, client, checkpoint):
    stream, copy = new_streams(2)
    _, second = append_in_groups(client, stream, (0, 5), (5, 9))
    options = {"startingTimestamp": iso(second)}
    stop = time.time_ns() // 1_000_000 + 500
    frame = sbp.load_stream(stream, **options, endingTimestamp=str(stop)).select("value")
    query = sbp.start_copy(frame, copy, checkpoint, processingTime="0 seconds")
    query.processAllAvailable()
    assert sbp.values(copy) == numbered(5, 9)
    while time.time_ns() // 1_000_000 < stop:
        time.sleep(0.01)
    query.processAllAvailable()
    assert query.isActive
    append_values(client, stream, numbered(9, 12))
    query.processAllAvailable()
    query.stop()
    assert sbp.values(copy) == numbered(5, 9)
    (info,) = client.describe_streams([stream])
    end = SourceOffset.from_json(json.loads(query.lastProgress["sources"][0]["endOffset"]))
    assert end.streams[info.stream_id].end_offset == 9
    sbp.copy(sbp.load_stream(stream).select("value"), copy, checkpoint)
    assert sbp.values(copy) == numbered(5, 12)
