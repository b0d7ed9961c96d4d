"""Replicated ranges in the log: their numbers, their portable entries, and how they end."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from errno import EIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_core.errors import LogCorruptionError, LogError, LogWriteError
from sbp_core.log.entry import Entry
from sbp_core.log.portable import decode_portable, to_local
from sbp_core.log.states.range_states import (
    NO_TIME,
    LoggedRange,
    RangeState,
    RangeStates,
    range_created,
)
from sbp_core.log.states.replicated_entries import (
    NUMBERED_KINDS,
    copy_begun_entry,
    fenced_entry,
    settled_entry,
    summary,
)
from sbp_core.log.states.staged_states import StagedStates, staged_entry
from sbp_core.log.states.state_snapshot import decode_states, encode_states
from sbp_core.log.states.writer_states import mark_of
from sbp_core.replication import Prefix
from sbp_core.segment_format import EntryKind
from sbp_core.wire.checksum import crc32c
from tests.support.disk import FaultyDisk
from tests.support.log import (
    CREATED,
    KEY,
    batch,
    commit,
    contents,
    created,
    drop,
    open_log,
    portable_bytes,
    prefix_of,
    replicated_range,
    staged,
)

SEAL = Entry(EntryKind.SEAL, *KEY, 1, 0)


def states_after(*entries: Entry) -> RangeStates:
    states = RangeStates()
    for entry in entries:
        states.update(states.after([entry]))
    return states


def range_after(*entries: Entry) -> LoggedRange:
    (found,) = states_after(*entries)
    return found


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([CREATED, SEAL], "expected FENCED and SETTLED"),
        ([created(), fenced_entry(KEY)], "expected SEAL"),
        ([created(), settled_entry(KEY, 0, Prefix())], "expected SEAL"),
        ([CREATED, batch(0), settled_entry(KEY, 1, Prefix(1, b"x" * 16))], "entries 1 to 1"),
        ([CREATED, settled_entry(KEY, 0, Prefix(1, b"x" * 16))], "entries 1 to 0"),
        ([CREATED, batch(0), settled_entry(KEY, 2, prefix_of(batch(0)))], "at offset 1"),
        ([CREATED, settled_entry(KEY, 0, Prefix()), batch(0)], "which is SEALED"),
        ([CREATED, settled_entry(KEY, 0, Prefix()), staged("t", 0)], "which is SEALED"),
        ([CREATED, settled_entry(KEY, 0, Prefix()), mark_of(batch(0), "w", 0)], "no further"),
        ([CREATED, batch(0), copy_begun_entry(KEY, 1)], "expected a fenced range"),
        ([created(), copy_begun_entry(KEY, 0)], "expected a fenced range"),
        ([CREATED, batch(0, 2), fenced_entry(KEY), copy_begun_entry(KEY, 1)], "ends at 2"),
        ([CREATED, drop("t", key=(KEY[0], -1))], "TXN_END of each of its ranges"),
        ([CREATED, Entry(EntryKind.SETTLED, *KEY, 0, 0, b"\x02" + bytes(25))], "unknown version"),
        ([CREATED, Entry(EntryKind.SETTLED, *KEY, 0, 0, b"\x01")], "cut off"),
    ],
)
def test_entries_that_contradict_the_rules_of_replicas_are_refused(
    entries: list[Entry], reason: str
):
    with pytest.raises(LogCorruptionError, match=reason):
        range_after(*entries)


def test_states_are_coded_as_before_with_fenced_behind():
    codes = {state: LoggedRange(1, 0, 0, 0, state).state_code for state in RangeState}
    assert codes == {
        RangeState.OPEN: 0,
        RangeState.SEALED: 1,
        RangeState.DELETED: 2,
        RangeState.FENCED: 3,
    }
    order = [RangeState.OPEN, RangeState.FENCED, RangeState.SEALED, RangeState.DELETED]
    for at, state in enumerate(order):
        assert [state.or_later(each) for each in order] == [order[max(at, n)] for n in range(4)]


prefixes = st.none() | st.builds(
    lambda seq, digest: Prefix(seq, digest) if seq else Prefix(),
    st.integers(0, 2**62),
    st.binary(min_size=16, max_size=16),
)
ranges_lists = st.lists(
    st.builds(
        LoggedRange,
        st.integers(-(2**63), 2**63 - 1),
        st.integers(-(2**31), 2**31 - 1),
        st.just(5),
        st.just(6),
        st.sampled_from(RangeState),
        st.sampled_from([NO_TIME, 77]),
        prefixes,
        st.integers(0, 2**62),
    ),
    max_size=5,
)


@given(ranges_lists)
def test_columns_bring_prefixes_back_and_cost_nothing_without_replicas(ranges: list[LoggedRange]):
    own = [each if each.prefix is not None else replace(each, highest_seq=0) for each in ranges]
    encoded = encode_states(own)
    found = decode_states(memoryview(encoded), len(own))
    assert found == own
    assert [each.created_at_ms for each in found] == [each.created_at_ms for each in own]
    is_replicated = any(each.prefix is not None for each in own)
    is_dated = any(each.created_at_ms != NO_TIME for each in own)
    size = 69 if is_replicated else 37 if is_dated else 29
    assert len(encoded) == size * len(own)


def test_ranges_in_logs_of_earlier_versions_are_read_as_they_were():
    """The bytes are those that version 0.1 wrote."""
    stream_ids = "01000000000000000200000000000000"
    start_offsets = "05000000000000000000000000000000"
    next_offsets = "09000000000000000700000000000000"
    indexes_and_codes = "0000000001000000" + "0102"
    created_at_ms = "4d00000000000000ffffffffffffffff"
    old = bytes.fromhex(
        stream_ids + start_offsets + next_offsets + indexes_and_codes + created_at_ms
    )
    ranges = [
        LoggedRange(1, 0, 5, 9, RangeState.SEALED, 77),
        LoggedRange(2, 1, 0, 7, RangeState.DELETED),
    ]
    assert decode_states(memoryview(old), 2) == ranges
    assert encode_states(ranges) == old
    body = bytes.fromhex("014d00000000000000")
    assert range_created(1, 0, 5, 77).body == body
    assert range_created(1, 0, 5, NO_TIME).body == b""


def test_a_log_without_replicas_has_the_bytes_of_earlier_versions():
    """The digest is that of the same log, written by the version before there were replicas."""
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=900)
    log.append([range_created(1, 0, 0, 77), created(2, 0, 5)])
    for number in range(8):
        log.append([mark_of(batch(number), "w", number, b"d" * 16), batch(number, 1, b"x" * 90)])
        log.append([staged("t", number, b"staged")])
    log.append([commit(log, "t"), drop("u")])
    log.append([Entry(EntryKind.SEAL, *KEY, 16, 0), Entry(EntryKind.TRIM, 1, -1, 3, 0)])
    log.append([Entry(EntryKind.STREAM_DELETED, 2, -1, 0, 0)])
    log.close()
    files = hashlib.blake2b(digest_size=16)
    for path, data in sorted(contents(disk).items()):
        files.update(path.name.encode() + data)
    assert files.hexdigest() == "cd86c145cf127e442469044fedad3921"


bodies_of = st.binary(max_size=40)
counts = st.integers(1, 2**32 - 1)
numbered_entries = st.one_of(
    st.builds(batch, st.just(9), counts, bodies_of),
    st.builds(lambda body: mark_of(batch(9, 1, body), "writer", 7, b"d" * 16), bodies_of),
    st.builds(
        lambda txn_id, count, body: staged_entry(*KEY, txn_id, 3, count, body),
        st.text("abc", min_size=1),
        counts,
        bodies_of,
    ),
    st.builds(lambda ids: drop(*ids), st.lists(st.text("abc", min_size=1, max_size=9), max_size=4)),
    st.builds(lambda body: Entry(EntryKind.RANGE_WRITERS, *KEY, 4, 1, body), bodies_of),
)


@given(st.lists(numbered_entries, max_size=4))
def test_portable_entries_come_back_with_their_summaries(entries: list[Entry]):
    data = portable_bytes(*entries)
    found = decode_portable(data)
    assert found == entries
    assert [summary(entry) for entry in found] == [summary(entry) for entry in entries]


@given(numbered_entries, st.data())
def test_a_changed_portable_entry_is_noticed(entry: Entry, data: st.DataObject):
    encoded = bytearray(portable_bytes(entry))
    at = data.draw(st.integers(0, len(encoded) * 8 - 1))
    encoded[at // 8] ^= 1 << at % 8
    with pytest.raises(LogCorruptionError):
        decode_portable(memoryview(encoded))
    with pytest.raises(LogCorruptionError):
        decode_portable(memoryview(encoded)[:-1])


@pytest.mark.parametrize("kind", sorted(set(EntryKind) - NUMBERED_KINDS))
def test_only_numbered_kinds_are_portable(kind: EntryKind):
    encoded = portable_bytes(Entry(kind, *KEY, 0, 0))
    with pytest.raises(LogCorruptionError, match="not one that is replicated"):
        decode_portable(encoded)


def test_an_end_of_what_is_not_staged_here_is_refused():
    log = open_log(FaultyDisk())
    log.append([CREATED, staged("t", 0)])
    (received,) = decode_portable(portable_bytes(commit(log, "t")))
    with pytest.raises(LogError, match="0 are staged here"):
        to_local(received, StagedStates())


def test_places_of_another_log_are_refused():
    """The end of a transaction in its local form, with a right checksum."""
    log = open_log(FaultyDisk())
    log.append([CREATED, staged("t", 0)])
    end = commit(log, "t")
    foreign = replace(drop("t"), kind=EntryKind.RANGE_WRITERS, count=1, body=end.body)
    encoded = bytearray(portable_bytes(foreign))
    encoded[8] = EntryKind.TXN_END
    encoded[4:8] = crc32c((encoded[:4], encoded[8:])).to_bytes(4, "big")
    with pytest.raises(LogCorruptionError, match="has places of another log"):
        decode_portable(memoryview(encoded))


def test_a_range_does_not_end_between_a_mark_and_its_batch():
    """A crash leaves the beginning of a group; the next start must not number half of it."""
    disk = FaultyDisk()
    log = open_log(disk)
    log.append([CREATED])
    first = [mark_of(batch(0), "w", 0), batch(0)]
    log.append(first)
    second = batch(1, 1, b"x" * 1000)
    disk.fail("pwritev", 1, EIO)
    with pytest.raises(LogWriteError):  # half of the group was written
        log.append([mark_of(second, "w", 1), second])
    disk.heal()
    disk.kill_process()
    log = open_log(disk)
    assert replicated_range(log).prefix == prefix_of(*first)
    assert replicated_range(log).is_whole
    writer = log.writers.maybe_writer(KEY[0], "w")
    assert writer is not None
    assert writer.last_sequence == 0
