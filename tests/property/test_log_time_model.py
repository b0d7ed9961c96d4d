"""Finding records by time against a list: never one too late, whatever the clock and the log do."""

from __future__ import annotations

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sbp_core.log.cleaning import Cleaner
from sbp_core.log.durable_log import Log
from sbp_core.log.entry import Entry
from sbp_core.log.segment_rows import DatedOffset
from sbp_core.segment_format import EntryKind
from tests.support.clock import examples
from tests.support.disk import FaultyDisk
from tests.support.log import DIRECTORY, batch, created

KEYS = [(1, 0), (1, 1), (2, 0)]
START_MS = 1_000

seeds = st.integers(0, 2**32)


class LookupsByTime(RuleBasedStateMachine):
    """Batches of each range as (base offset, end, time), in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = FaultyDisk()
        self.now_ms = START_MS
        self.batches: dict[tuple[int, int], list[tuple[int, int, int]]] = {key: [] for key in KEYS}
        self.trimmed = dict.fromkeys(KEYS, 0)

    @initialize(segment_bytes=st.sampled_from([600, 4_000]))
    def begin(self, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self.open()
        self.log.append([created(*key) for key in KEYS])

    def open(self) -> None:
        self.log = Log.open(
            DIRECTORY,
            disk=self.disk,
            now_ms=lambda: self.now_ms,
            segment_bytes=self.segment_bytes,
        )
        self.cleaner = Cleaner(self.log)

    def tail(self, key: tuple[int, int]) -> int:
        return self.batches[key][-1][1] if self.batches[key] else 0

    @rule(step_ms=st.integers(0, 5), keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=8))
    def append(self, step_ms: int, keys: list[tuple[int, int]]) -> None:
        """Groups of one batch each, as long as they are to fill segments."""
        for key in keys:
            self.now_ms += step_ms
            base = self.tail(key)
            self.log.append([batch(base, 2, bytes(60), key)])
            self.batches[key].append((base, base + 2, self.now_ms))

    @rule(back_ms=st.integers(1, 40))
    def set_the_clock_back(self, back_ms: int) -> None:
        self.now_ms = max(self.now_ms - back_ms, 0)

    @rule(key=st.sampled_from(KEYS), share=st.floats(0, 1))
    def trim(self, key: tuple[int, int], share: float) -> None:
        """Trim all ranges of the stream, as a trim of the log does."""
        offset = int(self.tail(key) * share)
        self.log.append([Entry(EntryKind.TRIM, key[0], -1, offset, 0)])
        for each in KEYS:
            if each[0] == key[0]:
                self.trimmed[each] = max(self.trimmed[each], min(offset, self.tail(each)))

    @rule()
    def clean(self) -> None:
        self.cleaner.clean()

    @rule(is_clean=st.booleans(), seed=seeds)
    def start_again(self, is_clean: bool, seed: int) -> None:
        """Perhaps without some of the index files."""
        if is_clean:
            self.log.close()
        self.disk.kill_process()
        choose = random.Random(seed)
        for path in sorted(self.disk.names):
            if path.suffix == ".idx" and not choose.randrange(3):
                self.disk.remove(path)
        self.open()

    @invariant()
    def the_first_record_of_a_time_is_found(self) -> None:
        for key, batches in self.batches.items():
            start = self.trimmed[key]
            for offset in {start, (start + self.tail(key)) // 2, self.tail(key)}:
                for time_ms in {0, START_MS, self.now_ms, self.now_ms + 1, *self.times(key)}:
                    expected = next(
                        (
                            DatedOffset(max(base, offset), written_ms)
                            for base, end, written_ms in batches
                            if end > offset and written_ms >= time_ms
                        ),
                        None,
                    )
                    assert self.log.maybe_since(key, offset, time_ms) == expected

    def times(self, key: tuple[int, int]) -> list[int]:
        """Some of a range's times, and the moments after them."""
        some = self.batches[key][:: max(len(self.batches[key]) // 5, 1)]
        return [written_ms + more for _, _, written_ms in some for more in (0, 1)]


TestLookupsByTime = LookupsByTime.TestCase
TestLookupsByTime.settings = settings(max_examples=examples(60), stateful_step_count=30)
