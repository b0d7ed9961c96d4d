"""Replicated ranges of a log against lists of entries: numbers, damage, cuts, and copies."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sbp_core import limits
from sbp_core.log.bodies import read_bodies
from sbp_core.log.cleaning import Cleaner
from sbp_core.log.durable_log import Log
from sbp_core.log.entry import BATCH_KINDS, Entry, Location
from sbp_core.log.segment_scan import Damage, SegmentScanner
from sbp_core.log.states.range_states import LoggedRange, RangeState, range_created
from sbp_core.log.states.replicated_entries import fenced_entry, is_numbered_in, settled_entry
from sbp_core.log.states.staged_states import commit_entry, drop_entry, staged_entry
from sbp_core.log.states.writer_states import mark_of
from sbp_core.segment_format import EntryKind, segment_path
from tests.support.clock import examples
from tests.support.disk import FaultyDisk
from tests.support.log import (
    DIRECTORY,
    batch,
    created,
    feed,
    in_transit,
    open_log,
    prefix_of,
    replicated_range,
)
from tests.support.models.log import Model

KEYS = ((1, 0), (2, 0))
FILLER = (3, 0)
SEGMENT_BYTES = 1_500

keys = st.sampled_from(KEYS)
seeds = st.integers(0, 2**32)


@pytest.fixture(autouse=True, scope="module")
def many():
    """All ends stay known: those that were forgotten for others do not come back by a cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "TXN_ENDS_KEPT", 1_000)
        yield


class Replica:
    """One range: its entries, and how many of them are readable."""

    def __init__(self, key: tuple[int, int]) -> None:
        self.key = key
        self.entries: list[Entry] = []
        self.readable: int | None = None
        """Entries in front of the first damaged one; None while there is none."""
        self.state = RangeState.OPEN

    @property
    def model(self) -> Model:
        return Model([created(*self.key), *self.entries])

    @property
    def seq(self) -> int:
        return len(self.entries) if self.readable is None else self.readable

    def logged(self) -> LoggedRange:
        prefix = prefix_of(*self.entries[: self.seq])
        tail = self.model.tail(self.key)
        return LoggedRange(
            *self.key, 0, tail, self.state, prefix=prefix, highest_seq=len(self.entries)
        )


class ReplicatedRanges(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.disk = FaultyDisk()
        self.log = open_log(self.disk, segment_bytes=SEGMENT_BYTES)
        self.log.append([range_created(*key, 0, 77, is_replicated=True) for key in KEYS])
        self.log.append([created(*FILLER)])
        self.replicas = {key: Replica(key) for key in KEYS}

    def reopen(self) -> None:
        self.log = open_log(self.disk, segment_bytes=SEGMENT_BYTES)

    def next_entries(self, replica: Replica, choose: random.Random) -> list[Entry]:
        model, key = replica.model, replica.key
        body = choose.randbytes(choose.randrange(1, 150))
        txn_ids = [txn_id for each, txn_id in model.staged if each == key]
        match choose.randrange(7):
            case 0 | 1:
                entry = batch(model.tail(key), choose.randrange(1, 4), body, key)
                writer_id = choose.choice("vw")
                sequence = len(model.numbered.get((key[0], writer_id), ()))
                return [mark_of(entry, writer_id, sequence), entry]
            case 2 | 3 | 4:
                txn_id = choose.choice([*txn_ids, *txn_ids, f"{choose.getrandbits(40)}"])
                sequence = len(model.staged.get((key, txn_id), ()))
                return [staged_entry(*key, txn_id, sequence, choose.randrange(1, 4), body)]
            case 5:
                stagings = [self.log.staged.maybe_staging(*key, each) for each in txn_ids[:2]]
                found = [each for each in stagings if each is not None]
                return [commit_entry(*key, model.tail(key), found)]
            case _:
                return [drop_entry(*key, [*txn_ids[:1], "unknown"])]

    @rule(key=keys, seed=seeds)
    def append(self, key: tuple[int, int], seed: int) -> None:
        choose, replica = random.Random(seed), self.replicas[key]
        is_growing = replica.state in {RangeState.OPEN, RangeState.FENCED}
        if not is_growing or replica.readable is not None:
            return
        for _ in range(choose.randrange(1, 9)):
            group = self.next_entries(replica, choose)
            replica.entries += group
            at = replicated_range(self.log, FILLER).next_offset
            self.log.append([batch(at, 1, b"f" * choose.randrange(200), FILLER), *group])

    @rule()
    def go_on_in_a_new_segment(self) -> None:
        self.log.end_segment()

    @rule(is_clean=st.booleans())
    def restart(self, is_clean: bool) -> None:
        if is_clean:
            self.log.close()
        else:
            self.disk.kill_process()
        self.reopen()

    @rule(is_trimmed=st.booleans())
    def clean(self, is_trimmed: bool) -> None:
        if is_trimmed:
            tail = replicated_range(self.log, FILLER).next_offset
            self.log.append([Entry(EntryKind.TRIM, FILLER[0], -1, tail, 0)])
        Cleaner(self.log).clean(1.0)

    @rule(key=keys, seed=seeds)
    def damage_a_body(self, key: tuple[int, int], seed: int) -> None:
        """One in the last segment, which is read at a start."""
        replica = self.replicas[key]
        self.log.close()
        base = self.log.recovery.segment_bases[-1]
        base = max(base, *(int(path.stem) for path in self.disk.names if path.suffix == ".log"))
        path = segment_path(DIRECTORY, base)
        file = self.disk.open(path, is_writable=False)
        own: list[tuple[Entry, Location]] = []
        damaged = 0
        for item in SegmentScanner(file, base, file.size()).entries():
            if isinstance(item, Damage):
                damaged += 1
            elif is_numbered_in(item[0], (key,)):
                own.append(item)
        before = len(replica.entries) - len(own)
        spoilable = [at for at, (entry, _) in enumerate(own) if entry.kind in BATCH_KINDS]
        if spoilable and not damaged and replica.state is not RangeState.SEALED:
            at = random.Random(seed).choice(spoilable)
            for data in (self.disk.names[path].cached, self.disk.names[path].durable):
                data[own[at][1].end - 1 - base] ^= 1
            replica.readable = before + at
        self.reopen()

    @rule(key=keys)
    def fence(self, key: tuple[int, int]) -> None:
        self.log.append([fenced_entry(key)])
        self.replicas[key].state = self.replicas[key].state.or_later(RangeState.FENCED)

    @rule(key=keys, seed=seeds)
    def settle(self, key: tuple[int, int], seed: int) -> None:
        replica = self.replicas[key]
        if replica.state is RangeState.SEALED or len(replica.entries) < 6:
            return
        self.log.append([fenced_entry(key)])
        seq = random.Random(seed).randrange(replica.seq + 1)
        is_whole = replica.readable is None and seq == len(replica.entries)
        end, kept = prefix_of(*replica.entries[:seq]), replica.entries[:seq]
        tail = Model([created(*key), *kept]).tail(key)
        entry = settled_entry(key, tail, end) if is_whole else self.log.truncation(key, tail, end)
        self.log.append([entry])
        replica.entries, replica.readable, replica.state = kept, None, RangeState.SEALED

    @rule(key=keys, seed=seeds)
    def entries_are_read_again(self, key: tuple[int, int], seed: int) -> None:
        replica, choose = self.replicas[key], random.Random(seed)
        if replica.state is RangeState.SEALED:
            return
        first, last = sorted(choose.randrange(replica.seq + 1) for _ in range(2))
        found = in_transit(self.log.numbered_entries(key, first, last))
        assert found == in_transit(replica.entries[first:last])
        assert self.log.prefix_at(key, first) == prefix_of(*replica.entries[:first])

    @rule(key=keys, size=st.integers(0, 300))
    def a_copy_is_equal(self, key: tuple[int, int], size: int) -> None:
        replica = self.replicas[key]
        if replica.state is RangeState.SEALED or replica.readable is not None:
            return
        copy = open_log(FaultyDisk(), segment_bytes=SEGMENT_BYTES)
        copy.append([created(9, 0), batch(0, 1, b"x" * size, (9, 0))])
        copy.append([range_created(*key, 0, 77, is_replicated=True)])
        feed(copy, in_transit(self.log.numbered_entries(key, 0, replica.seq)))
        assert replace(replicated_range(copy, key), state=replica.state) == replicated_range(
            self.log, key
        )
        check_content(copy, replica)

    @invariant()
    def everything_is_that_of_the_lists(self) -> None:
        for key, replica in self.replicas.items():
            assert replicated_range(self.log, key) == replica.logged()
            if replica.readable is None:
                check_content(self.log, replica)


def check_content(log: Log, replica: Replica) -> None:
    """Fail unless batches, stagings, ends and writers are those of the entries."""
    model, key = replica.model, replica.key
    read = read_bodies(key, list(log.batches_from(key, 0)))
    assert read.error is None, read.error
    assert list(read.data) == [each.body for each in model.batches[key]]
    stagings = [each for each in log.staged.stagings_of(key[0]) if each.range_index == key[1]]
    assert {each.txn_id for each in stagings} == {txn_id for _, txn_id in model.staged}
    for staging in stagings:
        own = read_bodies(key, list(log.staged_from(staging, 0)))
        assert list(own.data) == [each.body for each in model.staged[key, staging.txn_id]]
    ends = [
        (each.txn_ids, each.is_commit, each.range_index, each.base_offset, each.record_count)
        for each in log.staged.ends(key[0])
    ]
    assert ends == model.ends.get(key[0], [])
    writers = {each.writer_id: each for each in log.writers.writers_of(key[0])}
    assert set(writers) == {writer_id for _, writer_id in model.numbered}
    for (_, writer_id), placed in model.numbered.items():
        assert writers[writer_id].last_sequence == len(placed) - 1
        kept = [each[:2] for each in writers[writer_id].batches]
        assert kept == placed[-limits.WRITER_BATCHES_KEPT :]


TestReplicatedRanges = ReplicatedRanges.TestCase
TestReplicatedRanges.settings = settings(
    max_examples=examples(150),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
