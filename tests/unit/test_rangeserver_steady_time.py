"""When a wall clock is believed."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from sbp_core import limits
from sbp_core.log.disk import OsDisk
from sbp_core.rangeserver.housekeeping.retention import (
    CLOCK_GAP_MS,
    CLOCK_NAME,
    ClockNote,
    SteadyTime,
)
from tests.support.clock import ManualClock

LOOK_MS = 2_000
LOOKS = limits.CLOCK_EVEN_MS // LOOK_MS
DAY_MS = 86_400_000


class LeapingClock(ManualClock):
    leap_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.leap_ms


@pytest.fixture
def clock() -> LeapingClock:
    return LeapingClock()


@pytest.fixture
def steady(clock: LeapingClock) -> SteadyTime:
    return SteadyTime(clock)


def looks_until_believed(steady: SteadyTime, clock: LeapingClock) -> int:
    for count in range(1, 2 * LOOKS):
        clock.advance(LOOK_MS)
        now_ms = steady.maybe_now_ms()
        if now_ms is not None:
            assert now_ms == clock.wall_ms()
            return count
    pytest.fail("it is never believed")


def test_it_is_believed_after_ten_minutes(clock: LeapingClock, steady: SteadyTime) -> None:
    assert looks_until_believed(steady, clock) == 1 + LOOKS
    assert looks_until_believed(steady, clock) == 1


@pytest.mark.parametrize("leap_ms", [-3650 * DAY_MS, -DAY_MS, DAY_MS, 10 * DAY_MS, 3650 * DAY_MS])
def test_after_a_leap_it_is_not_believed_for_ten_minutes(
    clock: LeapingClock, steady: SteadyTime, leap_ms: int
) -> None:
    looks_until_believed(steady, clock)
    clock.leap_ms = leap_ms
    assert looks_until_believed(steady, clock) == 1 + LOOKS


def test_a_restart_begins_the_ten_minutes_again(clock: LeapingClock, steady: SteadyTime) -> None:
    looks_until_believed(steady, clock)
    clock.leap_ms = 10 * DAY_MS
    for _ in range(3):
        restarted = SteadyTime(clock)
        for _ in range(LOOKS):
            clock.advance(LOOK_MS)
            assert restarted.maybe_now_ms() is None


def test_a_clock_that_creeps_ahead_is_not_believed(clock: LeapingClock, steady: SteadyTime) -> None:
    """Each step is small, but together they are no adjustment."""
    for _ in range(2 * LOOKS):
        clock.advance(LOOK_MS)
        clock.leap_ms += limits.CLOCK_LEAP_MS // 2
        assert steady.maybe_now_ms() is None


def test_a_clock_that_is_being_adjusted_is_believed(
    clock: LeapingClock, steady: SteadyTime
) -> None:
    looks_until_believed(steady, clock)
    for _ in range(100):
        clock.advance(limits.CLOCK_EVEN_MS - LOOK_MS)
        clock.leap_ms += limits.CLOCK_LEAP_MS
        assert looks_until_believed(steady, clock) == 1


@pytest.mark.parametrize(
    ("off_ms", "said"),
    [
        (10 * DAY_MS, "off_s=864000: it is after the newest entry of the log"),
        (-60_000, "off_s=-60: it is before the newest entry of the log"),
        (60_000, ""),
    ],
)
def test_a_clock_far_from_the_newest_entry_is_logged(
    clock: LeapingClock, caplog: pytest.LogCaptureFixture, off_ms: int, said: str
) -> None:
    newest_ms = clock.wall_ms()
    clock.leap_ms = off_ms
    with caplog.at_level(logging.WARNING):
        assert SteadyTime(clock, newest_ms).maybe_now_ms() is None
    assert said in caplog.text
    assert bool(caplog.text) == bool(said)


HOUR_MS = 3_600_000


def started(folder: Path, clock: LeapingClock, newest_ms: int = 0) -> SteadyTime:
    """The time of a server that starts on `folder`."""
    return SteadyTime(clock, newest_ms, note=ClockNote(folder, OsDisk()))


@pytest.mark.parametrize("down_ms", [0, 60_000, CLOCK_GAP_MS - LOOK_MS])
def test_a_clock_that_goes_on_is_believed_at_once_after_a_restart(
    tmp_path: Path,
    clock: LeapingClock,
    caplog: pytest.LogCaptureFixture,
    down_ms: int,
) -> None:
    assert looks_until_believed(started(tmp_path, clock), clock) == 1 + LOOKS
    clock.advance(down_ms)
    idle_since_ms = clock.wall_ms() - 10 * DAY_MS
    assert started(tmp_path, clock, idle_since_ms).maybe_now_ms() == clock.wall_ms()
    assert "clock in doubt" not in caplog.text


@pytest.mark.parametrize(
    "off_ms", [-3650 * DAY_MS, -5 * HOUR_MS, HOUR_MS, 5 * HOUR_MS, 30 * DAY_MS]
)
def test_a_clock_that_is_moved_while_the_server_is_down_is_not_believed_for_ten_minutes(
    tmp_path: Path, clock: LeapingClock, off_ms: int
) -> None:
    looks_until_believed(started(tmp_path, clock), clock)
    clock.leap_ms = off_ms
    assert looks_until_believed(started(tmp_path, clock), clock) == 1 + LOOKS
    clock.leap_ms = 0  # it is set right: that is a leap as well
    assert looks_until_believed(started(tmp_path, clock), clock) == 1 + LOOKS


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"wall_ms": 1, "even_ms": 600000, "checksum": ""}']
)
def test_a_damaged_note_is_no_note(tmp_path: Path, clock: LeapingClock, content: bytes) -> None:
    looks_until_believed(started(tmp_path, clock), clock)
    (tmp_path / CLOCK_NAME).write_bytes(content)
    assert looks_until_believed(started(tmp_path, clock), clock) == 1 + LOOKS
