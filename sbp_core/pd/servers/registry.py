"""Which range servers are alive, and how busy (SPEC "HEARTBEAT", "REPORT_METRICS")."""

from __future__ import annotations

import logging
from typing import Final

from sbp_core.pd.model import RangeServerRecord, ServerLoad
from sbp_core.server.runtime import Clock

_LOG: Final = logging.getLogger(__name__)


class Membership:
    """The range servers that were heard within the last `timeout_ms`.

    An id and an address belong to one process at a time. Which one may take the place of others is
    for the caller to find out (joining.py), which asks for those that are `conflicting`.
    """

    def __init__(self, clock: Clock, timeout_ms: int) -> None:
        self._clock = clock
        self.timeout_ms: Final = timeout_ms
        self._heard: dict[RangeServerRecord, float] = {}
        self._loads: dict[int, ServerLoad] = {}

    def refresh(self, server: RangeServerRecord) -> None:
        """Take note of a heartbeat; the server takes the place of those in conflict with it."""
        if server not in self._heard:
            for other in self._heard_instead(server):
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

    def conflicting(self, server: RangeServerRecord) -> list[RangeServerRecord]:
        """Return the live servers that have the id or the address of `server`, but not both."""
        return [each for each in self._heard_instead(server) if not self._is_silent(each)]

    def _heard_instead(self, server: RangeServerRecord) -> list[RangeServerRecord]:
        return [
            other
            for other in self._heard
            if (other.server_id == server.server_id) is not (other.address == server.address)
        ]

    def _is_silent(self, server: RangeServerRecord) -> bool:
        silence_seconds = self._clock.monotonic() - self._heard[server]
        return round(1000 * silence_seconds) >= self.timeout_ms
