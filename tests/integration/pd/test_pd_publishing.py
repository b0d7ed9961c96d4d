"""Requests of a placement driver to range servers, here scripted, to publish committed parts."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from sbp_core import limits
from sbp_core.errors import InvalidRequestError
from sbp_core.pd.txns.decisions import Part, TxnRecord
from sbp_core.pd.txns.ending import RangeServers, Route
from sbp_core.pd.txns.publications import Publication
from sbp_core.pd.txns.publishing import Publisher
from sbp_core.wire.headers import CommitTxnRequest, TxnPart
from sbp_core.wire.opcodes import Opcode
from tests.support.placement_driver import (
    DIGEST,
    asked,
    commit,
    decided,
    describe,
    end,
    part,
    range_server,
    running,
    seen,
)
from tests.support.scripted_peer import silent


@pytest.fixture
def peer():
    made = range_server()
    yield made
    made.close()


def test_a_committed_batch_is_published_by_one_frame(tmp_path, peer):
    async def main():
        async with running(tmp_path) as cluster:
            await cluster.add_server(peer.endpoint)
            one, two = await cluster.created_id(), await cluster.created_id()
            peer.script(Opcode.END_TXN, end())
            parts = (part("p.1.a", one), part("p.1.a", two), part("p.1.b", one, count=1))
            answer = await commit(cluster, 1, *parts)
            assert (answer.is_replay, answer.is_published) == (False, True)
            assert (answer.record_count, answer.digest) == (5, DIGEST)
            assert asked(peer) == [
                [(one, 0, ("p.1.a", "p.1.b"), True, 6), (two, 0, ("p.1.a",), True, 5)]
            ]
            again = await commit(cluster, 1, part("p.1.z", one))
            assert (again.is_replay, again.is_published, again.digest) == (True, True, DIGEST)
            empty = await commit(cluster, 2)
            assert (empty.is_replay, empty.is_published) == (False, True)
            assert len(asked(peer)) == 1
            await decided(cluster, "published", "published")

    asyncio.run(main())


def test_a_batch_that_no_range_can_publish_is_not_decided(tmp_path):
    async def main():
        async with running(tmp_path) as cluster:
            await cluster.add_server("127.0.0.1:1")
            one = await cluster.created_id()
            many = TxnPart("p.1.a", one, 5, 0, limits.TXN_BATCHES_MAX)
            with pytest.raises(InvalidRequestError, match="published at once"):
                await commit(cluster, 1, many, TxnPart("p.1.b", one, 1, 0, 1))
            assert await describe(cluster) == []

    asyncio.run(main())


def test_unpublished_batches_are_published_after_a_restart(tmp_path, peer):
    async def main():
        async with running(tmp_path) as cluster:
            await cluster.add_server(peer.endpoint)
            one = await cluster.created_id()
            peer.script(Opcode.END_TXN, silent)
            for number in (1, 2):
                answer = await commit(cluster, number, part(f"p.{number}.a", one), timeout_ms=100)
                assert not answer.is_published
        peer.script(Opcode.END_TXN, end())
        async with running(tmp_path) as cluster:
            await decided(cluster, "published", "published")
        sent = [frame[0][2] for frame in asked(peer)]
        assert sent[0] == ("p.1.a",)
        assert sent[-2:] == [("p.1.a",), ("p.2.a",)]
        async with running(tmp_path) as cluster:
            assert (await commit(cluster, 2)).is_published
        assert len(asked(peer)) == len(sent), "published parts are not sent again"

    asyncio.run(main())


def test_a_stop_ends_every_wait(tmp_path, peer):
    async def main():
        async with running(tmp_path) as cluster:
            await cluster.add_server(peer.endpoint)
            one = await cluster.created_id()
            peer.script(Opcode.END_TXN, silent)
            waiting = asyncio.create_task(commit(cluster, 1, part("p.1.a", one)))
            await seen(peer, 1)
            async with asyncio.timeout(8):
                await cluster.driver.stop()
                answer = await waiting
            assert (answer.is_replay, answer.is_published) == (False, False)

    asyncio.run(main())


def test_a_stopped_publisher_reports_nothing_as_published(tmp_path):
    async def main():
        publisher = Publisher(None, None, None, None)
        await publisher.stop()
        txn = TxnRecord(7, "p", 1, 5, DIGEST, 9, (Part("p.1.a", 1, 0, 5),))
        publisher.add(txn)
        assert not (await publisher.open_decisions.wait(txn, 1_000)).is_published

    asyncio.run(main())


def test_an_unexpected_error_gives_up_nothing(tmp_path, peer, monkeypatch, caplog):
    publish = RangeServers.publish
    failures = iter([RuntimeError("a mistake of ours")])

    async def failing(servers, publication, address):
        for failure in failures:
            raise failure
        await publish(servers, publication, address)

    async def main():
        monkeypatch.setattr(RangeServers, "publish", failing)
        async with running(tmp_path) as cluster:
            await cluster.add_server(peer.endpoint)
            one = await cluster.created_id()
            peer.script(Opcode.END_TXN, end())
            assert (await commit(cluster, 1, part("p.1.a", one))).is_published
            assert (await commit(cluster, 2, part("p.2.a", one))).is_published

    asyncio.run(main())
    logged = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert list(map(str, logged)) == ["a mistake of ours"]


def test_few_streams_are_copied_at_a_time():
    at_work = Counter()
    most = []

    class CopyingPeers:
        async def copy_staged(self, *_, **__):
            at_work["copies"] += 1
            most.append(at_work["copies"])
            await asyncio.sleep(0)
            at_work["copies"] -= 1

    class RoutedServers(RangeServers):
        async def maybe_route(self, stream_id, range_index):
            return Route("127.0.0.1:2", is_last=False)

    async def main():
        servers = RoutedServers(None, CopyingPeers())
        earlier = [
            Publication(1, stream_id, (Part("t", stream_id, 0, 5),), range_index=1)
            for stream_id in range(3 * limits.TXN_COPIES_MAX)
        ]
        here = Route("127.0.0.1:1", is_last=True)
        await asyncio.gather(*(servers.copy_earlier(each, here) for each in earlier))
        assert len(most) == len(earlier)
        assert max(most) == limits.TXN_COPIES_MAX

    asyncio.run(main())


def test_a_given_up_batch_is_dropped_and_a_mere_request_drops_nothing(tmp_path, peer):
    async def main():
        async with running(tmp_path) as cluster:
            await cluster.add_server(peer.endpoint)
            one = await cluster.created_id()
            peer.script(Opcode.END_TXN, end())
            await commit(cluster, 1, part("p.1.a", one))
            parts = (part("p.1.z", one, count=-1), part("p.2.z", one, count=-1))
            (answer,) = await cluster.client.ask(Opcode.COMMIT_TXN, CommitTxnRequest(parts=parts))
            assert answer.parts == parts[:1]
            parts = (part("p.2.a", one), part("p.2.b", one, count=0))
            (answer,) = await cluster.client.ask(Opcode.COMMIT_TXN, CommitTxnRequest(parts=parts))
            assert answer.parts == parts
            await seen(peer, 2)
            assert asked(peer)[1:] == [[(one, 0, ("p.2.a", "p.2.b"), False, -1)]]
            given_up = (await describe(cluster, "p"))[1:]
            assert [(each.state, each.batch_number, each.parts[0].txn_id) for each in given_up] == [
                ("aborted", 2, "p.2.a"),
                ("aborted", 2, "p.2.b"),
            ]

    asyncio.run(main())
