"""Limits of a range server that no setting changes. Tests pass smaller ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sbp_core import limits

_REMOVAL_INTERVAL_MS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of one range server; the defaults are those of production.

    Housekeeping runs every `short_check_interval_ms` while the disk is short of space, and
    `removal_interval_ms` after a trim or deletion. The wall clock is believed after it has gone
    evenly for `clock_even_ms`. The placement driver is asked about stagings of numbered batches
    after `staged_ask_ms`. New transactions are refused while `stagings_max` are open.

    At most `reads_at_work_max` reads run on threads. A read within the last `tail_window_bytes` of
    the log is a tail read. A FETCH yields to the loop after `fetch_items_per_turn` items. At most
    `recent_bodies_bytes_max` bytes of the last bodies stay in memory.
    """

    short_check_interval_ms: int = limits.DISK_SHORT_CHECK_INTERVAL_MS
    removal_interval_ms: int = _REMOVAL_INTERVAL_MS
    clock_even_ms: int = limits.CLOCK_EVEN_MS
    staged_ask_ms: int = limits.STAGED_ASK_MS
    stagings_max: int = limits.STAGINGS_MAX
    reads_at_work_max: int = limits.READS_AT_WORK_MAX
    tail_window_bytes: int = limits.TAIL_WINDOW_BYTES
    fetch_items_per_turn: int = limits.FETCH_ITEMS_PER_TURN
    recent_bodies_bytes_max: int = limits.RECENT_BODIES_BYTES_MAX


DEFAULT_BOUNDS: Final = Bounds()
