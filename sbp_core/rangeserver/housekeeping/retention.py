"""Retention: decide which records may go, by a clock that can be trusted.

Records that were removed for their age cannot be brought back, and a wall clock may be wrong: a bad
time server, a dead battery, an operator. So the wall clock counts only after it has kept pace with
the monotonic clock for CLOCK_EVEN_MS, give or take CLOCK_LEAP_MS.

`clock.json` remembers across restarts the last wall clock, and for how long it had gone evenly. If
the clock at a start is at most CLOCK_GAP_MS after it, the even time goes on: otherwise a server
that restarts often would never remove anything. With any other clock, or without the file, the even
time begins again: after a start with a wrong clock an operator has that time to notice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sbp_core import limits
from sbp_core.log.disk import Disk
from sbp_core.log.segment_rows import Slot
from sbp_core.rangeserver.notes import maybe_note, write_note
from sbp_core.server.runtime import Clock


@dataclass(frozen=True, slots=True)
class Retention:
    """The retention of a stream by age and by bytes; 0 is no limit."""

    period_ms: int = 0
    size_bytes: int = 0
    created_at_ms: int = -1
    """Creation time of the stream; tells streams with the same id apart."""

    @property
    def is_for_ever(self) -> bool:
        """Whether there is no limit."""
        return not self.period_ms and not self.size_bytes


@dataclass(frozen=True, slots=True)
class Held:
    """The records of a stream on this server, up to `next_offset`, and their bytes."""

    start_offset: int
    next_offset: int
    size_bytes: int


def expired_below(held: Held, batches: Iterable[Slot], retention: Retention, now_ms: int) -> int:
    """Return the offset below which the records of a stream may go.

    `batches` are all batches here, oldest first; the function reads up to the first that stays. A
    batch goes if it is too old, or while the remaining batches exceed the size. The newest batch
    never goes for the size.
    """
    offset, left_bytes = held.start_offset, held.size_bytes
    for batch in batches:
        is_too_old = retention.period_ms and batch.time_ms + retention.period_ms < now_ms
        is_too_much = (
            retention.size_bytes
            and left_bytes > retention.size_bytes
            and batch.end_offset < held.next_offset
        )
        if not (is_too_old or is_too_much):
            break
        offset = max(offset, batch.end_offset)
        left_bytes -= batch.location.length
    return min(offset, held.next_offset)


_LOG: Final = logging.getLogger(__name__)


CLOCK_NAME: Final = "clock.json"
CLOCK_GAP_MS: Final = 600_000
"""A wall clock that is further ahead at a start must go evenly again. After a restart with a wrong
clock, records may go too early by that much."""
_NOTE_INTERVAL_MS: Final = 30_000
"""Pause between two writes of the clock's note."""


class ClockNote:
    """The file that remembers the wall clock while the server is down."""

    def __init__(self, data_dir: Path, disk: Disk) -> None:
        self._path = data_dir / CLOCK_NAME
        self._disk = disk

    def even_ms(self, now_ms: int) -> int:
        """Return how long the clock had gone evenly, 0 if `now_ms` does not follow the note."""
        noted = maybe_note(self._path, {"wall_ms": int, "even_ms": int})
        if noted is None:
            return 0
        gone_ms = now_ms - noted["wall_ms"]
        return noted["even_ms"] if -limits.CLOCK_LEAP_MS <= gone_ms <= CLOCK_GAP_MS else 0

    def write(self, now_ms: int, even_ms: int) -> None:
        """Write the wall clock, and for how long it has gone evenly."""
        write_note(self._disk, self._path, {"wall_ms": now_ms, "even_ms": even_ms})


class SteadyTime:
    """The wall clock, believed after it has gone evenly. One thread may use it at a time.

    `newest_ms` is the latest time in the log, 0 if none. A clock that is far from it at the start
    is logged, unless it follows the `note` of the previous run.
    """

    def __init__(
        self,
        clock: Clock,
        newest_ms: int = 0,
        *,
        even_ms: int = limits.CLOCK_EVEN_MS,
        note: ClockNote | None = None,
    ) -> None:
        self._clock = clock
        self._even_ms = even_ms
        self._newest_ms = newest_ms
        self._note = note
        self._note_at_ms = 0
        """Time of the next note, by the monotonic clock."""
        self._ahead_ms: int | None = None
        """How far the wall clock was ahead of the monotonic one at `_since_ms`."""
        self._since_ms = 0
        self._is_believed = False

    def maybe_now_ms(self) -> int | None:
        """Return the wall clock in ms since the epoch, None while it is not believed.

        May wait for the disk.
        """
        now_ms = self._clock.wall_ms()
        monotonic_ms = round(1000 * self._clock.monotonic())
        ahead_ms = now_ms - monotonic_ms
        before_ms = self._ahead_ms
        if before_ms is None:
            even_ms = 0 if self._note is None else self._note.even_ms(now_ms)
            if not even_ms:
                self._compare_with_log(now_ms)
            is_enough = even_ms > 0 and even_ms >= self._even_ms
            self._begin(monotonic_ms - even_ms, ahead_ms, is_believed=is_enough)
        elif abs(ahead_ms - before_ms) > limits.CLOCK_LEAP_MS:
            _LOG.warning(
                "clock leapt leap_s=%d: no record is removed for its age until the clock has gone"
                " evenly for %d s; if it is wrong, set it right",
                (ahead_ms - before_ms) // 1000,
                self._even_ms // 1000,
            )
            self._begin(monotonic_ms, ahead_ms)
        elif monotonic_ms - self._since_ms >= self._even_ms:
            # Later looks compare with the present difference, because clocks are adjusted slowly.
            self._begin(monotonic_ms, ahead_ms, is_believed=True)
        self._remember(now_ms, monotonic_ms)
        return now_ms if self._is_believed else None

    def _begin(self, monotonic_ms: int, ahead_ms: int, *, is_believed: bool = False) -> None:
        self._since_ms, self._ahead_ms = monotonic_ms, ahead_ms
        self._is_believed = is_believed
        self._note_at_ms = monotonic_ms

    def _remember(self, now_ms: int, monotonic_ms: int) -> None:
        if self._note is None or monotonic_ms < self._note_at_ms:
            return
        even_ms = self._even_ms if self._is_believed else monotonic_ms - self._since_ms
        self._note.write(now_ms, even_ms)
        self._note_at_ms = monotonic_ms + _NOTE_INTERVAL_MS

    def _compare_with_log(self, now_ms: int) -> None:
        off_ms = now_ms - self._newest_ms
        if not self._newest_ms or -limits.CLOCK_LEAP_MS <= off_ms <= limits.CLOCK_SUSPICIOUS_MS:
            return
        _LOG.warning(
            "clock in doubt off_s=%d: it is %s the newest entry of the log; no record is removed"
            " for its age until the clock has gone evenly for %d s; if it is wrong, set it right",
            off_ms // 1000,
            "after" if off_ms > 0 else "before",
            self._even_ms // 1000,
        )
