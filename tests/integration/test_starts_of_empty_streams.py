"""Streams that have no records yet, or none any more: a query that starts there misses nothing."""

import json

import pytest

from sbp_core.client import StreamSpec
from sbp_spark.streaming.stream_reader import SbpStreamReader
from tests.support.queries import SCHEMA, MicroBatch, rows_between
from tests.support.spark import append_values


@pytest.mark.parametrize("is_available_now", [False, True])
@pytest.mark.parametrize("trimmed", [0, 4])
@pytest.mark.parametrize(
    "start",
    [
        {"startingTimestamp": "-10m", "startingOffsetsByTimestampStrategy": "error"},
        {"startingTimestamp": "2020-01-01"},
        {"startingOffsets": "latest"},
        {"startingOffsets": "-5"},
    ],
    ids=str,
)
def test_one_record_each_is_three_rows(cluster, client, start, trimmed, is_available_now, request):
    names = [f"empty-{abs(hash(request.node.name))}-{number}" for number in range(3)]
    for info in client.create_streams([StreamSpec(name) for name in names]):
        if trimmed:
            append_values(client, info.name, [b"old"] * trimmed)
            client.trim_streams({info.stream_id: trimmed})
    rows, offset = [], None
    for _ in range(2):
        given = {"endpoint": cluster.endpoint, "streams": ",".join(names), **start}
        query = SbpStreamReader({**given, "includeHeaders": "true"}, SCHEMA)
        if is_available_now:
            query.prepareForTriggerAvailableNow()
        begin = query.initialOffset() if offset is None else offset
        offset = json.loads(json.dumps(query.latestOffset(begin, query.getDefaultReadLimit())))
        rows += rows_between(query, MicroBatch(begin, offset))["value"].to_pylist()
        if not rows:
            for name in names:
                append_values(client, name, [b"new"])
    assert rows == [b"new"] * 3
