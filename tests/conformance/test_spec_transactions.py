"""COMMIT_TXN and DESCRIBE_TXNS, an extension: another server may refuse them all."""

from __future__ import annotations

from uuid import uuid4

import pytest
from msgspec.structs import replace
from spec_target import append_request, batch

from sbp_core.errors import InvalidRequestError, NotFoundError, TxnAbortedError
from sbp_core.records import split_envelopes
from sbp_core.wire.headers import (
    CommitTxnRequest,
    DescribeTxnsRequest,
    FetchInfo,
    FetchRequest,
    FetchResponse,
    StagedParts,
    StreamRange,
    TxnPart,
    decode_header,
)
from sbp_core.wire.opcodes import Opcode

DIGEST = b"conformance"
NO_STREAM = 2**40


class Staging:
    """A producer of its own, the placement driver, and the server of a stream."""

    def __init__(self, pd, server, placed) -> None:
        self.producer = f"conformance-{uuid4().hex[:12]}"
        self.pd, self.server, self.placed = pd, server, placed

    async def stage(self, batch_number, unique, record_count=1) -> TxnPart:
        """Stage a batch whose body is `unique`."""
        placed = self.placed
        txn_id = f"{self.producer}.{batch_number}.{unique}"
        request, payload = append_request((placed, batch(record_count, unique.encode())))
        (info,) = request.append_requests
        staged = replace(info, txn_id=txn_id, sequence=0)
        (answer,) = await self.server.ask(
            Opcode.APPEND, replace(request, append_requests=(staged,)), payload
        )
        assert answer.append_responses[0].status.code == 0
        return TxnPart(txn_id, placed.stream_id, record_count, 0)

    async def commit(self, batch_number, *parts, digest=DIGEST, producer=None, timeout_ms=20_000):
        request = CommitTxnRequest(
            timeout_ms,
            self.producer if producer is None else producer,
            batch_number,
            parts,
            sum(part.record_count for part in parts),
            digest,
            commit=True,
        )
        (answer,) = await self.pd.ask(Opcode.COMMIT_TXN, request)
        return answer

    async def give_up(self, batch_number):
        request = CommitTxnRequest(20_000, self.producer, batch_number, give_up=True)
        (answer,) = await self.pd.ask(Opcode.COMMIT_TXN, request)
        return answer

    async def abort(self, *parts):
        answers = await self.pd.ask(Opcode.COMMIT_TXN, CommitTxnRequest(20_000, parts=parts))
        return [part for answer in answers for part in answer.parts]

    async def bodies(self) -> list[bytes]:
        """The bodies that readers of a stream see."""
        where = StreamRange(stream_id=self.placed.stream_id, range_index=0, end_offset=-1)
        info = FetchInfo(where, 0, 0, 1 << 20, self.placed.stream_id)
        (frame,) = await self.server.call(Opcode.FETCH, FetchRequest(0, 1, (info,)))
        (result,) = decode_header(FetchResponse, frame.header).fetch_responses
        assert result.status.code == 0
        return [bytes(each.body) for each in split_envelopes(frame.payload)]

    async def describe(self, client):
        answers = await client.ask(Opcode.DESCRIBE_TXNS, DescribeTxnsRequest(0, self.producer))
        return [txn for answer in answers for txn in answer.txns]


@pytest.fixture
def staging(target):
    """Runs a test with a new stream."""

    def run(test):
        async def body(target):
            async with target.streams() as (placed,), target.pd() as pd:
                range_server = type(target)(placed.server.advertise_addr)
                async with range_server.pd() as server:
                    await test(Staging(pd, server, placed))

        target.run(body)

    return run


def test_the_first_decision_counts(staging):
    """Rule: commit-txn, commit-txn-replay."""

    async def body(txns):
        a, b = await txns.stage(0, "a"), await txns.stage(0, "b")
        other = await txns.stage(0, "c")
        answer = await txns.commit(0, b, a)
        assert (answer.is_replay, answer.is_published) == (False, True)
        assert await txns.bodies() == [b"b", b"a"]
        again = await txns.commit(0, other, digest=b"something else")
        assert (again.is_replay, again.is_published) == (True, True)
        assert (again.record_count, again.digest) == (2, DIGEST)
        assert await txns.bodies() == [b"b", b"a"]
        assert await txns.abort(other) == [other]

    staging(body)


def test_parts_may_be_named_column_by_column(staging):
    """`staged` of COMMIT_TXN. Rules: commit-txn, commit-txn-refused."""

    async def body(txns):
        a, b, c = [await txns.stage(0, each) for each in "abc"]
        columns = [
            StagedParts(
                each.txn_id, (each.stream_id,), (each.range_index,), (each.record_count,), (1,)
            )
            for each in (c, b)
        ]
        request = CommitTxnRequest(20_000, txns.producer, 0, (a,), 3, DIGEST, commit=True)
        broken = (replace(columns[0], record_counts=()), columns[1])
        for wrong in (replace(request, staged=broken), replace(request, commit=False)):
            with pytest.raises(InvalidRequestError):
                await txns.pd.ask(Opcode.COMMIT_TXN, replace(wrong, staged=wrong.staged or broken))
        (answer,) = await txns.pd.ask(Opcode.COMMIT_TXN, replace(request, staged=tuple(columns)))
        assert (answer.is_replay, answer.is_published) == (False, True)
        assert await txns.bodies() == [b"a", b"c", b"b"]

    staging(body)


def test_a_batch_number_that_leaps_is_refused(staging):
    """Rule: commit-txn-leap."""

    async def body(txns):
        await txns.commit(7, await txns.stage(7, "a"))
        leaping = await txns.stage(2**63 - 1, "z")
        with pytest.raises(InvalidRequestError):
            await txns.commit(2**63 - 1, leaping)
        assert not (await txns.commit(8, await txns.stage(8, "b"))).is_replay
        assert await txns.bodies() == [b"a", b"b"]

    staging(body)


def test_decisions_become_visible_in_their_order(staging):
    """Rule: commit-txn-order."""

    async def body(txns):
        later = await txns.stage(4, "later")
        for batch_number in range(4):
            await txns.commit(batch_number, await txns.stage(batch_number, f"{batch_number}"))
        assert (await txns.commit(4, later)).is_published
        assert await txns.bodies() == [b"0", b"1", b"2", b"3", b"later"]

    staging(body)


def test_a_commit_of_something_else_is_refused(staging):
    """Rule: commit-txn-refused."""

    async def body(txns):
        part = await txns.stage(1, "a")
        wrong = [
            ((1, part), {"producer": "a b"}),
            ((-1, part), {}),
            ((1, part), {"digest": b"short"}),
            ((1, part, part), {}),
            ((2, part), {}),
            ((1, replace(part, txn_id=f"{part.txn_id}~0")), {}),
        ]
        for arguments, options in wrong:
            with pytest.raises(InvalidRequestError):
                await txns.commit(*arguments, **options)
        with pytest.raises(NotFoundError):
            await txns.commit(1, part, replace(part, stream_id=NO_STREAM))
        assert await txns.bodies() == []
        assert not (await txns.commit(1, part)).is_replay

    staging(body)


def test_a_given_up_batch_stays_given_up(staging):
    """Rule: abort-txn, abort-txn-asked."""

    async def body(txns):
        part, kept = await txns.stage(1, "a"), await txns.stage(1, "b")
        asked = replace(part, record_count=-1)
        assert await txns.abort(asked) == []
        assert await txns.abort(part) == [part]
        assert await txns.abort(asked) == [asked]
        with pytest.raises(TxnAbortedError):
            await txns.commit(1, part)
        assert (await txns.commit(1, kept)).is_published
        await txns.abort(kept)
        assert await txns.bodies() == [b"b"]

    staging(body)


def test_a_lost_batch_is_given_up(staging):
    """Rule: give-up-txn, give-up-txn-refused."""

    async def body(txns):
        with pytest.raises(NotFoundError):
            await txns.give_up(1)
        kept = await txns.stage(1, "a")
        await txns.commit(1, kept)
        assert (await txns.give_up(1)).parts == ()
        lost = replace(await txns.stage(2, "b"), record_count=2)
        assert not (await txns.commit(2, lost, timeout_ms=100)).is_published
        for _ in range(2):
            answer = await txns.give_up(2)
            assert (answer.is_replay, answer.is_published) == (True, True)
            assert answer.parts == (lost,)
        assert (await txns.commit(2, lost)).is_replay
        assert (await txns.commit(3, await txns.stage(3, "c"))).is_published
        assert await txns.bodies() == [b"a", b"c"]

    staging(body)


def test_transactions_are_described(staging):
    """Rule: describe-txns."""

    async def body(txns):
        part, given_up = await txns.stage(1, "a", record_count=2), await txns.stage(2, "b")
        (one, two) = sorted(await txns.describe(txns.server), key=lambda txn: txn.batch_number)
        assert (one.state, one.producer, one.batch_number) == ("staged", txns.producer, 1)
        known = [replace(each, batch_count=1) for each in (part, given_up)]
        assert [*one.parts, *two.parts] == known
        assert one.staged_at_ms > 0
        await txns.commit(1, part)
        await txns.abort(given_up)
        decided, dropped = await txns.describe(txns.pd)
        assert (decided.batch_number, decided.record_count, decided.digest) == (1, 2, DIGEST)
        assert decided.state in {"publishing", "published"}
        assert (dropped.state, dropped.batch_number) == ("aborted", 2)
        assert dropped.parts[0].txn_id == given_up.txn_id

    staging(body)
