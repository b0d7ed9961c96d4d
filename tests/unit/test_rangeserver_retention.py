"""Which records of a stream may go."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_core.log.entry import Location
from sbp_core.log.segment_rows import Slot
from sbp_core.rangeserver.housekeeping.retention import Held, Retention, expired_below

VIEW: Any = None
NOW_MS = 1000


def batches(*times_ms: int) -> list[Slot]:
    """Batches of 10 records and 100 bytes from offset 0 on, written at these times."""
    return [
        Slot(10 * at, 10, Location(100 * at, 100), VIEW, time_ms)
        for at, time_ms in enumerate(times_ms)
    ]


@pytest.mark.parametrize(
    ("retention", "times_ms", "expected"),
    [
        (Retention(), (1, 2, 3), 0),
        (Retention(period_ms=100), (), 0),
        (Retention(period_ms=100), (800, 899, 900, 901), 20),
        (Retention(period_ms=100), (1, 2, 3), 30),
        (Retention(period_ms=100), (1, 950, 2), 10),
        (Retention(size_bytes=250), (1, 2, 3, 4), 20),
        (Retention(size_bytes=400), (1, 2, 3, 4), 0),
        (Retention(size_bytes=1), (1, 2, 3, 4), 30),
        (Retention(period_ms=100, size_bytes=1), (1, 2, 3, 4), 40),
        (Retention(period_ms=100, size_bytes=300), (950, 1, 2, 950), 30),
    ],
)
def test_the_oldest_go_first(
    retention: Retention, times_ms: tuple[int, ...], expected: int
) -> None:
    slots = batches(*times_ms)
    held = Held(0, 10 * len(slots), 100 * len(slots))
    assert expired_below(held, slots, retention, NOW_MS) == expected


def test_unpublished_records_are_retained() -> None:
    assert expired_below(Held(3, 15, 200), batches(1, 2), Retention(1), NOW_MS) == 15


def test_a_start_within_a_batch_that_stays_is_kept() -> None:
    assert expired_below(Held(3, 10, 100), batches(NOW_MS), Retention(1), NOW_MS) == 3


@given(st.lists(st.integers(0, 1100), max_size=8), st.integers(0, 1100), st.integers(0, 1000))
def test_no_more_goes_than_has_to(times_ms: list[int], period_ms: int, size_bytes: int) -> None:
    slots = batches(*times_ms)
    held = Held(0, 10 * len(slots), 100 * len(slots))
    gone = expired_below(held, slots, Retention(period_ms, size_bytes), NOW_MS) // 10
    left = slots[gone:]
    assert not (left and period_ms and left[0].time_ms + period_ms < NOW_MS)
    assert not size_bytes or len(left) <= 1 or 100 * len(left) <= size_bytes
    if gone:
        last = slots[gone - 1]
        is_old = period_ms and last.time_ms + period_ms < NOW_MS
        assert is_old or (size_bytes and 100 * (len(left) + 1) > size_bytes and left)
