"""Servers that break a promise on purpose, to see that the simulation notices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from altered_serve import forgotten_seals, no_dedupe


def early_acknowledgement() -> None:
    """Appends are acknowledged before they are synced."""
    from sbp_core.log.durable_log import Log

    append = Log.append

    def append_only(log: Log, entries: Any, **options: Any) -> Any:
        return append(log, entries, **{**options, "is_durable": False})

    Log.append = append_only


MUTANTS: dict[str, Callable[[], None]] = {
    "acknowledge-before-sync": early_acknowledgement,
    "no-repeat-check": no_dedupe,
    "forgotten-seals": forgotten_seals,
}
"""By name. Each changes classes of this process for good: run one per process."""
