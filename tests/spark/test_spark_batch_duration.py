"""Micro-batches that are to take a certain time, and those that do not wait for a dead server."""

from __future__ import annotations

import asyncio
import json

import pytest

from sbp_core.client import Client, StreamSpec
from sbp_core.cluster import LocalCluster
from sbp_spark.streaming.pace import RECORDS_FIRST, RECORDS_MIN
from tests.support.clock import until
from tests.support.machines import RangeServerProcess
from tests.support.spark import Sbp, append_values, batch_sizes, numbered


def test_micro_batches_keep_a_pace_and_nothing_is_left(sbp, new_streams, client, checkpoint):
    stream, copy = new_streams(2)
    for start in range(0, 40_000, 10_000):
        append_values(client, stream, numbered(start, start + 10_000))
    frame = sbp.load_stream(stream, targetBatchDuration="2s").select("value")
    query = sbp.copy(frame, copy, checkpoint)
    first, *others = batch_sizes(query)
    assert first == RECORDS_FIRST
    assert min(others[:-1], default=RECORDS_MIN) >= RECORDS_MIN
    assert sbp.values(copy) == numbered(0, 40_000)


@pytest.fixture
def scene(spark, tmp_path):
    """Spark, a client, a range server, and two streams of which the second is its."""
    with LocalCluster() as cluster, Client(cluster.endpoint) as client, asyncio.Runner() as runner:
        server = RangeServerProcess(tmp_path / "rs", cluster.endpoint, heartbeat_interval_ms=50)
        runner.run(server.start())
        infos = client.create_streams([StreamSpec(f"s{number}") for number in range(2)])
        placed = client.list_ranges([info.stream_id for info in infos])
        infos.sort(key=lambda info: placed[info.stream_id][-1].servers[0] == server.endpoint)
        try:
            yield Sbp(spark, cluster.endpoint), client, runner, server, infos
        finally:
            runner.run(server.__aexit__(None, None, None))


def test_a_query_goes_on_without_a_server_that_is_down(scene, checkpoint):
    sbp, client, runner, server, (kept, lost) = scene
    for info in (kept, lost):
        append_values(client, info.name, numbered(0, 10))
    read = {kept.name: [], lost.name: []}

    def keep(frame, _):
        for row in frame.orderBy("offset").collect():
            assert row.offset == len(read[row.stream])
            read[row.stream].append(bytes(row.value))

    frame = sbp.load_stream(kept.name, lost.name, maxRangeStall="1s")
    writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(processingTime="0 seconds").start()
    until(lambda: [len(each) for each in read.values()] == [10, 10])
    append_values(client, lost.name, numbered(10, 20))
    until(lambda: len(read[lost.name]) == 20)
    runner.run(server.kill())
    append_values(client, kept.name, numbered(10, 30))
    until(lambda: len(read[kept.name]) == 30)
    query.processAllAvailable()
    shown = [json.loads(each["sources"][0]["endOffset"]) for each in query.recentProgress]
    assert shown[-1]["stalled"].keys() == {str(lost.stream_id)}
    batches = query.lastProgress["batchId"]
    query.processAllAvailable()
    assert query.lastProgress["batchId"] == batches
    runner.run(server.start())
    append_values(client, lost.name, numbered(20, 30))
    until(lambda: len(read[lost.name]) == 30)
    query.stop()
    assert read == {kept.name: numbered(0, 30), lost.name: numbered(0, 30)}
