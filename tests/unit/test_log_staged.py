"""Batches that are staged in the log: lost ones, the ends that are remembered, bytes, and times.

Staging, publication and dropping over restarts are in tests/property/test_log_model.py.
"""

from __future__ import annotations

from dataclasses import replace
from threading import Thread

import pytest

from sbp_core import limits
from sbp_core.errors import InvalidRequestError, LogCorruptionError
from sbp_core.log.bodies import RecentBodies
from sbp_core.log.durable_log import Log
from sbp_core.log.entry import Entry, Location
from sbp_core.log.states.range_states import RangeState
from sbp_core.log.states.replicated_entries import copy_begun_entry
from sbp_core.log.states.staged_entries import BatchColumns, StagedRows, decode_end, decode_prefix
from sbp_core.log.states.staged_states import StagedStates, Staging, commit_entry, decode_staged
from sbp_core.log.states.state_snapshot import encode_staged_snapshot
from sbp_core.rangeserver.fetching.payloads import read_slots
from sbp_core.records import encode_envelope, split_envelopes
from sbp_core.segment_format import EntryKind
from tests.support.disk import FaultyDisk
from tests.support.log import KEY, batch, commit, created, drop, open_log, staged, staging


def new_log(disk: FaultyDisk | None = None, segment_bytes: int = 100_000) -> Log:
    log = open_log(disk or FaultyDisk(), segment_bytes=segment_bytes)
    if log.maybe_range(KEY) is None:
        log.append([created()])
    return log


def test_a_batch_that_is_published_from_an_earlier_segment_is_not_recent():
    log = new_log(segment_bytes=1_000)
    log.append([staged("t", 0)])
    log.end_segment()
    log.append([commit(log, "t"), batch(1)])
    assert not log.is_recent(KEY, 0), "the disk may have to be asked"
    assert log.is_recent(KEY, 1)


def test_entries_that_contradict_the_ranges_are_refused():
    log = new_log()
    log.append([staged("x", 0)])
    end = commit(log, "x")
    with pytest.raises(LogCorruptionError, match="never created"):
        log.append([replace(staged("x", 0), stream_id=7)])
    with pytest.raises(LogCorruptionError, match="at least 1 record at offset 1"):
        log.append([batch(0), end])
    log.append([Entry(EntryKind.SEAL, *KEY, 0, 0)])
    with pytest.raises(LogCorruptionError, match="SEALED"):
        log.append([end])
    with pytest.raises(LogCorruptionError, match="SEALED"):
        log.append([staged("x", 1)])
    assert log.maybe_range(KEY).state is RangeState.SEALED


def fold(*entries: Entry, **limits_: int) -> StagedStates:
    states = StagedStates(**limits_)
    for at, entry in enumerate(entries):
        states.apply(entry, Location(at * 1_000, entry.length), at)
    return states


LOST = Entry(EntryKind.STAGED, *KEY, -1, 7)
"""An entry whose body is damaged."""


def batch_positions(states: StagedStates, txn_id: str) -> list[int]:
    found = states.maybe_staging(*KEY, txn_id)
    return [] if found is None else list(found.batches.positions)


def test_a_lost_batch_belongs_to_what_has_lost_one():
    x = [staged("x", sequence) for sequence in range(4)]
    states = fold(x[0], LOST, LOST, x[3])
    assert batch_positions(states, "x") == [0, 1_000, 2_000, 3_000]
    assert list(states.maybe_staging(*KEY, "x").batches.record_counts) == [1, 7, 7, 1]
    states = fold(LOST, x[1])
    assert batch_positions(states, "x") == [0, 1_000]
    assert states.maybe_staging(*KEY, "x").staged_at_ms == 0
    elsewhere = Entry(EntryKind.STAGED, 1, 1, -1, 1)
    states = fold(LOST, staged("y", 1), x[0], LOST, elsewhere, x[2], staged("y", 2), x[3])
    assert batch_positions(states, "y") == [0, 1_000, 6_000]
    assert batch_positions(states, "x") == [2_000, 3_000, 5_000, 7_000]


def test_a_batch_whose_predecessor_is_lost_does_not_count():
    x = [staged("x", sequence) for sequence in range(4)]
    states = fold(x[0], LOST, LOST, x[2], x[1], x[3])
    assert batch_positions(states, "x") == [0, 4_000], "it is unknown which of the two it is"
    assert batch_positions(fold(x[1]), "x") == []
    assert batch_positions(fold(x[0], x[2]), "x") == [0]


def test_a_lost_batch_that_was_published_is_not_taken_for_another():
    lost = Staging(*KEY, "y", 0)
    lost.batches.append(0, LOST.length, LOST.count)
    states = fold(LOST, commit_entry(*KEY, 0, [lost]), staged("x", 1))
    assert batch_positions(states, "x") == []


def test_the_last_ends_of_each_kind_are_remembered():
    count = limits.TXN_ENDS_KEPT + 3
    states = fold(*(drop(f"d{n}") for n in range(count)), empty_commit("c"))
    for number in range(count):
        states.apply(drop(f"e{number}"), Location(0, 1), 0)
    assert states.is_ended(1, "c"), "those dropped do not push out those published"
    assert not states.is_ended(1, "d0")
    assert not states.is_ended(1, "e2")
    assert states.is_ended(1, "e3")
    assert len(states.ends(1)) == limits.TXN_ENDS_KEPT + 1


def test_an_earlier_range_that_is_copied_late_pushes_out_nothing():
    """Its publisher may still ask about the last transaction that was published."""

    def published(range_index: int, txn_id: str) -> Entry:
        return replace(empty_commit(txn_id), range_index=range_index)

    states = fold(published(7, "last"))
    old = range(2 * limits.TXN_ENDS_KEPT)
    for number in old:
        states.apply(published(5, f"old{number}"), Location(0, 1), number)
    assert [each.txn_ids for each in states.ends(1)][-2:] == [(f"old{old[-1]}",), ("last",)]
    ends = StagedStates()
    for number in old:
        ends.apply(published(6, f"copied{number}"), Location(0, 1), 2**40 + number)
    states.apply(copy_begun_entry((1, 6), 0, ends.encode()), Location(0, 1), 0)
    assert states.is_ended(1, "last")
    assert not states.is_ended(1, f"old{old[-1]}")
    assert len(states.ends(1)) == limits.TXN_ENDS_KEPT


def test_ends_are_remembered_as_long_as_their_ids_are_not_too_many():
    """The last published one is always kept: its publisher retries until it is answered."""
    entries = empty_commit("a", "b"), drop("p"), empty_commit("c", "d")
    states = fold(*entries, ended_ids_max=4)
    remembered = [("a", "b"), ("p",), ("c", "d")]
    steps = [
        (empty_commit("e"), [("p",), ("c", "d"), ("e",)]),
        (drop("q", "r", "s"), [("p",), ("c", "d"), ("e",), ("q", "r", "s")]),
        (empty_commit(*"fghijk"), [("p",), ("q", "r", "s"), (*"fghijk",)]),
        (drop(*"tuvwx"), [(*"fghijk",)]),
        (empty_commit("l"), [("l",)]),
        (drop("y"), [("l",), ("y",)]),
    ]
    assert [each.txn_ids for each in states.ends(1)] == remembered
    for entry, expected in steps:
        states.apply(entry, Location(0, 1), 0)
        assert [each.txn_ids for each in states.ends(1)] == expected
        assert not states.is_ended(1, "a")
        assert all(states.is_ended(1, each) for each in expected[-1])
        data = b"".join(each.body for each in encode_staged_snapshot(states))
        assert decode_staged(data).ends(1) == states.ends(1)


def test_where_staged_batches_are_is_reported_while_more_are_staged():
    """No caller waits for it, and it holds what was staged when it was requested."""

    class Growing(BatchColumns):
        def rows(self) -> StagedRows:
            other = Thread(target=states.stagings, daemon=True)
            other.start()
            other.join(10)
            assert not other.is_alive()
            self.append(2_000, 7, 1)
            return super().rows()

    states = StagedStates()
    states.restore(Staging(*KEY, "x", 0, Growing()))
    states.apply(staged("x", 0), Location(1_000, 9), 0)
    for count in (2, 3):
        rows = states.rows()
        assert rows.positions.tolist() == [1_000, 2_000]
        assert rows.lengths.tolist() == [9, 7]
        assert states.maybe_staging(*KEY, "x").batch_count == count


def empty_commit(*txn_ids: str) -> Entry:
    return commit_entry(*KEY, 0, [Staging(*KEY, each, 0) for each in txn_ids])


@pytest.mark.parametrize("chunk_bytes", [7, 100, limits.SNAPSHOT_STAGED_BYTES])
def test_a_snapshot_says_the_same_again(chunk_bytes):
    states = fold(
        *(staged(f"x{n % 3}", n // 3, count=n + 1) for n in range(9)), drop("d", "e"),
        empty_commit("c"),
    )  # fmt: skip
    entries = encode_staged_snapshot(states, chunk_bytes=chunk_bytes)
    assert [each.range_index for each in entries] == list(range(len(entries)))
    again = decode_staged(b"".join(each.body for each in entries))
    assert again.ends(1) == states.ends(1)
    for one, other in zip(again.stagings(), states.stagings(), strict=True):
        assert (one.txn_id, one.staged_at_ms) == (other.txn_id, other.staged_at_ms)
        assert one.batches.encode() == other.batches.encode()
    assert encode_staged_snapshot(StagedStates()) == []
    with pytest.raises(LogCorruptionError):
        decode_staged(b"".join(each.body for each in entries)[:-1])


def test_more_than_an_entry_can_name_is_refused():
    log = new_log()
    log.append([staged("x", sequence) for sequence in range(3)])
    with pytest.raises(InvalidRequestError, match="at most 2"):
        commit_entry(*KEY, 0, [staging(log, "x")], batches_max=2)
    with pytest.raises(InvalidRequestError, match=f"over the limit of {limits.ENTRY_BYTES_MAX}"):
        drop(*["y" * 250] * (limits.ENTRY_BYTES_MAX // 250))


def test_the_end_of_a_transaction_that_is_cut_off_is_no_end():
    log = new_log()
    log.append([staged("x", 0), staged("x", 1)])
    end = commit(log, "x")
    for size in range(len(end.body)):
        body = bytes(end.body)[:size]
        with pytest.raises(LogCorruptionError):
            decode_end(Entry(end.kind, *KEY, end.base_offset, end.count, body))


def test_a_prefix_says_whose_batch_it_is():
    assert decode_prefix(staged("some.1.id", 70_000).prefix) == ("some.1.id", 70_000)
    for body in (b"", b"\5abc", b"\1\xff\0\0\0\0", b"\1a\0\0"):
        with pytest.raises(LogCorruptionError):
            decode_prefix(body)


@pytest.mark.parametrize("size", [10, 200_000])
@pytest.mark.parametrize("is_recent", [True, False])
def test_a_staged_batch_is_served_with_its_offset(size: int, is_recent: bool):
    log = new_log(segment_bytes=10_000_000)
    bodies = [
        encode_envelope(
            [bytes([n]) * size],
            stream_id=1,
            record_count=2,
            base_timestamp_ms=0,
            encoding="x",
            base_offset=99,
        )
        for n in range(3)
    ]
    log.append([staged("x", n, body, 2) for n, body in enumerate(bodies[:2])])
    log.append([commit(log, "x")])
    log.append([staged("y", 0, bodies[2], 2)])
    if not is_recent:
        log.recent = RecentBodies()
    served = read_slots(log, KEY, list(log.batches_from(KEY, 0)))
    again = read_slots(log, KEY, list(log.batches_from(KEY, 0)), may_wait=False)
    assert (again.error is None) == is_recent, "this disk has no cache"
    assert again.error is not None or again.buffers == served.buffers
    assert served.slot_count == 2
    envelopes = list(split_envelopes(b"".join(served.buffers)))
    assert [each.base_offset for each in envelopes] == [0, 2]
    assert [bytes(each.body[:size]) for each in envelopes] == [b"\0" * size, b"\1" * size]
    assert sum(map(len, served.buffers)) == sum(map(len, bodies[:2]))
    undecided = read_slots(log, KEY, list(log.staged_from(staging(log, "y"), 0)))
    assert b"".join(undecided.buffers) == bodies[2], "as it was appended"
