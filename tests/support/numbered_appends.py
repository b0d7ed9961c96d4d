"""Batches that their writers number, over the wire of a small cluster."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from core_cluster import core_cluster, rows_batch
from raw_client import RawClient

from sbp_core.client import StreamSpec
from sbp_core.errors import StatusCode
from sbp_core.wire.headers import AppendInfo, AppendRequest, StreamRange
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error

WAIT_SECONDS = 90


def numbered(stream_id, *names, writer="w", first=0, sequences=None, range_index=-1):
    """The header and the payload of an APPEND of numbered batches of one record each."""
    sequences = sequences or range(first, first + len(names))
    batches = [rows_batch([name.encode()], stream_id) for name in names]
    infos = tuple(
        AppendInfo(
            StreamRange(stream_id=stream_id, range_index=range_index),
            at,
            len(batch),
            stream_id,
            writer,
            sequence,
        )
        for at, (batch, sequence) in enumerate(zip(batches, sequences, strict=True))
    )
    return AppendRequest(0, infos), batches


async def send(client, stream_id, *names, **options):
    """The base offsets of batches that are appended, or why they are not."""
    request, batches = numbered(stream_id, *names, **options)
    (answer,) = await client.ask(Opcode.APPEND, request, batches)
    results = sorted(answer.append_responses, key=lambda result: result.request_index)
    return [maybe_error(each.status) or each.base_offset for each in results]


@asynccontextmanager
async def one_stream(folder, **options):
    async with core_cluster(folder, **options) as cluster:
        (stream,) = await cluster.client.create_streams([StreamSpec("s")])
        async with RawClient.at(cluster.server.endpoint) as client:
            yield cluster, stream.stream_id, client


async def values(cluster, stream_id):
    return [value.decode() for _, value in await cluster.read(stream_id)]


async def eventually(client, stream_id, *names, **options):
    """Append until the server knows the writers of earlier appends; return the outcomes."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            found = await send(client, stream_id, *names, **options)
            codes = {getattr(each, "code", 0) for each in found}
            if StatusCode.WRITERS_NOT_THERE not in codes:
                return found
            await asyncio.sleep(0.01)
