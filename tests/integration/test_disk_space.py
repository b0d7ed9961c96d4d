"""A range server whose disk runs full: it refuses appends before the log fails."""

from __future__ import annotations

import asyncio

import pytest

from sbp_core import limits
from sbp_core.client import AppendItem, AsyncClient, RetryPolicy, StreamSpec
from sbp_core.errors import DiskFullError, Outcome, StatusCode
from sbp_core.wire.headers import AppendInfo, AppendRequest
from sbp_core.wire.opcodes import Opcode
from tests.support.cluster import core_cluster, rows_batch
from tests.support.disk import FixedProbe
from tests.support.wire import RawClient

FLOOR = 1 << 30
PLENTY = 1 << 40


def run(folder, probe, test, **options):
    async def body():
        async with core_cluster(
            folder, probe=probe, disk_free_floor_bytes=FLOOR, **options
        ) as cluster:
            await asyncio.wait_for(test(cluster), 60)

    asyncio.run(body())


async def append(client, stream_id, value):
    (outcome,) = await client.append([AppendItem(stream_id, rows_batch([value]))])
    return outcome.base_offset


async def raw_append(cluster, *stream_ids):
    batch = rows_batch([b"raw"])
    infos = [
        AppendInfo(stream_id=stream_id, request_index=index, batch_length=len(batch))
        for index, stream_id in enumerate(stream_ids)
    ]
    async with RawClient.at(cluster.server.endpoint) as raw:
        request = AppendRequest(append_requests=tuple(infos))
        (answer,) = await raw.ask(Opcode.APPEND, request, [batch] * len(infos))
    return answer


def test_without_room_appends_are_refused_and_come_back_with_the_room(tmp_path):
    probe = FixedProbe(PLENTY)

    async def body(cluster):
        await cluster.client.create_streams([StreamSpec("s"), StreamSpec("t")])
        assert await append(cluster.client, 1, b"before") == 0
        assert await append(cluster.client, 2, b"before") == 0
        probe.free = FLOOR - 1
        await cluster.server._disk_space.measure()
        assert [each.code for each in cluster.server.unready()] == ["disk_full"]
        answer = await raw_append(cluster, 1, 2)
        assert answer.throttle_time_ms == limits.THROTTLE_MS
        for result in answer.append_responses:
            assert result.status.code == StatusCode.RS_DISK_FULL
            assert f"{FLOOR - 1} bytes left" in result.status.message
            assert result.base_offset == -1
        hasty = RetryPolicy(budget_ms=0)
        async with AsyncClient(cluster.pd.endpoint, retry=hasty) as client:
            with pytest.raises(DiskFullError) as caught:
                await append(client, 1, b"now")
        assert caught.value.retriable
        assert caught.value.outcome is Outcome.NOT_APPLIED
        assert await cluster.read(1) == [(0, b"before")]

        failures = cluster.server._metrics.appends.failures
        waiting = asyncio.create_task(append(cluster.client, 1, b"after"))
        async with asyncio.timeout(20):
            while cluster.server._metrics.appends.failures == failures:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not waiting.done()
        probe.free = PLENTY
        assert await waiting == 1, "the appends themselves make the server look again"
        assert cluster.server.unready() == []
        assert cluster.server._metrics.throttled["disk"] == cluster.server._metrics.appends.failures
        assert await cluster.read(1) == [(0, b"before"), (1, b"after")]

    run(tmp_path, probe, body, heartbeat_interval_ms=limits.HEARTBEAT_TIMEOUT_MS // 3)


def test_without_room_streams_can_be_created_sealed_trimmed_and_deleted(tmp_path):
    probe = FixedProbe(PLENTY)

    async def body(cluster):
        await cluster.client.create_streams([StreamSpec("s"), StreamSpec("t")])
        for stream_id in (1, 2):
            await append(cluster.client, stream_id, b"value")
        probe.free = FLOOR - 1
        await cluster.server._disk_space.measure()
        assert (await cluster.client.seal_streams([1]))[1].start_offset == 1
        assert (await cluster.client.trim_streams({2: 1}))[2].start_offset == 1
        (third,) = await cluster.client.create_streams([StreamSpec("u")])
        assert (await raw_append(cluster, third.stream_id)).append_responses[
            0
        ].status.code == StatusCode.RS_DISK_FULL
        await cluster.client.delete_streams([2])

    run(tmp_path, probe, body, heartbeat_interval_ms=limits.HEARTBEAT_TIMEOUT_MS // 3)
