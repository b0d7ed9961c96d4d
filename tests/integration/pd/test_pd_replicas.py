"""Streams with several replicas at a placement driver whose range servers are scripted."""

import asyncio

import pytest

from sbp_core import limits
from sbp_core.errors import NotFoundError, RangeNotFoundError, StatusCode
from sbp_core.pd.model import NO_SEQ
from sbp_core.wire.headers import (
    EndTxnResponse,
    EndTxnResult,
    SealRangesResponse,
    SealRangesResult,
    Status,
    Stream,
    StreamRange,
    UpdateStreamsRequest,
)
from sbp_core.wire.opcodes import Opcode
from tests.support.placement_driver import (
    add_servers,
    becomes,
    by_server,
    codes,
    commit,
    create,
    fenced,
    ids,
    part,
    range_server,
    ranges_of,
    run,
    seal,
)
from tests.support.scripted_peer import silent, status

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


@pytest.fixture
def peers():
    made = [range_server() for _ in range(4)]
    yield made
    for each in made:
        each.close()


def sealed_at(end_offset):
    """A handler: a server with the only replica."""

    def handle(exchange):
        (asked,) = exchange.header.ranges
        sealed = StreamRange(asked.stream_id, asked.range_index, 0, end_offset)
        result = SealRangesResult(sealed, Status(), asked.stream_id)
        exchange.answer(SealRangesResponse(status=Status(), seal_responses=(result,)))

    return handle


def refused(code):
    def handle(exchange):
        results = tuple(
            SealRangesResult(None, status(code), each.stream_id) for each in exchange.header.ranges
        )
        exchange.answer(SealRangesResponse(status=Status(), seal_responses=results))

    return handle


async def update(cluster, **fields):
    request = UpdateStreamsRequest(streams=(Stream(**fields),))
    (answer,) = await cluster.client.ask(Opcode.UPDATE_STREAMS, request)
    (result,) = answer.update_responses
    return result


# Placement


def test_replicas_are_on_different_servers_and_racks(tmp_path):
    async def test(cluster):
        racks = ("east", "east", None, "west")
        a, b, c, d = [await cluster.add_server(f"h:{i}", r) for i, r in enumerate(racks, 1)]
        stream, first = await create(cluster, replica_nums=3)
        assert (stream.replica_nums, stream.ack_count) == (3, 2)
        assert (first.replica_count, first.ack_count) == (3, 2)
        assert ids(first) == [a, c, d]
        assert [each.is_primary for each in first.servers] == [True, False, False]
        assert ids((await create(cluster, replica_nums=3))[1]) == [b, c, d]
        assert ids((await create(cluster, replica_nums=4))[1]) == [c, d, a, b]
        assert ids((await create(cluster, replica_nums=1))[1]) == [d]
        for server_id in (a, b, c, d):
            listed = await cluster.list_one(by_server(server_id))
            assert len(listed.ranges) >= 2
        too_long = await cluster.beat(a, "h:1", "r" * (limits.RACK_LENGTH_MAX + 1))
        assert too_long.status.code == StatusCode.INVALID_REQUEST

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("replica_nums", "ack_count", "expected"),
    [(0, 0, 1), (1, 0, 1), (2, 0, 2), (3, 0, 2), (3, 1, 1), (4, 0, 3), (7, 0, 4), (7, 4, 4)],
)
def test_an_append_is_stored_by_the_majority_unless_told_otherwise(
    tmp_path, replica_nums, ack_count, expected
):
    async def test(cluster):
        for number in range(1, 5):
            await cluster.add_server(f"h:{number}")
        stream, first = await create(cluster, replica_nums=replica_nums, ack_count=ack_count)
        assert stream.ack_count == first.ack_count == expected
        assert stream.replica_nums == max(1, replica_nums)
        assert len(set(ids(first))) == first.replica_count == min(4, max(1, replica_nums))

    run(tmp_path, test)


def test_too_few_servers_for_the_acknowledgements_are_refused(tmp_path):
    async def test(cluster):
        await cluster.add_server("h:1")
        results = await cluster.create(
            Stream(replica_nums=3), Stream(replica_nums=3, ack_count=4), Stream(replica_nums=8)
        )
        bad = StatusCode.INVALID_REQUEST
        assert codes(results) == [StatusCode.PD_NO_AVAILABLE_RS, bad, bad]
        assert "ack_count = 2 range servers, and 1 can" in results[0].status.message
        _, first = await create(cluster, replica_nums=3, ack_count=1)
        assert len(ids(first)) == 1

    run(tmp_path, test)


# The seal


def test_a_server_that_refuses_connections_gets_no_replica_of_the_next_range(tmp_path, peers):
    async def test(cluster):
        server_ids = await add_servers(cluster, peers, 4)
        stream, first = await create(cluster, replica_nums=3, ack_count=3)
        lost = peers[server_ids.index(ids(first)[0])]
        lost.close()
        for peer in peers:
            peer.script(Opcode.SEAL_RANGE, silent)
        await becomes(lambda: refuses(lost))
        survivor = peers[server_ids.index(ids(first)[1])]
        survivor.script(Opcode.SEAL_RANGE, delayed(fenced(3, A, 30)))
        opened = (await seal(cluster, stream.stream_id)).stream_range
        assert ids(first)[0] not in ids(opened)
        assert len(ids(opened)) == 3
        assert ids(opened)[-1] == ids(first)[2], "it had not answered"

    def delayed(handler):
        """Answer after the refused connection was seen."""

        def handle(exchange):
            asyncio.run(asyncio.sleep(1))
            handler(exchange)

        return handle

    async def refuses(peer):
        host, port = peer.endpoint.rsplit(":", 1)
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except ConnectionRefusedError:
            return True
        writer.close()
        return False

    run(tmp_path, test)


# Changes


def test_replicas_are_added_and_removed_by_a_seal(tmp_path, peers):
    async def test(cluster):
        await add_servers(cluster, peers)
        stream, first = await create(cluster)
        stream_id = stream.stream_id
        peers[0].script(Opcode.SEAL_RANGE, sealed_at(40))
        result = await update(cluster, stream_id=stream_id, replica_nums=3)
        assert (result.updated_stream.replica_nums, result.updated_stream.ack_count) == (3, 2)
        sealed, opened = await ranges_of(cluster, stream_id)
        assert (sealed.end_offset, sealed.end_seq, ids(sealed)) == (40, NO_SEQ, ids(first))
        assert (opened.start_offset, opened.replica_count, opened.ack_count) == (40, 3, 2)
        for peer in peers:
            peer.script(Opcode.SEAL_RANGE, fenced(2, A, 60))
        result = await update(cluster, stream_id=stream_id, ack_count=3)
        assert (result.updated_stream.replica_nums, result.updated_stream.ack_count) == (3, 3)
        result = await update(cluster, stream_id=stream_id, replica_nums=1)
        assert (result.updated_stream.replica_nums, result.updated_stream.ack_count) == (1, 1)
        *_, second, last = await ranges_of(cluster, stream_id)
        assert (second.ack_count, second.end_seq, last.replica_count) == (3, 2, 1)
        before = await ranges_of(cluster, stream_id)
        assert (await update(cluster, stream_id=stream_id, replica_nums=1)).status.code == 0
        assert await ranges_of(cluster, stream_id) == before

    run(tmp_path, test)


def test_an_update_that_cannot_be_placed_changes_nothing(tmp_path, peers):
    async def test(cluster):
        await add_servers(cluster, peers, 1)
        stream, first = await create(cluster, name="a", retention_period_ms=5)
        stream_id = stream.stream_id
        for fields, code in (
            ({"replica_nums": 2, "name": "b"}, StatusCode.PD_NO_AVAILABLE_RS),
            ({"replica_nums": 2, "ack_count": 3}, StatusCode.INVALID_REQUEST),
            ({"ack_count": 2}, StatusCode.INVALID_REQUEST),
            ({"replica_nums": limits.REPLICAS_MAX + 1}, StatusCode.INVALID_REQUEST),
        ):
            assert (await update(cluster, stream_id=stream_id, **fields)).status.code == code
        (found,) = await cluster.describe(stream_ids=(stream_id,))
        assert found.stream == stream
        assert await ranges_of(cluster, stream_id) == (first,)
        assert peers[0].seen(Opcode.SEAL_RANGE) == []

    run(tmp_path, test)


# Transactions


def test_staged_batches_are_moved_by_the_replicas_that_answer(tmp_path, peers):
    """The primary is down, the next one lost its log: the third one has what was staged."""
    ended = []

    def end_txn(exchange):
        results = []
        for info in exchange.header.end_requests:
            ended.append(info.range_index)
            if info.range_index == 0:
                said = status(StatusCode.RANGE_ALREADY_SEALED)
            elif ended.count(1) == 1:
                said = status(StatusCode.TXN_INCOMPLETE)
            else:
                said = Status()
            results.append(EndTxnResult(info.stream_id, info.request_index, 0, 5, said))
        exchange.answer(EndTxnResponse(end_responses=tuple(results), status=Status()))

    async def test(cluster):
        server_ids = await add_servers(cluster, peers)
        stream, first = await create(cluster, replica_nums=3)
        down, lost, kept = (peers[server_ids.index(each)] for each in ids(first))
        down.close()
        for peer in (lost, kept):
            peer.script(Opcode.SEAL_RANGE, fenced(3, A, 30))
            peer.script(Opcode.END_TXN, end_txn)
        lost.script(Opcode.FETCH, lambda each: each.fail(RangeNotFoundError.of("scripted")))
        kept.script(Opcode.FETCH, lambda each: each.fail(NotFoundError.of("nothing is staged")))
        await seal(cluster, stream.stream_id)
        answer = await commit(cluster, 1, part("p.1.a", stream.stream_id))
        assert answer.is_published
        assert ended == [0, 1, 1]
        assert len(lost.seen(Opcode.FETCH)) == len(kept.seen(Opcode.FETCH)) == 1
        opened = (await ranges_of(cluster, stream.stream_id))[1]
        primary = peers[server_ids.index(ids(opened)[0])]
        assert len(primary.seen(Opcode.END_TXN)) >= 2

    run(tmp_path, test)
