"""Batches that no reader could decode are refused before anything of them is stored."""

import asyncio

from sbp_core.errors import InvalidRequestError, WriterUnknownError
from sbp_core.wire.headers import AppendInfo, AppendRequest, StreamRange
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error
from tests.support.appends import end, one_stream, read_staged, send, staged, values
from tests.support.cluster import Known
from tests.support.data.batches import lying_batch


def run(body):
    asyncio.run(asyncio.wait_for(body, 60))


async def append(client, stream_id, *batches, **numbers):
    """The base offset of each batch, or why it was refused."""
    infos = tuple(
        AppendInfo(StreamRange(stream_id=stream_id), at, len(batch), stream_id, **numbers)
        for at, batch in enumerate(batches)
    )
    (answer,) = await client.ask(Opcode.APPEND, AppendRequest(0, infos), list(batches))
    results = sorted(answer.append_responses, key=lambda result: result.request_index)
    return [maybe_error(each.status) or each.base_offset for each in results]


def test_a_writer_may_give_the_number_of_a_refused_batch_again(tmp_path):
    async def body():
        async with one_stream(tmp_path) as (cluster, stream_id, client):
            numbers = {"writer_id": "w", "sequence": 0}
            (refused,) = await append(client, stream_id, lying_batch(), **numbers)
            assert isinstance(refused, InvalidRequestError)
            (gap,) = await send(client, stream_id, "b", first=1)
            assert isinstance(gap, WriterUnknownError)
            assert await send(client, stream_id, "a", "b") == [0, 1]
            assert await values(cluster, stream_id) == ["a", "b"]

    run(body())


def test_it_is_refused_when_it_is_staged_and_not_when_it_is_published(tmp_path):
    async def body():
        async with one_stream(tmp_path) as (cluster, stream_id, client):
            request, batches = staged(stream_id, "t", "a")
            info = request.append_requests[0]
            lying = lying_batch()
            lying_info = AppendInfo(
                info.stream_range, 1, len(lying), stream_id, None, 1, info.txn_id
            )
            (answer,) = await client.ask(
                Opcode.APPEND, AppendRequest(0, (info, lying_info)), [*batches, lying]
            )
            taken, refused = sorted(answer.append_responses, key=lambda each: each.request_index)
            assert maybe_error(taken.status) is None
            assert isinstance(maybe_error(refused.status), InvalidRequestError)
            assert await read_staged(client, stream_id, "t") == ("a", 1)
            await Known.of(tmp_path / "rs").prove(client)
            assert await end(client, stream_id, "t") == (0, 1)
            assert await values(cluster, stream_id) == ["a"]

    run(body())
