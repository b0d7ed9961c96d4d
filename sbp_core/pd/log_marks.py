"""The logs of range servers as they reported them: their ids, and how far they were synced."""

from __future__ import annotations

from typing import Final

from sbp_core import limits
from sbp_core.errors import invalid
from sbp_core.pd.metadata.store import MetadataStore, StoreThread
from sbp_core.pd.model import LogMark
from sbp_core.server.runtime import Clock
from sbp_core.wire.status import shown

NO_POSITION: Final = -1
_LOG_ID_DIGITS: Final = 32


class LogMarks:
    """The ids and synced positions of the logs of range servers, on one event loop."""

    def __init__(self, store: StoreThread, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._latest: dict[int, LogMark] = {}
        self._kept_at: dict[int, float] = {}
        self._unkept: dict[int, LogMark] = {}

    async def promised(self, said: LogMark) -> int:
        """Return how far a server reported its log as synced, NO_POSITION if it did not.

        Raises InvalidRequestError if it has another log now.
        """
        known = await self._known(said.server_id)
        if known is None:
            return NO_POSITION
        other = maybe_other_log(known, said.log_id)
        if other is not None:
            raise invalid(other)
        return known.position

    async def note(self, said: LogMark) -> int:
        """Note what a server reports about its log; return and raise as `promised` does."""
        promised = await self.promised(said)
        known = self._latest.get(said.server_id)
        mark = said
        if known is not None:
            log_id = said.log_id or known.log_id
            mark = LogMark(said.server_id, log_id, max(said.position, known.position))
        if mark != known:
            self._latest[said.server_id] = mark
            await self._keep(mark, is_new=known is None or known.log_id != mark.log_id)
        return promised

    async def flush(self) -> None:
        """Store the marks that were not due yet."""
        unkept, self._unkept = self._unkept, {}
        for mark in unkept.values():
            await self._store.run(_keep, mark)

    async def _known(self, server_id: int) -> LogMark | None:
        if server_id not in self._latest:
            found = await self._store.run(lambda store: store.servers.maybe_log_mark(server_id))
            if found is not None:  # any peer may ask for any id: without a mark, nothing is kept
                self._latest.setdefault(server_id, found)
        return self._latest.get(server_id)

    async def _keep(self, mark: LogMark, *, is_new: bool) -> None:
        now = self._clock.monotonic()
        kept_at = self._kept_at.get(mark.server_id)
        is_due = kept_at is None or 1000 * (now - kept_at) >= limits.HIGH_WATER_KEPT_INTERVAL_MS
        if is_new or is_due:
            self._kept_at[mark.server_id] = now
            self._unkept.pop(mark.server_id, None)
            await self._store.run(_keep, mark)
        else:
            self._unkept[mark.server_id] = mark


def maybe_other_log(known: LogMark, log_id: str) -> str | None:
    """Return the fault if a server has a log of another id now; an empty id is no fault."""
    if not known.log_id or not log_id or known.log_id == log_id:
        return None
    return (
        f"range server {known.server_id} has the log {log_id}, and had {known.log_id}, which was"
        f" synced up to position {known.position}: another log is in its folder; restore the right"
        " one. Nothing was changed. Without a copy, its records are lost: move the data directory"
        " of the range server away to start as a new server, and delete and create again the"
        " streams that had ranges in it"
    )


def _keep(store: MetadataStore, mark: LogMark) -> None:
    store.servers.keep_log_mark(mark)


def maybe_log_mark(server_id: int, log_id: str | None, position: int) -> LogMark | None:
    """Return what a HEARTBEAT reports about a server's log, None if nothing.

    Raises InvalidRequestError for an invalid id of a log.
    """
    if position < 0:
        return None
    digits = log_id or ""
    is_hex = all(digit in "0123456789abcdef" for digit in digits)
    if digits and (len(digits) != _LOG_ID_DIGITS or not is_hex):
        raise invalid(
            f"log_id of a HEARTBEAT must be {_LOG_ID_DIGITS} hexadecimal digits, got"
            f" {shown(digits)}"
        )
    return LogMark(server_id, digits, position)
