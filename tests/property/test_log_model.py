"""The log against a list, on a disk that loses power and fails: random lives, one after another."""

from __future__ import annotations

import errno
import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sbp_core.errors import LogWriteError, Outcome
from sbp_core.log.bodies import read_bodies
from sbp_core.log.durable_log import Log
from sbp_core.log.entry import Entry, Location
from sbp_core.log.readable_log import LogState
from sbp_core.segment_format import EntryKind
from tests.support.clock import examples
from tests.support.disk import FAILING_OPERATIONS, FaultyDisk
from tests.support.log import counted, logged, open_log
from tests.support.models.log import Model

SEGMENT_BYTES = 900

seeds = st.integers(0, 2**32)


class LogLives(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = FaultyDisk()
        self.acknowledged: list[tuple[Entry, Location]] = []
        self.synced_count = 0
        self.in_doubt: list[Entry] = []
        self.log: Log | None = None

    @initialize()
    def begin(self) -> None:
        self.open()

    def open(self, *, is_power_lost: bool = False) -> None:
        """Open the log; if the disk fails, restart the process until opening succeeds.

        All that was acknowledged must be there; after a power cut or a failed sync, what was synced
        of it, and of the rest nothing behind a gap.
        """
        is_unsynced_lost = is_power_lost or (self.log is not None and not self.is_usable)
        while True:
            try:
                self.log = open_log(self.disk, segment_bytes=SEGMENT_BYTES)
                break
            except LogWriteError:
                is_unsynced_lost = True
                self.disk.kill_process()
        found = logged(self.disk)
        acknowledged = len(self.acknowledged)
        assert len(found) >= (self.synced_count if is_unsynced_lost else acknowledged)
        assert found[:acknowledged] == self.acknowledged[: len(found)]
        in_doubt = [entry for entry, _ in found[acknowledged:]]
        assert in_doubt == self.in_doubt[: len(in_doubt)]
        self.acknowledged = found
        self.synced_count = len(found)
        self.in_doubt = []
        self.model = Model(counted(found))
        self.model.check_writers(self.log.writers)
        self.model.check_staged(self.log)

    @property
    def is_usable(self) -> bool:
        return self.log is not None and self.log.state is LogState.OPEN

    def group(self, seed: int) -> list[Entry]:
        choose = random.Random(seed)
        model = Model(counted(self.acknowledged))
        entries: list[Entry] = []
        assert self.log is not None
        for _ in range(choose.randrange(6)):
            for entry in model.random_entries(choose, states=self.log.staged):
                entries.append(entry)
                model.apply(entry)
        return entries

    @precondition(lambda self: self.is_usable)
    @rule(seed=seeds, is_durable=st.booleans())
    def append(self, seed: int, is_durable: bool) -> None:
        assert self.log is not None
        group = self.group(seed)
        try:
            appended = self.log.append(group, is_durable=is_durable)
        except LogWriteError as error:
            assert self.disk.injected
            self.in_doubt = group if error.outcome is Outcome.UNKNOWN else []
        else:
            self.acknowledged += zip(group, appended.locations, strict=True)
            if is_durable:
                self.synced_count = len(self.acknowledged)
            for entry in group:
                self.model.apply(entry)
            ranges = self.model.ranges()
            assert all(changed in ranges for changed in appended.ranges)
            self.model.check_writers(self.log.writers)
            self.model.check_staged(self.log)

    @precondition(lambda self: self.is_usable)
    @rule()
    def sync(self) -> None:
        assert self.log is not None
        try:
            self.log.sync()
        except LogWriteError:
            assert self.disk.injected
        else:
            self.synced_count = len(self.acknowledged)

    @precondition(lambda self: not self.is_usable)
    @rule(seed=seeds)
    def append_to_a_dead_log(self, seed: int) -> None:
        assert self.log is not None
        calls = self.disk.calls.copy()
        with pytest.raises(LogWriteError) as caught:
            self.log.append(self.group(seed))
        assert caught.value.outcome is Outcome.NOT_APPLIED
        assert self.disk.calls == calls

    @rule(operation=st.sampled_from(FAILING_OPERATIONS), nth=st.integers(1, 4))
    def arm_a_fault(self, operation: str, nth: int) -> None:
        self.disk.fail(operation, nth, errno.EIO)

    @rule(seed=seeds)
    def spoil_an_index(self, seed: int) -> None:
        """Remove, cut, damage or exchange an index file on the disk."""
        choose = random.Random(seed)
        paths = sorted(path for path in self.disk.names if path.suffix == ".idx")
        if not paths:
            return
        path = choose.choice(paths)
        inode = self.disk.names[path]
        match choose.randrange(4):
            case 0:
                del self.disk.names[path]
            case 1:
                inode.truncate(choose.randrange(len(inode.cached) + 1))
            case 2 if inode.cached:
                at = choose.randrange(len(inode.cached))
                inode.write(bytes([inode.cached[at] ^ (1 << choose.randrange(8))]), at)
            case _:
                self.disk.names[path] = self.disk.names[choose.choice(paths)]

    @rule()
    def close_and_open(self) -> None:
        assert self.log is not None
        try:
            self.log.close()
        except LogWriteError:
            assert self.disk.injected
            self.open(is_power_lost=True)
        else:
            self.open()

    @rule()
    def kill_the_process(self) -> None:
        self.disk.kill_process()
        self.open()

    @rule(seed=seeds)
    def lose_power(self, seed: int) -> None:
        self.disk.lose_power(random.Random(seed).randrange)
        self.open(is_power_lost=True)

    @precondition(lambda self: self.is_usable)
    @rule(first=seeds, rest=st.lists(seeds, min_size=1, max_size=4))
    def lose_power_with_several_groups_unsynced(self, first: int, rest: list[int]) -> None:
        """Any of their blocks may be on the disk: a later group without an earlier one, too."""
        for seed in (first, *rest):
            if self.is_usable:
                self.append(seed, is_durable=False)
        self.lose_power(first)

    @precondition(lambda self: self.is_usable)
    @rule(seed=seeds)
    def lose_power_in_the_middle_of_a_group(self, seed: int) -> None:
        """The group was written, its sync never came: any of its blocks may be on the disk."""
        assert self.log is not None
        group = self.group(seed)
        # A sync that fails while its blocks stay dirty is what a power loss before it looks like.
        active = self.log._active._file

        def never_synced() -> None:
            raise OSError(errno.EIO, "power lost")

        active.fdatasync = never_synced  # type: ignore[method-assign]
        try:
            appended = self.log.append(group)
        except LogWriteError as error:
            self.in_doubt = group if error.outcome is Outcome.UNKNOWN else []
        else:  # it rolled: the new file has its own sync
            self.acknowledged += zip(group, appended.locations, strict=True)
            self.synced_count = len(self.acknowledged)
        self.disk.lose_power(random.Random(seed).randrange)
        self.open(is_power_lost=True)

    @invariant()
    def the_ranges_are_those_of_the_entries(self) -> None:
        """Not once a sync has failed: such a log also counts the group that is in doubt."""
        if self.is_usable:
            assert self.log is not None
            assert self.log.ranges() == self.model.ranges()

    @rule(seed=seeds)
    def every_batch_is_found_from_any_of_its_offsets(self, seed: int) -> None:
        assert self.log is not None
        choose = random.Random(seed)
        by_place = {
            (entry.stream_id, entry.range_index, entry.base_offset): at
            for entry, at in self.acknowledged
            if entry.kind is EntryKind.BATCH
        }
        for key, batches in self.model.batches.items():
            first, tail = self.model.first[key], self.model.tail(key)
            assert list(self.log.batches_from(key, tail)) == []
            if first == tail:
                continue
            offset = choose.randrange(first, tail)
            expected = [each for each in batches if each.base_offset + each.count > offset]
            slots = list(self.log.batches_from(key, offset))
            assert [(slot.base_offset, slot.count) for slot in slots] == [
                (each.base_offset, each.count) for each in expected
            ]
            plain = [slot for slot in slots if not slot.prefix_bytes]
            assert [slot.location for slot in plain] == [
                by_place[(*key, slot.base_offset)] for slot in plain
            ]
            bodies = read_bodies(key, slots)
            assert bodies.error is None
            assert list(bodies.data) == [each.body for each in expected]


TestLogLives = LogLives.TestCase
TestLogLives.settings = settings(
    max_examples=examples(150),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
