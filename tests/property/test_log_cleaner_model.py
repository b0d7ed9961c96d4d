"""The log with a cleaner against a list: nothing live is ever lost, whatever fails and crashes.

The cleaner merges batches, too.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sbp_core.errors import LogError, LogWriteError
from sbp_core.log.cleaning import Cleaner
from sbp_core.log.durable_log import Log
from sbp_core.log.entry import Entry
from sbp_core.log.readable_log import LogState
from sbp_core.log.segment_rows import Slot
from sbp_core.log.states.range_states import RangeState
from sbp_core.segment_format import EntryKind
from tests.support.clock import examples
from tests.support.disk import FAILING_OPERATIONS, FaultyDisk
from tests.support.log import batch, check_batches, concatenate, created, open_log
from tests.support.models.log import Key, Model

SEGMENT_BYTES = 1_500

seeds = st.integers(0, 2**32)


class CleanedLogLives(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = FaultyDisk()
        self.model = Model([])
        self.held: list[tuple[Key, int, list[Slot], list[Entry]]] = []
        self.halfway: list[tuple[Key, int, int, Iterator[Slot]]] = []
        self.log: Log | None = None

    @initialize()
    def begin(self) -> None:
        self.open()
        self.append_group([created(1), created(2), created(3)])

    def open(self) -> None:
        self.held.clear()
        self.halfway.clear()
        while True:
            try:
                self.log = open_log(self.disk, segment_bytes=SEGMENT_BYTES)
                break
            except LogWriteError:
                self.disk.kill_process()
        self.cleaner = Cleaner(self.log, concatenate)

    @property
    def is_usable(self) -> bool:
        return self.log is not None and self.log.state is LogState.OPEN

    def append_group(self, group: list[Entry]) -> None:
        assert self.log is not None
        self.log.append(group)
        for entry in group:
            self.model.apply(entry)

    @precondition(lambda self: self.is_usable)
    @rule(seed=seeds)
    def append(self, seed: int) -> None:
        choose = random.Random(seed)
        for _ in range(choose.randrange(1, 8)):
            self.append_group([self.next_entry(choose)])

    @precondition(lambda self: self.is_usable)
    @rule(seed=seeds)
    def append_small_batches(self, seed: int) -> None:
        for entry in self.model.small_batches(random.Random(seed)):
            self.append_group([entry])

    def next_entry(self, choose: random.Random) -> Entry:
        """One that fills segments unevenly, so that some are dead, some mostly, some not."""
        assert self.log is not None
        entry = self.model.random_entry(choose, states=self.log.staged)
        key = (entry.stream_id, entry.range_index)
        if entry.kind is EntryKind.BATCH and key[0] == 1:
            return batch(entry.base_offset, entry.count, choose.randbytes(250), key)
        if entry.kind is EntryKind.STREAM_DELETED and choose.randrange(3):
            return Entry(EntryKind.TRIM, key[0], -1, 2**40, 0)
        return entry

    @rule()
    def clean(self) -> None:
        try:
            self.cleaner.clean()
        except LogError as error:
            raise AssertionError("nothing failed") from error

    @rule(operation=st.sampled_from(FAILING_OPERATIONS), nth=st.integers(1, 4), seed=seeds)
    def clean_on_a_disk_that_fails(self, operation: str, nth: int, seed: int) -> None:
        """Then the process goes on, or restarts, or the machine does."""
        injected = self.disk.injected
        self.disk.fail(operation, nth, errno.EIO)
        try:
            self.cleaner.clean()
        except LogError:
            assert self.disk.injected > injected
        self.disk.heal()
        match seed % 3:
            case 0:
                self.kill_the_process()
            case 1:
                self.lose_power(seed)

    @rule(seed=seeds)
    def find_batches_to_read_later(self, seed: int) -> None:
        choose = random.Random(seed)
        for key, offset in self.readable(choose):
            slots = list(self.slots(key, offset))
            self.held.append((key, offset, slots, list(self.model.batches[key])))
            halfway = self.slots(key, offset)
            self.halfway.append((key, next(halfway).end_offset, self.model.tail(key), halfway))

    @rule()
    def read_what_was_found_before(self) -> None:
        for key, offset, slots, appended in self.held:
            check_batches(key, slots, appended, offset)
        for key, offset, tail, halfway in self.halfway:
            is_gone = self.model.state[key] is RangeState.DELETED or self.model.start[key] > offset
            try:
                slots = list(halfway)
            except LogError:
                assert is_gone
                continue
            if not is_gone:
                end = slots[-1].end_offset if slots else offset
                if end < tail:  # the next one was merged with the one before it
                    assert next(self.slots(key, end)).base_offset < end
                appended = [each for each in self.model.batches[key] if each.base_offset < end]
                check_batches(key, slots, appended, offset)
        self.halfway.clear()

    @rule(seed=seeds)
    def what_is_live_is_found_from_any_of_its_offsets(self, seed: int) -> None:
        for key, offset in self.readable(random.Random(seed)):
            check_batches(key, list(self.slots(key, offset)), self.model.batches[key], offset)

    @rule()
    def close_and_open(self) -> None:
        assert self.log is not None
        self.log.close()
        self.open()

    @rule()
    def kill_the_process(self) -> None:
        self.disk.kill_process()
        self.open()

    @rule(seed=seeds)
    def lose_power(self, seed: int) -> None:
        self.disk.lose_power(random.Random(seed).randrange)
        self.open()

    @invariant()
    def what_is_staged_is_there(self) -> None:
        if self.log is not None:
            self.model.check_staged(self.log)

    @invariant()
    def only_deleted_ranges_are_forgotten(self) -> None:
        if self.log is None:
            return
        known, expected = self.log.ranges(), self.model.ranges()
        assert all(logged in expected for logged in known)
        missing = [logged for logged in expected if logged not in known]
        assert {logged.state for logged in missing} <= {RangeState.DELETED}

    def slots(self, key: Key, offset: int) -> Iterator[Slot]:
        assert self.log is not None
        return self.log.batches_from(key, offset)

    def readable(self, choose: random.Random) -> list[tuple[Key, int]]:
        """An offset of each range that has any."""
        return [
            (logged.key, choose.randrange(logged.start_offset, logged.next_offset))
            for logged in self.model.ranges()
            if logged.state is not RangeState.DELETED and logged.start_offset < logged.next_offset
        ]


TestCleanedLogLives = CleanedLogLives.TestCase
TestCleanedLogLives.settings = settings(
    max_examples=examples(100),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
