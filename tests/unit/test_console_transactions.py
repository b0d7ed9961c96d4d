"""Transactions as the console shows them, and what giving one up can lose."""

from __future__ import annotations

from sbp_core.client import StreamInfo, TxnInfo, TxnLoss, TxnPart
from sbp_core.client.txn_remarks import loss_lines
from sbp_core.web.console.transactions_view import (
    ROWS_MAX,
    StreamPart,
    describe_loss,
    group_by_state,
    maybe_stuck,
    shown_streams,
)

STREAMS = {7: StreamInfo(7, "orders", 1, 0, 0), 8: StreamInfo(8, None, 1, 0, 0)}
PARTS = (TxnPart("p.1.a", 7, 0, 3), TxnPart("p.1.b", 7, 0, 2), TxnPart("p.1.c", 9, 0, 1))
STUCK = TxnInfo("stuck", PARTS, "p", 1, 9, decided_at_ms=400)
STAGED = TxnInfo("staged", (TxnPart("q.4.a", 8, 0, 3),), "q", 4, 3, staged_at_ms=900, server="a:1")
ABORTED = TxnInfo("aborted", (TxnPart("r.1.z", -1, -1, -1),), "r", 1, None, decided_at_ms=0)


def grouped(*txns: TxnInfo, is_open_only: bool = True):
    return group_by_state(txns, STREAMS, 1_000, is_open_only=is_open_only)


def test_what_needs_somebody_is_first_and_what_is_over_is_left_out():
    assert [each.state for each in grouped(ABORTED, STAGED, STUCK)] == ["stuck", "staged"]
    everything = grouped(ABORTED, STAGED, STUCK, is_open_only=False)
    assert [(each.state, each.count) for each in everything] == [
        ("stuck", 1),
        ("staged", 1),
        ("aborted", 1),
    ]
    assert "give it up" in everything[0].advice


def test_a_batch_has_its_streams_its_age_and_the_action_that_it_can_have():
    (stuck,), (staged,) = (group.rows for group in grouped(STUCK, STAGED))
    assert stuck.hidden == (StreamPart(7, "orders", 5), StreamPart(9, "9", 1))
    assert (stuck.age_ms, stuck.can_give_up) == (600, True)
    assert (staged.age_ms, staged.can_give_up, staged.server) == (100, False, "a:1")
    assert staged.txn_id == "q.4.a"
    assert shown_streams([STUCK, STAGED, ABORTED]) == [7, 8, 9]


def test_numbers_that_are_not_known_are_not_invented():
    (group,) = grouped(ABORTED, is_open_only=False)
    (row,) = group.rows
    assert (row.hidden, row.record_count, row.age_ms) == ((), None, None)
    unknown = TxnInfo("stuck", (TxnPart("p.1.a", 7, 0, 3), TxnPart("p.1.b", 7, 0, -1)), "p", 1)
    assert describe_loss(unknown, STREAMS) == [
        "stream orders: records lost permanently, their number is not known"
    ]


def test_open_ones_are_shown_from_the_oldest_and_finished_ones_from_the_newest():
    counts = range(ROWS_MAX + 1)
    stuck = [TxnInfo("stuck", (), "p", each, decided_at_ms=1_000 - each) for each in counts]
    over = [TxnInfo("published", (), "p", each, decided_at_ms=each) for each in counts]
    first, second = grouped(*stuck, *over, is_open_only=False)
    assert (first.count, len(first.rows)) == (ROWS_MAX + 1, ROWS_MAX)
    assert first.rows[0].batch_number == ROWS_MAX
    assert second.rows[0].batch_number == ROWS_MAX


def test_a_state_of_a_later_release_is_shown():
    (group,) = grouped(TxnInfo("paused", (), "p", 1))
    assert (group.state, group.advice) == ("paused", "")


def test_only_a_stuck_batch_is_given_up():
    assert maybe_stuck([STAGED, STUCK], 1) is STUCK
    assert maybe_stuck([STAGED, STUCK], 4) is None
    assert describe_loss(STUCK, STREAMS) == [
        "stream orders: up to 5 records lost permanently",
        "stream 9: up to 1 record lost permanently",
    ]


def test_what_was_given_up_is_named_by_stream():
    parts = (*PARTS[:2], PARTS[2])
    assert loss_lines(
        "p", 1, TxnLoss(parts, is_published=False, record_count=9, waits_for="x")
    ) == [
        "lost: 5 records of batch 1 of p; stream 7 continues without",
        "lost: 1 record of batch 1 of p; stream 9 continues without",
        "the rest of batch 1 of p is not published yet: x",
    ]
    assert loss_lines("p", 1, TxnLoss((), is_published=True, record_count=None)) == [
        "batch 1 of p was decided too long ago: its outcome is no longer known"
    ]
    assert loss_lines("p", 1, TxnLoss((), is_published=True, record_count=9)) == [
        "nothing of batch 1 of p is lost: it is published"
    ]
