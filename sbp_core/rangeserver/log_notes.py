"""Noting beside the log, now and then, how far it is synced (see log/boundaries.py)."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from sbp_core import limits
from sbp_core.errors import LogWriteError
from sbp_core.log.boundaries import HighWaterKeeper

_LOG: Final = logging.getLogger(__name__)


class LogNotes:
    """Runs from its making until `stop`. Appends never wait for it."""

    def __init__(self, high_water: HighWaterKeeper) -> None:
        self._high_water = high_water
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End after the note that is being written."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        is_failing = False
        while True:
            await asyncio.sleep(limits.HIGH_WATER_INTERVAL_MS / 1000)
            if not self._high_water.is_due:
                continue
            try:
                await asyncio.to_thread(self._high_water.note)
                is_failing = False
            except LogWriteError as error:
                if not is_failing:
                    _LOG.warning("how far the log is synced cannot be noted: %s", error)
                is_failing = True
