"""The log against a list, on a disk that loses power and fails: random lives, one after another."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest
from faulty_disk import FAILING_OPERATIONS, FaultyDisk
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from sbp_core.errors import LogWriteError, Outcome
from sbp_core.log.entry import Entry, EntryKind, Location
from sbp_core.log.log import Log, LogState

DIRECTORY = Path("/log")
SEGMENT_BYTES = 700

entries = st.builds(
    Entry,
    st.sampled_from(list(EntryKind)[1:]),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**32 - 1),
    st.binary(max_size=200),
)
groups = st.lists(entries, max_size=5)


class LogLives(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = FaultyDisk()
        self.acknowledged: list[tuple[Entry, Location]] = []
        self.in_doubt: list[Entry] = []
        self.log: Log | None = None

    @initialize()
    def begin(self) -> None:
        self.open()

    def open(self) -> None:
        """Open the log; on a disk that fails meanwhile, restart the process until it works."""
        found: list[tuple[Entry, Location]] = []

        def on_entry(entry: Entry, location: Location) -> None:
            fields = (entry.kind, entry.stream_id, entry.range_index)
            found.append(
                (Entry(*fields, entry.base_offset, entry.count, bytes(entry.body)), location)
            )

        while True:
            found.clear()
            try:
                self.log = Log.open(
                    DIRECTORY, on_entry=on_entry, disk=self.disk, segment_bytes=SEGMENT_BYTES
                )
                break
            except LogWriteError:
                self.disk.kill_process()
        kept = len(self.acknowledged)
        assert found[:kept] == self.acknowledged
        assert [entry for entry, _ in found[kept:]] == self.in_doubt[: len(found) - kept]
        assert self.log.recovery.entry_count == len(found)
        self.acknowledged = found
        self.in_doubt = []

    @property
    def is_usable(self) -> bool:
        return self.log is not None and self.log.state is LogState.OPEN

    @precondition(lambda self: self.is_usable)
    @rule(group=groups)
    def append(self, group: list[Entry]) -> None:
        assert self.log is not None
        try:
            locations = self.log.append(group)
        except LogWriteError as error:
            assert self.disk.injected
            self.in_doubt = group if error.outcome is Outcome.UNKNOWN else []
        else:
            self.acknowledged += zip(group, locations, strict=True)

    @precondition(lambda self: not self.is_usable)
    @rule(group=groups)
    def append_to_a_dead_log(self, group: list[Entry]) -> None:
        assert self.log is not None
        calls = self.disk.calls.copy()
        with pytest.raises(LogWriteError) as caught:
            self.log.append(group)
        assert caught.value.outcome is Outcome.NOT_APPLIED
        assert self.disk.calls == calls

    @rule(operation=st.sampled_from(FAILING_OPERATIONS), nth=st.integers(1, 4))
    def arm_a_fault(self, operation: str, nth: int) -> None:
        self.disk.fail(operation, nth, errno.EIO)

    @rule()
    def close_and_open(self) -> None:
        assert self.log is not None
        try:
            self.log.close()
        except LogWriteError:
            assert self.disk.injected
        self.open()

    @rule()
    def kill_the_process(self) -> None:
        self.disk.kill_process()
        self.open()

    @rule(seed=st.integers(0, 2**32))
    def lose_power(self, seed: int) -> None:
        self.disk.lose_power(random.Random(seed).randrange)
        self.open()

    @precondition(lambda self: self.is_usable)
    @rule(seed=st.integers(0, 2**32))
    def lose_power_in_the_middle_of_a_group(self, seed: int) -> None:
        """The group was written, its sync never came: any of its blocks may be on the disk."""
        assert self.log is not None
        choose = random.Random(seed)
        group = [
            Entry(EntryKind.STAGED, number, 0, 0, 1, choose.randbytes(choose.randrange(300)))
            for number in range(choose.randrange(1, 6))
        ]
        # A sync that fails while its blocks stay dirty is what a power loss before it looks like.
        active = self.log._active

        def never_synced() -> None:
            raise OSError(errno.EIO, "power lost")

        active.fdatasync = never_synced  # type: ignore[method-assign]
        try:
            self.log.append(group)
        except LogWriteError as error:
            self.in_doubt = group if error.outcome is Outcome.UNKNOWN else []
        else:  # it rolled: the new file has its own sync
            self.acknowledged += zip(group, self._locations_of_last(group), strict=True)
        self.disk.lose_power(choose.randrange)
        self.open()

    def _locations_of_last(self, group: list[Entry]) -> list[Location]:
        assert self.log is not None
        end = self.log.end_position
        locations: list[Location] = []
        for entry in reversed(group):
            locations.insert(0, Location(end - entry.length, entry.length))
            end -= entry.length
        return locations

    @invariant()
    def everything_acknowledged_is_readable(self) -> None:
        if self.log is None:
            return
        for entry, at in self.acknowledged[-8:]:
            assert self.log.read(at.body_position, at.body_length) == entry.body
            assert self.log.read_entry(at.position) == entry


TestLogLives = LogLives.TestCase
TestLogLives.settings = settings(
    max_examples=150,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
