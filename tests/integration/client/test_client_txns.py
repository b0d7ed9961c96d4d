"""Transactions of both clients against answers that servers may give, and some they may not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sbp_core import limits
from sbp_core.client import TxnDecision, TxnInfo, TxnLoss, TxnPart
from sbp_core.errors import (
    ConfigurationError,
    ProtocolError,
    StatusCode,
    StatusError,
    TxnAbortedError,
    UnsupportedError,
)
from sbp_core.wire import headers
from sbp_core.wire.headers import (
    CommitTxnResponse,
    DescribeStreamResult,
    DescribeStreamsResponse,
    DescribeTxnsResponse,
    Status,
    Stream,
    TxnDescription,
)
from sbp_core.wire.opcodes import Opcode
from tests.support.scripted_peer import Exchange, placed, ranges, reset, status

PARTS = [TxnPart("p.1.a", 7, 0, 5, 2), TxnPart("p.1.b", 3, 2, 1)]
DIGEST = b"12345678"
DECISION = {"record_count": 6, "digest": DIGEST}


def wire(*parts: TxnPart) -> tuple[headers.TxnPart, ...]:
    return tuple(
        headers.TxnPart(
            each.txn_id, each.stream_id, each.record_count, each.range_index, each.batch_count
        )
        for each in parts
    )


def answer(header: object):
    return lambda exchange: exchange.answer(header)


def test_a_commit_whose_answer_is_lost_is_repeated(make, peer) -> None:
    decided = CommitTxnResponse(
        is_replay=True, is_published=True, record_count=6, digest=DIGEST, status=Status()
    )
    peer.script(Opcode.COMMIT_TXN, reset, answer(decided))
    decision = make(peer.endpoint).do("commit_txn", "p", 1, PARTS, **DECISION, timeout_ms=7_000)
    assert decision == TxnDecision(is_replay=True, is_published=True, record_count=6, digest=DIGEST)
    asked = [each.header for each in peer.seen(Opcode.COMMIT_TXN)]
    assert len(asked) == 2
    for header in asked:
        assert (header.producer, header.batch_number, header.commit) == ("p", 1, True)
        assert header.parts == wire(*PARTS)
        assert (header.record_count, header.digest, header.timeout_ms) == (6, DIGEST, 7_000)


def test_a_decision_that_is_forgotten_has_no_count(make, peer) -> None:
    old = CommitTxnResponse(is_replay=True, is_published=True, record_count=-1)
    peer.script(Opcode.COMMIT_TXN, answer(old))
    decision = make(peer.endpoint).do("commit_txn", "p", 0, (), record_count=0, digest=DIGEST)
    assert (decision.record_count, decision.digest) == (None, b"")


def test_a_transaction_that_was_given_up_is_not_committed(make, peer) -> None:
    refused = CommitTxnResponse(status=status(StatusCode.TXN_ABORTED))
    peer.script(Opcode.COMMIT_TXN, answer(refused))
    with pytest.raises(TxnAbortedError):
        make(peer.endpoint).do("commit_txn", "p", 1, PARTS, **DECISION)
    assert len(peer.seen(Opcode.COMMIT_TXN)) == 1


@pytest.mark.parametrize(
    ("producer", "batch_number", "digest"),
    [("", 0, DIGEST), ("a b", 0, DIGEST), ("p", -1, DIGEST), ("p", 2**63, DIGEST), ("p", 0, b"x")],
)
def test_arguments_that_every_server_refuses_are_not_sent(
    make, peer, producer, batch_number, digest
) -> None:
    with pytest.raises(ConfigurationError):
        make(peer.endpoint).do(
            "commit_txn", producer, batch_number, PARTS, record_count=6, digest=digest
        )
    assert peer.requests == []


def test_an_abort_tells_what_is_given_up(make, peer) -> None:
    peer.script(
        Opcode.COMMIT_TXN,
        answer(CommitTxnResponse(parts=wire(PARTS[1]))),
        answer(CommitTxnResponse(parts=(headers.TxnPart(),))),
    )
    driver = make(peer.endpoint)
    assert driver.do("abort_txns", PARTS) == [PARTS[1]]
    (asked,) = peer.seen(Opcode.COMMIT_TXN)
    assert (asked.header.commit, asked.header.parts) == (False, wire(*PARTS))
    with pytest.raises(ProtocolError, match="the id of a transaction"):
        driver.do("abort_txns", PARTS)
    assert driver.do("abort_txns", []) == []


def test_giving_up_returns_what_is_lost(make, peer) -> None:
    done = CommitTxnResponse(is_replay=True, is_published=True, record_count=6, parts=wire(*PARTS))
    rest = headers.Status(message="a server is down")
    some = CommitTxnResponse(status=rest, is_replay=True, record_count=6, parts=wire(PARTS[0]))
    old = CommitTxnResponse(is_replay=True, is_published=True, record_count=-1)
    peer.script(Opcode.COMMIT_TXN, reset, answer(done), answer(some), answer(old))
    driver = make(peer.endpoint)
    assert [driver.do("give_up_txn", "p", 7) for _ in range(3)] == [
        TxnLoss(tuple(PARTS), is_published=True, record_count=6),
        TxnLoss((PARTS[0],), False, 6, "a server is down"),
        TxnLoss((), is_published=True, record_count=None),
    ]
    for each in peer.seen(Opcode.COMMIT_TXN):
        asked = (each.header.producer, each.header.batch_number, each.header.give_up)
        assert asked == ("p", 7, True)
        assert not each.header.commit
        assert each.header.parts == ()


def test_a_commit_returns_what_is_lost(make, peer) -> None:
    told = CommitTxnResponse(is_replay=True, is_published=True, parts=wire(*PARTS))
    peer.script(Opcode.COMMIT_TXN, answer(told))
    decision = make(peer.endpoint).do("commit_txn", "p", 1, PARTS, **DECISION)
    assert decision.lost == tuple(PARTS)


def test_an_earlier_placement_driver_gives_nothing_up(make, peer) -> None:
    """It takes the request for an abort of no transactions."""
    peer.script(Opcode.COMMIT_TXN, answer(CommitTxnResponse()))
    with pytest.raises(UnsupportedError, match="upgrade it"):
        make(peer.endpoint).do("give_up_txn", "p", 7)


@pytest.mark.parametrize(("producer", "batch_number"), [("a b", 0), ("p", -1), ("p", 2**63)])
def test_only_a_batch_can_be_given_up(make, peer, producer, batch_number) -> None:
    with pytest.raises(ConfigurationError):
        make(peer.endpoint).do("give_up_txn", producer, batch_number)
    assert peer.requests == []


def unsupported(exchange: Exchange) -> None:
    exchange.fail(UnsupportedError(StatusCode.UNSUPPORTED_OPERATION, "scripted"))


def test_all_servers_are_asked_what_they_have(make, peers) -> None:
    driver, first, old, away = peers(), peers(), peers(), peers()
    streams = (Stream(stream_id=7), Stream(stream_id=3))
    driver.script(
        Opcode.DESCRIBE_STREAMS,
        answer(
            DescribeStreamsResponse(
                describe_responses=tuple(DescribeStreamResult(stream=each) for each in streams)
            )
        ),
    )
    pieces = (
        placed(7, 0, 0, 9, first.endpoint),
        placed(7, 1, 9, -1, old.endpoint),
        placed(3, 0, 0, -1, away.endpoint),
    )
    driver.script(Opcode.LIST_RANGES, ranges(*pieces))
    decided = TxnDescription("p", 1, wire(*PARTS), "publishing", 6, DIGEST, 100)
    staged = TxnDescription(parts=wire(PARTS[0]), state="staged", record_count=5, staged_at_ms=90)
    driver.script(Opcode.DESCRIBE_TXNS, answer(DescribeTxnsResponse(txns=(decided,))))
    first.script(Opcode.DESCRIBE_TXNS, answer(DescribeTxnsResponse(txns=(staged,))))
    old.script(Opcode.DESCRIBE_TXNS, unsupported)
    client = make(driver.endpoint)
    assert client.do("describe_txns", "p", spared={away.endpoint: "away"}) == [
        TxnInfo("publishing", tuple(PARTS), "p", 1, 6, DIGEST, 100),
        TxnInfo("staged", (PARTS[0],), record_count=5, staged_at_ms=90, server=first.endpoint),
    ]
    assert first.seen(Opcode.DESCRIBE_TXNS)[0].header.producer == "p"
    away.script(
        Opcode.DESCRIBE_TXNS, answer(DescribeTxnsResponse(status=status(StatusCode.PD_INTERNAL)))
    )
    with pytest.raises(StatusError, match=f"DESCRIBE_TXNS at {away.endpoint}: scripted"):
        client.do("describe_txns", "p")


def many_parts() -> list[TxnPart]:
    return [
        TxnPart(f"p.1.{task}", stream_id, 0, task, 2)
        for task in range(3)
        for stream_id in range(limits.STREAMS_PER_REQUEST_MAX // 2)
    ]


def test_many_parts_are_sent_in_columns(make, peer) -> None:
    agreed = headers.HeartbeatResponse(features=(headers.Feature("part-columns"),), status=Status())
    peer.script(Opcode.HEARTBEAT, answer(agreed))
    peer.script(Opcode.COMMIT_TXN, answer(CommitTxnResponse(is_published=True, status=Status())))
    parts = many_parts()
    make(peer.endpoint).do("commit_txn", "p", 1, parts, **DECISION)
    (asked,) = [each.header for each in peer.seen(Opcode.COMMIT_TXN)]
    assert asked.parts == ()
    found = [
        TxnPart(each.txn_id, *numbers)
        for each in asked.staged
        for numbers in zip(
            *(each.stream_ids, each.range_indexes, each.record_counts, each.batch_counts),
            strict=True,
        )
    ]
    assert found == parts


def test_a_placement_driver_that_knows_no_columns_gets_no_decision(make, peer) -> None:
    """It would decide the batch without these parts."""
    with pytest.raises(UnsupportedError, match="decisions of many parts"):
        make(peer.endpoint).do("commit_txn", "p", 1, many_parts(), **DECISION)
    assert not peer.seen(Opcode.COMMIT_TXN)


def test_a_description_in_pieces_is_one_decision(make, peer) -> None:
    one = TxnDescription("p", 1, wire(PARTS[0]), "publishing", 6, DIGEST, 5)
    pieces = (one, replace(one, parts=wire(PARTS[1])), replace(one, batch_number=2))
    peer.script(Opcode.DESCRIBE_TXNS, answer(DescribeTxnsResponse(txns=pieces, status=Status())))
    peer.script(Opcode.DESCRIBE_STREAMS, answer(DescribeStreamsResponse(status=Status())))
    first, second = make(peer.endpoint).do("describe_txns", "p")
    assert (first.batch_number, first.parts) == (1, tuple(PARTS))
    assert (second.batch_number, second.parts) == (2, tuple(PARTS[:1]))
