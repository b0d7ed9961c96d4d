"""Ranges that are moved to servers which an administrator names: an extension."""

from sbp_core.errors import StatusCode
from sbp_core.wire.headers import DrainServersRequest, MoveRangesRequest, RangeMove
from sbp_core.wire.opcodes import Opcode


def test_a_range_does_not_move_to_servers_that_cannot_have_it(target):
    """Rule: move-ranges-refused."""

    async def body(target):
        async with target.streams() as (placed,), target.pd() as client:
            here = placed.server.server_id

            async def code(*server_ids, stream_id=placed.stream_id):
                move = RangeMove(stream_id, -1, server_ids)
                (answer,) = await client.ask(Opcode.MOVE_RANGES, MoveRangesRequest(0, (move,)))
                (result,) = answer.move_responses
                assert result.stream_id == stream_id
                return result.is_done or result.status.code

            assert await code(here) is True, "it is there"
            for server_ids in ((), (here, here), (here, here + 77), (here + 77,)):
                assert await code(*server_ids) == StatusCode.INVALID_REQUEST
            assert await code(here, stream_id=1 << 40) == StatusCode.NOT_FOUND
            await client.ask(Opcode.DRAIN_SERVERS, DrainServersRequest(0, (here,)))
            try:
                assert await code(here) == StatusCode.INVALID_REQUEST
            finally:
                await client.ask(Opcode.DRAIN_SERVERS, DrainServersRequest(0, (here,), True))

    target.run(body)
