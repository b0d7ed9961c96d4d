"""A log at work, and what a power cut may leave of it before any step that it takes on its disk.

Some states are tried before each step: everything synced, plus any of the unsynced blocks and name
changes. The log must open in each state, hold everything synced and a prefix of the rest without a
gap, and accept appends.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sbp_core.errors import LogError
from sbp_core.log.cleaning import Cleaner
from sbp_core.log.durable_log import Log
from sbp_core.log.entry import APPENDED_KINDS, Entry
from sbp_core.log.recovery.inspection import inspect_log
from sbp_core.log.states.range_states import RangeState
from sbp_core.rangeserver.housekeeping.retention import Held, Retention, expired_below
from sbp_core.segment_format import EntryKind
from tests.support.disk import FAILING_OPERATIONS, FaultyDisk
from tests.support.log import DIRECTORY, batch, check_batches, concatenate, contents, created
from tests.support.models.log import Model

SEGMENT_BYTES = 8_000
BODY_BYTES_MAX = 1_500
STATES_PER_STEP = 2
STATES_PER_INSPECTION = 8
KEPT = Retention(period_ms=40, size_bytes=10_000)


NEW_STREAM = 99


class PowerCut(BaseException):
    """Ends whatever the log was doing."""


class SteppedDisk(FaultyDisk):
    """A disk that calls `before_step` before anything of it changes."""

    def __init__(self, block_bytes: int, before_step: Callable[[str, Path], None]) -> None:
        super().__init__(block_bytes)
        self._before_step = before_step

    def enter(self, operation: str, path: Path) -> None:
        if operation in FAILING_OPERATIONS:
            self._before_step(operation, path)
        super().enter(operation, path)


class LifeOfALog:
    """One log that is used in all ways, with everything that happens to it chosen by `chance`.

    `synced` is what the entries mean that a power cut must not take, `in_doubt` are those behind.
    """

    def __init__(
        self, chance: random.Random, new_disk: Callable[..., SteppedDisk] = SteppedDisk
    ) -> None:
        self.states: set[int] = set()
        self.cuts: Counter[tuple[str, str, str]] = Counter()
        """States by what the log was about to do, to which file, and what for."""
        self.spoilt_index_count = 0
        self._chance = chance
        self._disk = new_disk(chance.choice((512, 4096)), self._before_step)
        self._now_ms = 1_000
        self._action = "nothing"
        self._maybe_steps_left: int | None = None
        self.synced = Model([])
        self.in_doubt: list[Entry] = []
        self._states_of_these: set[int] = set()
        """Those that were tried since more became synced, or was in doubt."""
        self._open()

    def live(self, action_count: int) -> None:
        """Do `action_count` actions, some ended by a kill or a power cut, and close the log."""
        actions = {
            self._append: 30,
            self._append_small: 3,
            self._append_unsynced: 6,
            self._sync: 2,
            self._wait: 3,
            self._note_end: 6,
            self._retain: 4,
            self._clean: 6,
            self._close: 1,
            self._kill: 1,
        }
        for action in self._chance.choices(list(actions), list(actions.values()), k=action_count):
            self._maybe_steps_left = (
                self._chance.randrange(12) if self._chance.random() < 0.25 else None
            )
            try:
                with self._doing(action.__name__.strip("_")):
                    action()
            except PowerCut:
                self._disk.lose_power(self._chance.randrange)
                with noted(f"after a power cut in {action.__name__}"):
                    self._open()
        self._maybe_steps_left = None
        self._log.close()

    # Actions on the log.

    def _append(self, *, is_durable: bool = True) -> None:
        model = after(self.synced, self.in_doubt)
        group: list[Entry] = []
        for _ in range(self._chance.randrange(1, 4)):
            for entry in model.random_entries(self._chance, BODY_BYTES_MAX, self._log.staged):
                group.append(entry)
                model.apply(entry)
        self._doubt(group)
        is_durable = is_durable or any(entry.kind not in APPENDED_KINDS for entry in group)
        self._log.append(group, is_durable=is_durable)
        if is_durable:
            self._note_sync()

    def _append_small(self) -> None:
        """Append batches that the cleaner merges."""
        group = after(self.synced, self.in_doubt).small_batches(self._chance)
        self._doubt(group)
        self._log.append(group)
        self._note_sync()

    def _append_unsynced(self) -> None:
        """Append without a sync, which a range server never does with anything but batches."""
        self._append(is_durable=False)

    def _sync(self) -> None:
        self._log.sync()
        self._note_sync()

    def _note_end(self) -> None:
        """As a range server does it: without a sync, so a power cut may leave an older one."""
        self._log.high_water.note()

    def _wait(self) -> None:
        self._disk.write_back()
        self._note_sync()

    def _retain(self) -> None:
        """Trim a stream by its age and size, as a range server does."""
        ranges = [each for each in self._log.ranges() if each.state is not RangeState.DELETED]
        if not ranges:
            return
        stream_id = self._chance.choice(ranges).stream_id
        own = [each for each in ranges if each.stream_id == stream_id]
        size = sum(self._log.bytes_from(each.key, each.start_offset) for each in own)
        held = Held(own[0].start_offset, own[-1].next_offset, size)
        batches = (
            slot for each in own for slot in self._log.batches_from(each.key, each.start_offset)
        )
        offset = expired_below(held, batches, KEPT, self._now_ms)
        trim = Entry(EntryKind.TRIM, stream_id, -1, offset, 0)
        self._doubt([trim])
        self._log.append([trim])
        self._note_sync()

    def _clean(self) -> None:
        Cleaner(self._log, concatenate).clean()

    def _close(self) -> None:
        self._log.close()
        self._note_sync()
        self._open()

    def _kill(self) -> None:
        self._disk.kill_process()
        self._open()

    def _open(self) -> None:
        """Open the log; whatever a restart does to its disk may be cut off as well."""
        while True:
            try:
                with self._doing("open"):
                    self._log = self._opened(self._disk)
                break
            except PowerCut:
                self._disk.lose_power(self._chance.randrange)
        self._note_sync(found(self._log, self.synced, self.in_doubt))

    def _opened(self, disk: FaultyDisk) -> Log:
        return Log.open(DIRECTORY, disk=disk, now_ms=self._tick, segment_bytes=SEGMENT_BYTES)

    def _tick(self) -> int:
        self._now_ms += 1
        return self._now_ms

    def _doubt(self, group: list[Entry]) -> None:
        self.in_doubt += group
        self._states_of_these.clear()

    def _note_sync(self, maybe_model: Model | None = None) -> None:
        self.synced = maybe_model or after(self.synced, self.in_doubt)
        self.in_doubt = []
        self._states_of_these.clear()

    @contextmanager
    def _doing(self, action: str) -> Iterator[None]:
        before, self._action = self._action, action
        try:
            yield
        finally:
            self._action = before

    # States after a crash.

    def _before_step(self, operation: str, path: Path) -> None:
        for _ in range(STATES_PER_STEP):
            left = self._disk.after_power_cut(self._chance.randrange)
            self.cuts[self._action, operation, path.suffix or path.name] += 1
            state = hash(frozenset(contents(left).items()))
            if state in self._states_of_these:
                continue
            self._states_of_these.add(state)
            self.states.add(state)
            with noted(f"after a power cut before {operation} of {path} in {self._action}"):
                self._check(left)
        if self._maybe_steps_left is not None:
            self._maybe_steps_left -= 1
            if self._maybe_steps_left < 0:
                self._maybe_steps_left = None
                raise PowerCut

    def _check(self, disk: FaultyDisk) -> None:
        """Whether a log goes on from what is on the disk."""
        if len(self.states) % STATES_PER_INSPECTION == 0:
            report = inspect_log(disk, DIRECTORY)
            assert not report.lost
            assert {fault.path.suffix for fault in report.faults} <= {".idx"}, report.faults
            self.spoilt_index_count += bool(report.faults)
        log = self._opened(disk)
        model = found(log, self.synced, self.in_doubt)
        group = [created(NEW_STREAM)]
        group += [
            batch(each.next_offset, 2, b"after the power cut", each.key)
            for each in log.ranges()
            if each.state is RangeState.OPEN
        ]
        log.append(group)
        disk.lose_power(nothing_unsynced)
        found(self._opened(disk), after(model, group), [])


@contextmanager
def noted(when: str) -> Iterator[None]:
    """Add to the error of a log that breaks a promise when it broke it."""
    try:
        yield
    except (AssertionError, LogError) as error:
        error.add_note(when)
        raise


def nothing_unsynced(_: int) -> int:
    return 0


def after(model: Model, entries: list[Entry]) -> Model:
    """Return the model with `entries` applied."""
    model = model.copy()
    for entry in entries:
        model.apply(entry)
    return model


def found(log: Log, synced: Model, in_doubt: list[Entry]) -> Model:
    """Check that a log holds what was synced, and none to all of what was in doubt, in order.

    Return what it means.
    """
    model = synced.copy()
    rest = iter(in_doubt)
    while not is_told(log, model):
        entry = next(rest, None)
        assert entry is not None, f"{log.ranges()} are reported, {model.ranges()} were synced"
        model.apply(entry)
    model.maybe_mark = None  # a batch that comes later is not the one that was meant
    model.check_writers(log.writers)
    model.check_staged(log)
    for logged in log.ranges():
        if logged.state is not RangeState.DELETED:
            start = model.start[logged.key]
            slots = list(log.batches_from(logged.key, start))
            check_batches(logged.key, slots, model.batches[logged.key], start)
    return model


def is_told(log: Log, model: Model) -> bool:
    """Whether the log has the ranges of `model`, and what is staged.

    It may have forgotten ranges that are deleted.
    """
    told = log.ranges()
    meant = model.ranges()
    others = [each for each in meant if each not in told]
    return (
        len(meant) - len(others) == len(told)
        and all(each.state is RangeState.DELETED for each in others)
        and model.is_staged(log.staged)
    )
