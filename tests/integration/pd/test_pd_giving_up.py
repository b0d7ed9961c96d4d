"""Committed parts that a placement driver gives up as lost, and parts that it keeps."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from sbp_core.errors import (
    ConnectError,
    InvalidRequestError,
    RequestTimeoutError,
    ShuttingDownError,
    StatusCode,
    StatusError,
    StorageError,
    TxnAbortedError,
)
from sbp_core.pd.metadata.txn_tables import TransactionTables
from sbp_core.pd.txns.ending import RangeServers
from sbp_core.pd.txns.publishing import EARLIER_FIRST, STOPPING, UNANSWERED, GiveUpRequests
from sbp_core.pd.txns.txn_handlers import explain, refusal
from sbp_core.wire.headers import CommitTxnRequest
from sbp_core.wire.opcodes import Opcode
from tests.support.placement_driver import (
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

INCOMPLETE = StatusCode.TXN_INCOMPLETE


@pytest.fixture
def peer():
    made = range_server()
    yield made
    made.close()


async def give_up(cluster, batch_number, *, producer="p", timeout_ms=20_000, **fields):
    request = CommitTxnRequest(timeout_ms, producer, batch_number, give_up=True, **fields)
    (answer,) = await cluster.client.ask(Opcode.COMMIT_TXN, request)
    assert answer.is_replay
    return answer


def test_a_waiting_batch_is_not_given_up(tmp_path, peer):
    async def main():
        async with running(tmp_path) as cluster:
            await cluster.add_server(peer.endpoint)
            one = await cluster.created_id()
            peer.script(Opcode.END_TXN, end(**{f"s{one}": StatusCode.RS_INTERNAL}))
            for number in (1, 2):
                await commit(cluster, number, part(f"p.{number}.a", one), timeout_ms=100)
            with pytest.raises(
                InvalidRequestError, match=f"reports as incomplete is. stream {one}"
            ):
                await give_up(cluster, 1)
            with pytest.raises(InvalidRequestError, match="an earlier batch"):
                await give_up(cluster, 2)
            peer.script(Opcode.END_TXN, silent)
            with pytest.raises(RequestTimeoutError, match="has not answered yet"):
                await give_up(cluster, 1, timeout_ms=200)
            assert [txn.state for txn in await describe(cluster)] == ["publishing", "publishing"]
        peer.script(Opcode.END_TXN, end())
        async with running(tmp_path) as cluster:
            await decided(cluster, "published", "published")
            answer = await give_up(cluster, 2)
            assert (answer.parts, answer.is_published) == ((), True)

    asyncio.run(main())


def test_a_waiting_committer_gets_the_records_that_are_given_up(tmp_path, peer):
    async def main():
        async with running(tmp_path) as cluster:
            await cluster.add_server(peer.endpoint)
            one = await cluster.created_id()
            peer.script(Opcode.END_TXN, end(**{f"s{one}": INCOMPLETE}))
            lost = part("p.1.a", one)
            waiting = asyncio.create_task(commit(cluster, 1, lost, timeout_ms=60_000))
            await decided(cluster, "stuck")
            await give_up(cluster, 1)
            async with asyncio.timeout(30):
                answer = await waiting
            assert (answer.is_replay, answer.is_published) == (False, True)
            assert answer.parts == (lost,)

    asyncio.run(main())


def test_a_batch_that_has_become_publishable_is_published(tmp_path, peer):
    """It was stuck, and the server is asked once more."""

    async def main():
        async with running(tmp_path) as cluster:
            await cluster.add_server(peer.endpoint)
            one = await cluster.created_id()
            held = []
            peer.script(Opcode.END_TXN, end(**{f"s{one}": INCOMPLETE}), held.append, end())
            await commit(cluster, 1, part("p.1.a", one), timeout_ms=100)
            await seen(peer, 2)
            giving_up = asyncio.create_task(give_up(cluster, 1))
            await decided(cluster, "stuck")
            end()(held[0])
            answer = await giving_up
            assert (answer.parts, answer.is_published) == ((), True)
            await decided(cluster, "published")

    asyncio.run(main())


def test_a_part_is_lost_and_another_waits(tmp_path, peer):
    async def main():
        async with running(tmp_path) as cluster:
            await cluster.add_server(peer.endpoint)
            one, two = await cluster.created_id(), await cluster.created_id()
            codes = {f"s{one}": INCOMPLETE, f"s{two}": StatusCode.RS_INTERNAL}
            peer.script(Opcode.END_TXN, end(**codes))
            parts = (part("p.1.a", one), part("p.1.a", two))
            await commit(cluster, 1, *parts, timeout_ms=100)
            answer = await give_up(cluster, 1)
            assert (answer.parts, answer.is_published) == (parts[:1], False)
            assert f"stream {two}: " in answer.status.message
            await decided(cluster, "publishing")
            (described,) = await describe(cluster)
            assert (described.parts, described.lost) == (parts[1:], parts[:1])
            replay = await commit(cluster, 1, timeout_ms=100)
            assert (replay.parts, replay.is_published) == (parts[:1], False)
            peer.script(Opcode.END_TXN, end())
            await decided(cluster, "lost")
            assert (await give_up(cluster, 1)).is_published

    asyncio.run(main())


def test_a_batch_is_not_given_up_if_the_store_cannot_record_it(tmp_path, peer, monkeypatch):
    async def main():
        async with running(tmp_path) as cluster:
            await cluster.add_server(peer.endpoint)
            one = await cluster.created_id()
            peer.script(Opcode.END_TXN, end(**{f"s{one}": INCOMPLETE}))
            await commit(cluster, 1, part("p.1.a", one), timeout_ms=100)
            with monkeypatch.context() as patched:
                patched.setattr(TransactionTables, "give_up", fail)
                with pytest.raises(InvalidRequestError, match="the disk is full"):
                    await give_up(cluster, 1)
            await decided(cluster, "stuck")
            assert len((await give_up(cluster, 1)).parts) == 1

    def fail(*_):
        raise StatusError(StatusCode.PD_INTERNAL, "the disk is full")

    asyncio.run(main())


def test_remaining_parts_are_dropped_after_the_placement_driver_died(tmp_path, peer, monkeypatch):
    async def main():
        async with running(tmp_path) as cluster:
            await cluster.add_server(peer.endpoint)
            one = await cluster.created_id()
            peer.script(Opcode.END_TXN, end(**{f"s{one}": INCOMPLETE}))
            parts = (part("p.1.a", one), part("says-no-batch", one))
            await commit(cluster, 1, *parts, timeout_ms=100)
            monkeypatch.setattr(RangeServers, "drop", lambda *_: None)
            assert (await give_up(cluster, 1)).parts == parts
        asked_before = len(asked(peer))
        async with running(tmp_path) as cluster:
            questions = tuple(replace(each, record_count=-1) for each in parts)
            request = CommitTxnRequest(parts=questions)
            (answer,) = await cluster.client.ask(Opcode.COMMIT_TXN, request)
            assert answer.parts == questions, "range servers that still have them may drop them"
            with pytest.raises(TxnAbortedError):
                await commit(cluster, 2, parts[1])
            await decided(cluster, "lost")
        assert len(asked(peer)) == asked_before

    asyncio.run(main())


def test_a_request_ends_a_pause():
    async def main():
        requests = GiveUpRequests()
        pause = asyncio.create_task(requests.pause(3_600))
        await asyncio.sleep(0)
        request = asyncio.create_task(requests.ask(3_600_000))
        await asyncio.wait_for(pause, 30)
        with requests.granting() as is_asked:
            assert is_asked
        assert await request is None
        with requests.granting() as is_asked:
            assert not is_asked
        await requests.pause(0.001)

    asyncio.run(main())


def test_a_committer_that_disconnected_is_forgotten():
    async def main():
        requests = GiveUpRequests()
        gone = asyncio.create_task(requests.ask(3_600_000))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        with requests.granting() as is_asked:
            assert not is_asked
        slow = asyncio.create_task(requests.ask(3_600_000))
        await asyncio.sleep(0)
        with requests.granting():
            slow.cancel()
            await asyncio.sleep(0)
        assert slow.cancelled()

    asyncio.run(main())


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_committer_that_disconnected_does_not_end_the_wait_of_others(is_cancelled):
    async def main():
        requests = GiveUpRequests()
        gone = asyncio.create_task(requests.ask(3_600_000 if is_cancelled else 0))
        patient = asyncio.create_task(requests.ask(3_600_000))
        await asyncio.sleep(0)
        if is_cancelled:
            gone.cancel()
        (ended,) = await asyncio.gather(gone, return_exceptions=True)
        assert is_cancelled or ended is UNANSWERED
        with requests.granting() as is_asked:
            assert is_asked
        assert await patient is None

    asyncio.run(main())


def test_why_nothing_is_given_up_tells_what_helps():
    damaged = StorageError(StatusCode.RS_DATA_CORRUPTED, "batch 3")
    reasons = {1: EARLIER_FIRST, 2: ConnectError("a:1 refuses"), 3: damaged}
    error = refusal("batch 1 of p", reasons)
    assert isinstance(error, InvalidRequestError)
    assert "stream 1: an earlier batch" in error.message
    assert "refuses (it is published when that server is reachable again)" in error.message
    assert "run `sbp log repair`" in error.message
    assert isinstance(refusal("b", {**reasons, 4: UNANSWERED}), RequestTimeoutError)
    assert isinstance(refusal("b", {4: UNANSWERED, 5: STOPPING}), ShuttingDownError)
    assert explain(dict.fromkeys(range(12), "x")).endswith("; stream 9: x; and 2 more streams")


def test_a_server_that_stops_gives_nothing_up():
    async def main():
        requests = GiveUpRequests()
        asked = asyncio.create_task(requests.ask(3_600_000))
        await asyncio.sleep(0)

        async def grant():
            with requests.granting():
                await asyncio.Event().wait()

        granting = asyncio.create_task(grant())
        await asyncio.sleep(0)
        granting.cancel()
        assert await asked is STOPPING

    asyncio.run(main())
