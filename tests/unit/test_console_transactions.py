"""Transactions as the console shows them, and what giving one up can lose."""

from __future__ import annotations

import pytest

from sbp_core.client import TxnInfo, TxnLoss, TxnPart
from sbp_core.errors import NotFoundError
from sbp_core.operating.txn_advice import loss_lines
from sbp_core.web.console.transactions import ROWS_MAX, find_stuck, group_by_state, loss_facts

LABELS = {7: "orders"}
PARTS = (TxnPart("p.1.a", 7, 0, 3), TxnPart("p.1.b", 7, 0, 2), TxnPart("p.1.c", 9, 0, 1))
STUCK = TxnInfo("stuck", PARTS, "p", 1, 9, decided_at_ms=400)
STAGED = TxnInfo("staged", (TxnPart("q.4.a", 8, 0, 3),), "q", 4, 3, staged_at_ms=900, server="a:1")
ABORTED = TxnInfo("aborted", (TxnPart("r.1.z", -1, -1, -1),), "r", 1, None, decided_at_ms=0)


def grouped(*txns: TxnInfo, is_open_only: bool = True):
    return group_by_state(txns, is_open_only=is_open_only)


def test_what_needs_somebody_is_first_and_what_is_over_is_left_out():
    assert [state for state, *_ in grouped(ABORTED, STAGED, STUCK)] == ["stuck", "staged"]
    everything = grouped(ABORTED, STAGED, STUCK, is_open_only=False)
    assert [each[:2] for each in everything] == [("stuck", 1), ("staged", 1), ("aborted", 1)]


def test_a_batch_has_its_records_by_stream_and_the_time_of_its_state():
    (stuck,), (staged,) = (rows for *_, rows in grouped(STUCK, STAGED))
    assert stuck.hidden == {7: 5, 9: 1}
    assert (stuck.since_ms, staged.since_ms, staged.txn_id) == (400, 900, "q.4.a")


def test_numbers_that_are_not_known_are_not_invented():
    ((*_, (row,)),) = grouped(ABORTED, is_open_only=False)
    assert (row.hidden, row.since_ms) == ({}, 0)
    unknown = TxnInfo("stuck", (TxnPart("p.1.a", 7, 0, 3), TxnPart("p.1.b", 7, 0, -1)), "p", 1)
    assert loss_facts(unknown, LABELS) == [
        "stream orders: records lost permanently, their number is not known"
    ]


def test_open_ones_are_shown_from_the_oldest_and_finished_ones_from_the_newest():
    counts = range(ROWS_MAX + 1)
    stuck = [TxnInfo("stuck", (), "p", each, decided_at_ms=1_000 - each) for each in counts]
    over = [TxnInfo("published", (), "p", each, decided_at_ms=each) for each in counts]
    first, second = grouped(*stuck, *over, is_open_only=False)
    assert (first[1], len(first[2])) == (ROWS_MAX + 1, ROWS_MAX)
    assert first[2][0].txn.batch_number == second[2][0].txn.batch_number == ROWS_MAX


def test_a_state_of_a_later_release_is_shown():
    ((state, count, _),) = grouped(TxnInfo("paused", (), "p", 1))
    assert (state, count) == ("paused", 1)


def test_only_a_stuck_batch_is_given_up():
    assert find_stuck([STAGED, STUCK], 1) is STUCK
    with pytest.raises(NotFoundError, match="batch 4 is not stuck"):
        find_stuck([STAGED, STUCK], 4)
    assert loss_facts(STUCK, LABELS) == [
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
