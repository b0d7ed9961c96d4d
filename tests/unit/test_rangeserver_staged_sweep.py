"""Batches staged for too long: the times of the questions about them, and the drops."""

import asyncio

import pytest

from sbp_core.errors import ConnectionLostError, StatusCode, StatusError
from sbp_core.limits import STAGED_ASK_MS, STREAMS_PER_CALL
from sbp_core.log.entry import Location
from sbp_core.log.states.staged_states import StagedStates, staged_entry
from sbp_core.rangeserver.appending.end_txn import StagedSweep
from sbp_core.wire.headers import TxnPart

NOW_MS = 1_700_000_000_000
TIMEOUT_MS = 10 * STAGED_ASK_MS


class Source:
    """A placement driver that says of these ids that they are dead."""

    def __init__(self, *dead):
        self.dead = dead
        self.asked = []

    async def find_dead(self, parts):
        self.asked += [parts]
        if self.dead == (None,):
            raise ConnectionLostError("away")
        return [part for part in parts if part.txn_id in self.dead]


def sweep(source, *staged, dropped=None, failing=()):
    """Sweep what is staged as (stream, range, id, records, age in ms); what is dropped then."""
    states = StagedStates()
    for at, (stream_id, range_index, txn_id, count, age_ms) in enumerate(staged):
        entry = staged_entry(stream_id, range_index, txn_id, 0, count, b"batch")
        states.apply(entry, Location(1000 * at, entry.length), NOW_MS - age_ms)
    dropped = [] if dropped is None else dropped

    async def drop(stream_id, range_index, txn_ids):
        if stream_id in failing:
            raise StatusError(StatusCode.RS_INTERNAL, "scripted")
        for _ in range(9):  # longer than it takes to hear of a failure
            await asyncio.sleep(0)
        dropped.append((stream_id, range_index, tuple(txn_ids)))
        return 1

    asyncio.run(StagedSweep(states, source, drop, TIMEOUT_MS, grace_ms=0).sweep(NOW_MS))
    return dropped


def test_new_stagings_are_not_asked_about():
    source = Source("a.1.x", "b")
    assert sweep(source, (1, 0, "a.1.x", 5, STAGED_ASK_MS - 1), (1, 0, "b", 5, 0)) == []
    assert sweep(source) == []
    assert source.asked == []


def test_after_a_while_it_is_asked_whether_the_batch_is_decided():
    source = Source("a.1.x", "a.1.x~3")
    staged = [(1, 0, "a.1.x", 5, STAGED_ASK_MS), (2, 7, "a.1.x~3", 6, STAGED_ASK_MS)]
    staged += [(1, 0, "a.2.x", 7, STAGED_ASK_MS), (1, 0, "without-batch", 8, TIMEOUT_MS - 1)]
    assert sweep(source, *staged) == [(1, 0, ("a.1.x",)), (2, 7, ("a.1.x~3",))]
    assert source.asked == [
        [
            TxnPart("a.1.x", 1, -1, 0),
            TxnPart("a.2.x", 1, -1, 0),
            TxnPart("a.1.x~3", 2, -1, 7),
        ]
    ]


def test_a_job_that_still_stages_keeps_what_it_staged_long_ago():
    source = Source("a.1.x", "b.1.x")
    staged = [
        (1, 0, "a.1.x", 5, 2 * TIMEOUT_MS),
        (2, 0, "a.1.y", 5, TIMEOUT_MS - 1),  # another task of it
        (1, 0, "b.1.x", 5, 2 * TIMEOUT_MS),
    ]
    assert sweep(source, *staged) == [(1, 0, ("a.1.x", "b.1.x"))]
    asked = {part.txn_id: part.record_count for part in source.asked[0]}
    assert asked == {"a.1.x": -1, "a.1.y": -1, "b.1.x": 5}  # -1: only if it is decided


def test_a_task_that_still_stages_keeps_what_it_staged_long_ago():
    states, source = StagedStates(), Source()

    async def drop(*_):
        raise AssertionError

    sweeping = StagedSweep(states, source, drop, TIMEOUT_MS, grace_ms=0)
    for number, passed_ms in enumerate((0, TIMEOUT_MS, 2 * TIMEOUT_MS, 3 * TIMEOUT_MS)):
        if number < 3:
            entry = staged_entry(1, 0, "a.1.x", number, 5, b"batch")
            states.apply(entry, Location(1000 * number, entry.length), NOW_MS)
        asyncio.run(sweeping.sweep(NOW_MS + passed_ms))
    assert [part.record_count for (part,) in source.asked] == [-1, -1, 15]


def test_after_a_start_a_task_has_time_to_show_that_it_goes_on():
    states, source = StagedStates(), Source()
    entry = staged_entry(1, 0, "a.1.x", 0, 5, b"batch")
    states.apply(entry, Location(0, entry.length), NOW_MS - 2 * TIMEOUT_MS)
    sweeping = StagedSweep(states, source, None, TIMEOUT_MS, grace_ms=1_000)
    for passed_ms in (0, 999, 1_000):
        asyncio.run(sweeping.sweep(NOW_MS + passed_ms))
    assert [part.record_count for (part,) in source.asked] == [-1, -1, 5]


def test_after_the_timeout_it_is_to_be_given_up():
    source = Source("a.1.x", "b")
    staged = [
        (1, 0, "a.1.x", 5, TIMEOUT_MS),
        (1, 0, "b", 6, TIMEOUT_MS),
        (1, 0, "c", 7, TIMEOUT_MS),
    ]
    assert sweep(source, *staged) == [(1, 0, ("a.1.x", "b"))]
    assert source.asked == [
        [TxnPart("a.1.x", 1, 5, 0), TxnPart("b", 1, 6, 0), TxnPart("c", 1, 7, 0)]
    ]


def test_nothing_is_dropped_while_no_server_answers():
    with pytest.raises(ConnectionLostError):
        sweep(Source(None), (1, 0, "b", 6, TIMEOUT_MS))


def test_a_batch_staged_in_the_future_is_asked_about():
    source = Source("a.1.x")
    assert sweep(source, (1, 0, "a.1.x", 5, -1), (1, 0, "b", 5, -1)) == [(1, 0, ("a.1.x",))]
    assert source.asked == [[TxnPart("a.1.x", 1, -1, 0)]]


def test_no_more_is_dropped_at_once_than_an_entry_holds():
    ids = [f"a.1.{number}" for number in range(STREAMS_PER_CALL + 1)]
    dropped = sweep(Source(*ids), *[(1, 0, txn_id, 1, TIMEOUT_MS) for txn_id in ids])
    assert dropped == [(1, 0, tuple(ids[:-1])), (1, 0, tuple(ids[-1:]))]


def test_a_failed_drop_does_not_keep_other_batches():
    dropped = []
    staged = [(1, 0, "a", 1, TIMEOUT_MS), (2, 0, "a", 1, TIMEOUT_MS)]
    with pytest.raises(StatusError):
        sweep(Source("a"), *staged, dropped=dropped, failing={1})
    assert dropped == [(2, 0, ("a",))]
