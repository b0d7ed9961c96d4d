"""What a client's log tells while an operation is tried again and again: why that takes so long."""

from __future__ import annotations

import logging
from typing import Final

from sbp_core import limits
from sbp_core.errors import SbpError

_LOG: Final = logging.getLogger("sbp_core.client")


class PatienceLog:
    """Tells of operations that get nowhere, one line in RETRY_TOLD_MS for all of a client's.

    Times are in ms, of any clock that runs evenly.
    """

    def __init__(self) -> None:
        self._maybe_told_at_ms: float | None = None

    def on_wait(
        self, what: str, error: SbpError, *, since_ms: float, now_ms: float, budget_ms: float
    ) -> None:
        """`what` has failed with `error`, and without progress `since_ms`, and is tried again."""
        told_at_ms = since_ms if self._maybe_told_at_ms is None else self._maybe_told_at_ms
        if now_ms - max(since_ms, told_at_ms) < limits.RETRY_TOLD_MS:
            return
        self._maybe_told_at_ms = now_ms
        elapsed_ms = now_ms - since_ms
        _LOG.warning(
            "%s has failed for %.0f s and is tried for %.0f s more: %s",
            what,
            elapsed_ms / 1000,
            (budget_ms - elapsed_ms) / 1000,
            error,
        )
