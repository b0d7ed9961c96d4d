"""Streams with several replicas at a placement driver whose range servers are scripted."""

import asyncio

from pd_cluster import by_stream, running

from sbp_core.wire.headers import (
    RangeId,
    SealCause,
    SealRangesRequest,
    SealRangesResponse,
    SealRangesResult,
    Status,
    Stream,
    StreamRange,
)
from sbp_core.wire.opcodes import Opcode


def fenced(seq, digest, next_offset, *, is_damaged=False, writers=b""):
    """A handler: a replica that was fenced, and has these entries."""

    def handle(exchange):
        exchange.answer(
            SealRangesResponse(
                status=Status(),
                seal_responses=tuple(
                    SealRangesResult(
                        StreamRange(each.stream_id, each.range_index, next_offset=next_offset),
                        Status(),
                        each.stream_id,
                        writers,
                        seq,
                        digest,
                        is_damaged,
                    )
                    for each in exchange.header.ranges
                ),
            )
        )

    return handle


def run(tmp_path, test, **settings):
    async def main():
        async with running(tmp_path, **settings) as cluster:
            return await test(cluster)

    return asyncio.run(main())


async def add_servers(cluster, peers, count=3):
    return [await cluster.add_server(each.endpoint) for each in peers[:count]]


async def create(cluster, **fields):
    (result,) = await cluster.create(Stream(**fields))
    assert result.status.code == 0, result.status.message
    return result.stream, result.stream_range


async def seal(cluster, stream_id, index=0, cause=SealCause.REQUESTED):
    request = SealRangesRequest(ranges=(RangeId(stream_id, index),), cause=cause)
    (answer,) = await cluster.client.ask(Opcode.SEAL_RANGE, request)
    (result,) = answer.seal_responses
    return result


async def ranges_of(cluster, stream_id):
    return (await cluster.list_one(by_stream(stream_id))).ranges


def ids(stream_range):
    return [each.server.server_id for each in stream_range.servers]


async def becomes(is_so):
    async with asyncio.timeout(30):
        while True:
            if await is_so():
                return
            await asyncio.sleep(0.01)
