"""Calls from server to server: one warm connection for each address, renewed when it is lost."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from sbp_core import limits
from sbp_core.client.connecting import Connecting
from sbp_core.client.operations.open_calls import Call
from sbp_core.errors import (
    ConnectError,
    ConnectionLostError,
    NotFoundError,
    PermissionDeniedError,
    ProtocolError,
    ShuttingDownError,
    StatusCode,
)
from sbp_core.peers.driver_calls import Peers, by_server
from sbp_core.peers.links import Links, Secrets, holds
from sbp_core.server.trust import denied, proof_of
from sbp_core.wire.headers import (
    DescribeRangeResult,
    DescribeRangesResponse,
    HeartbeatResponse,
    SealRangesResponse,
    SealRangesResult,
    Status,
    StreamRange,
    SyncRangesResponse,
)
from sbp_core.wire.opcodes import Opcode
from tests.support.clock import until
from tests.support.scripted_peer import ScriptedPeer, placed, reset, silent, status

SECRET, CHALLENGE = "s" * 64, b"challenge"


@pytest.fixture
def peer():
    made = range_server()
    yield made
    made.close()


async def seal(peers, ranges):
    """Seal ranges at all their servers, as a placement driver does."""
    answers = await asyncio.gather(*(peers.seal(*each) for each in by_server(ranges).items()))
    return {stream_id: answer for part in answers for stream_id, answer in part.items()}


def range_server():
    made = ScriptedPeer()
    made.script(Opcode.SEAL_RANGE, sealed)
    made.script(Opcode.DESCRIBE_RANGE, described)
    made.script(Opcode.SYNC_RANGES, lambda exchange: exchange.answer(SyncRangesResponse()))
    return made


def sealed(exchange, *, left_out=(), codes=None):
    exchange.answer(
        SealRangesResponse(
            status=Status(),
            seal_responses=tuple(
                SealRangesResult(
                    StreamRange(each.stream_id, each.range_index, 0, 9),
                    status((codes or {}).get(each.stream_id, StatusCode.NONE)),
                    each.stream_id,
                )
                for each in exchange.header.ranges
                if each.stream_id not in left_out
            ),
        )
    )


def described(exchange):
    exchange.answer(
        DescribeRangesResponse(
            status=Status(),
            describe_responses=tuple(
                DescribeRangeResult(
                    each.stream_id, StreamRange(each.stream_id, next_offset=5), Status()
                )
                for each in exchange.header.ranges
            ),
        )
    )


def greeted(exchange):
    exchange.answer(HeartbeatResponse(status=Status()))


def open_at(peer, *stream_ids):
    return [placed(each, 0, 0, -1, peer.endpoint) for each in stream_ids]


def ping(peer):
    return Call(peer.endpoint, Opcode.PING, None, 5_000)


@asynccontextmanager
async def calling(**options):
    async def secrets_at(address):
        return [SECRET]

    peers = Peers(Links(Connecting(), Secrets("c", secrets_at), **options))
    try:
        yield peers
    finally:
        await peers.close()


def test_all_calls_to_a_server_share_one_connection(peer):
    async def main():
        async with calling() as peers:
            ranges = open_at(peer, 1, 2)
            assert {
                each: found.stream_range.end_offset
                for each, found in (await seal(peers, ranges)).items()
            } == {1: 9, 2: 9}
            assert {
                each: found.stream_range.next_offset
                for each, found in (await peers.describe(ranges)).items()
            } == {1: 5, 2: 5}
            await peers.sync(peer.endpoint, ranges)
            await asyncio.gather(*(seal(peers, open_at(peer, each)) for each in range(3, 9)))
        assert len(peer.links) == 1

    asyncio.run(main())


def test_many_ranges_go_in_few_calls_to_each_server(peer):
    other = range_server()

    async def main():
        async with calling() as peers:
            count = limits.STREAMS_PER_CALL + 1
            ranges = open_at(peer, *range(1, count + 1)) + open_at(other, count + 1)
            assert sorted(await seal(peers, ranges)) == list(range(1, count + 2))
        assert [len(each.header.ranges) for each in peer.seen(Opcode.SEAL_RANGE)] == [count - 1, 1]
        assert len(other.seen(Opcode.SEAL_RANGE)) == 1

    asyncio.run(main())
    other.close()


def test_each_range_has_a_result_or_a_reason(peer):
    """Refused, left out, without an address, at a server that is down: the others are sealed."""
    peer.script(
        Opcode.SEAL_RANGE,
        lambda exchange: sealed(exchange, left_out=(2,), codes={3: StatusCode.NOT_FOUND}),
    )

    async def main():
        async with calling() as peers:
            nowhere = [
                placed(4, 0, 0, -1, ""),
                StreamRange(5, 0),
                placed(6, 0, 0, -1, "127.0.0.1:1"),
            ]
            answers = await seal(peers, open_at(peer, 1, 2, 3) + nowhere)
            assert answers[1].stream_range.end_offset == 9
            assert isinstance(answers[2], ProtocolError)
            assert isinstance(answers[3], NotFoundError)
            assert isinstance(answers[6], ConnectError)
            assert "host:port" in str(answers[4])
            assert "host:port" in str(answers[5])

    asyncio.run(main())


def test_a_warm_connection_that_is_lost_is_replaced_and_the_call_made_again(peer):
    async def main():
        async with calling() as peers:
            await peers._links.exchange(ping(peer))
            peer.script(Opcode.SEAL_RANGE, reset, sealed)
            (answer,) = (await seal(peers, open_at(peer, 1))).values()
            assert answer.stream_range.end_offset == 9
        assert len(peer.links) == 2

    asyncio.run(main())


def test_a_call_that_crosses_the_end_of_an_idle_connection_is_made_again(peer):
    async def main():
        async with calling() as peers:
            await peers._links.exchange(ping(peer))
            leaving = ShuttingDownError(StatusCode.RS_SHUTTING_DOWN, "idle")
            peer.script(Opcode.SEAL_RANGE, lambda exchange: exchange.fail(leaving), sealed)
            (answer,) = (await seal(peers, open_at(peer, 1))).values()
            assert answer.stream_range.end_offset == 9

    asyncio.run(main())


def test_a_server_that_ends_every_connection_is_asked_twice_at_most(peer):
    peer.script(Opcode.SEAL_RANGE, reset)

    async def main():
        async with calling() as peers:
            assert isinstance((await seal(peers, open_at(peer, 1)))[1], ConnectionLostError)
            assert len(peer.seen(Opcode.SEAL_RANGE)) == 1, "the connection was new"
            await peers._links.exchange(ping(peer))
            assert isinstance((await seal(peers, open_at(peer, 1)))[1], ConnectionLostError)
            assert len(peer.seen(Opcode.SEAL_RANGE)) == 3

    asyncio.run(main())


def test_idle_connections_are_bounded():
    servers = [range_server() for _ in range(4)]

    async def main():
        async with calling(connections_max=2) as peers:
            held = asyncio.create_task(
                peers._links.exchange(Call(servers[0].endpoint, Opcode.SEAL_RANGE, None, 60_000))
            )
            for each in servers[1:]:
                await peers._links.exchange(ping(each))
            for each in servers[1:3]:
                await asyncio.to_thread(each.links[0].is_over.wait, 10)
            assert [each.links[0].is_over.is_set() for each in servers] == [
                False,
                True,
                True,
                False,
            ]
            await peers._links.exchange(ping(servers[3]))
            await peers._links.exchange(ping(servers[1]))
            held.cancel()
        assert [len(each.links) for each in servers] == [1, 2, 1, 1]

    servers[0].script(Opcode.SEAL_RANGE, silent)
    asyncio.run(main())
    for each in servers:
        each.close()


def test_a_close_ends_open_calls_and_refuses_new_ones(peer):
    peer.script(Opcode.SEAL_RANGE, silent)

    async def main():
        async with calling() as peers:
            await peers._links.exchange(ping(peer))
            held = asyncio.create_task(seal(peers, open_at(peer, 1)))
            await asyncio.to_thread(until, lambda: peer.seen(Opcode.SEAL_RANGE))
            await peers.close()
            assert isinstance((await held)[1], ConnectError | ConnectionLostError)
            with pytest.raises(ConnectError, match="is stopping"):
                await peers._links.exchange(ping(peer))
        assert len(peer.links) == 1

    asyncio.run(main())


def sealed_for(proven):
    def seal(exchange):
        if exchange.link in proven:
            sealed(exchange)
        else:
            exchange.fail(denied("scripted"))

    return seal


def wants_proof(peer, secret=SECRET):
    """Let a peer serve the sealing of those only that gave a proof, on their connection."""
    proven = []

    def greet(exchange):
        given = exchange.header.server_secret
        if exchange.header.client_role and given == proof_of(secret, CHALLENGE):
            proven.append(exchange.link)
            exchange.answer(HeartbeatResponse(status=Status()))
        else:
            denial = status(StatusCode.PERMISSION_DENIED, detail=CHALLENGE)
            exchange.answer(HeartbeatResponse(status=denial))

    peer.script(Opcode.HEARTBEAT, greet)
    peer.script(Opcode.SEAL_RANGE, sealed_for(proven))
    return proven


def seals_on(peer, link):
    return [each.link for each in peer.seen(Opcode.SEAL_RANGE)].count(link)


def test_a_proof_is_given_once_for_each_connection(peer):
    proven = wants_proof(peer)

    async def main():
        async with calling() as peers:
            await peers._links.exchange(ping(peer))
            for _ in range(3):
                assert (await seal(peers, open_at(peer, 1)))[1].stream_range.end_offset == 9
            assert len(proven) == 1
            peer.links[-1].reset()
            assert (await seal(peers, open_at(peer, 1)))[1].stream_range.end_offset == 9
        assert len(proven) == len(peer.links) == 2
        assert seals_on(peer, peer.links[1]) == 1, "none is refused"

    asyncio.run(main())


def test_calls_that_share_a_new_connection_wait_for_the_proof(peer):
    proven = wants_proof(peer)

    async def main():
        async with calling() as peers:
            answers = await asyncio.gather(*(seal(peers, open_at(peer, each)) for each in (1, 2)))
            assert [each.stream_range.end_offset for each in answers[0].values()] == [9]
            assert [each.stream_range.end_offset for each in answers[1].values()] == [9]
        assert len(peer.links) == 1
        assert {*proven} == {*peer.links}
        assert len(peer.seen(Opcode.SEAL_RANGE)) == 2, "none is refused"

    asyncio.run(main())


def test_the_connection_that_replaces_one_during_a_call_is_proven_too(peer):
    proven = wants_proof(peer)

    async def main():
        async with calling() as peers:
            await seal(peers, open_at(peer, 1))
            peer.script(Opcode.SEAL_RANGE, reset, sealed_for(proven))
            assert (await seal(peers, open_at(peer, 1)))[1].stream_range.end_offset == 9
        assert len(proven) == len(peer.links) == 2
        assert [seals_on(peer, each) for each in peer.links] == [2, 1], "none is refused"

    asyncio.run(main())


def test_a_server_that_has_a_secret_later_gets_the_proof_then(peer):
    peer.script(Opcode.HEARTBEAT, greeted)

    async def main():
        async with calling() as peers:
            await seal(peers, open_at(peer, 1))
            proven = wants_proof(peer)
            assert (await seal(peers, open_at(peer, 1)))[1].stream_range.end_offset == 9
        assert proven == peer.links
        assert len(peer.seen(Opcode.SEAL_RANGE)) == 3, "one is refused"

    asyncio.run(main())


def test_a_server_that_refuses_the_proof_is_asked_only_what_needs_none(peer):
    peer.script(Opcode.HEARTBEAT, lambda exchange: exchange.fail(denied("scripted", CHALLENGE)))

    async def main():
        async with calling() as peers:
            ranges = open_at(peer, 1)
            assert isinstance((await seal(peers, ranges))[1], PermissionDeniedError)
            assert (await peers.describe(ranges))[1].stream_range.next_offset == 5
        assert not peer.seen(Opcode.SEAL_RANGE)

    asyncio.run(main())


def test_a_call_that_is_refused_although_the_proof_was_given_is_made_twice_at_most(peer):
    wants_proof(peer)
    peer.script(Opcode.SEAL_RANGE, lambda exchange: exchange.fail(denied("scripted")))

    async def main():
        async with calling() as peers:
            assert isinstance((await seal(peers, open_at(peer, 1)))[1], PermissionDeniedError)
        assert len(peer.seen(Opcode.SEAL_RANGE)) == 2

    asyncio.run(main())


def test_a_peer_with_a_secret_has_a_connection_of_its_own(peer):
    async def main():
        wants_proof(peer)
        async with calling() as peers:
            await seal(peers, open_at(peer, 1))
            assert await holds(peer.endpoint, "c", SECRET) is True
        wants_proof(peer, "another")
        assert await holds(peer.endpoint, "c", SECRET) is False
        peer.script(
            Opcode.HEARTBEAT, lambda exchange: exchange.answer(HeartbeatResponse(status=Status()))
        )
        assert await holds(peer.endpoint, "c", SECRET) is None, "it wants no proof"
        assert await holds("127.0.0.1:1", "c", SECRET) is None
        assert len(peer.links) == 4

    asyncio.run(main())
