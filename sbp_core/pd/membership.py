"""Which range servers are alive, and how busy (SPEC "HEARTBEAT", "REPORT_METRICS")."""

from __future__ import annotations

import logging
from typing import Final

from sbp_core.pd.model import RangeServerRecord, ServerLoad
from sbp_core.server.clock import Clock

_LOG: Final = logging.getLogger(__name__)


class Membership:
    """The range servers that were heard within the last `timeout_ms`.

    An address belongs to the server that announced it last, so that a server which lost its data
    and came back under a new id takes the place of its former self at once.
    """

    def __init__(self, clock: Clock, timeout_ms: int) -> None:
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._heard: dict[RangeServerRecord, float] = {}
        self._loads: dict[int, ServerLoad] = {}

    def refresh(self, server: RangeServerRecord) -> None:
        """Take note of a heartbeat."""
        if server not in self._heard:
            for other in self._conflicting(server):
                _LOG.warning("%s takes the place of %s", server, other)
                del self._heard[other]
        self._heard[server] = self._clock.monotonic()

    def report(self, load: ServerLoad) -> None:
        """Keep what a server reported last (SPEC "REPORT_METRICS")."""
        self._loads[load.server_id] = load

    def is_live(self, server: RangeServerRecord) -> bool:
        """Whether the server was heard lately, at this address."""
        return server in self._heard and not self._is_silent(server)

    def live_server_ids(self) -> tuple[int, ...]:
        """Return the ids of the live servers, ascending."""
        for silent in [server for server in self._heard if self._is_silent(server)]:
            _LOG.warning("%s is silent and gets no new ranges", silent)
            del self._heard[silent]
        return tuple(sorted(server.server_id for server in self._heard))

    def live_servers(self) -> tuple[ServerLoad, ...]:
        """Return the live servers with the load that each reported last, by id."""
        live = self.live_server_ids()
        self._loads = {each: load for each, load in self._loads.items() if each in live}
        return tuple(self._loads.get(each) or ServerLoad(each) for each in live)

    def _conflicting(self, server: RangeServerRecord) -> list[RangeServerRecord]:
        return [
            other
            for other in self._heard
            if other.server_id == server.server_id or other.address == server.address
        ]

    def _is_silent(self, server: RangeServerRecord) -> bool:
        silence_seconds = self._clock.monotonic() - self._heard[server]
        return round(1000 * silence_seconds) >= self._timeout_ms
