"""Where a new range goes: to the live server with room on its disk and the fewest open ranges."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from statistics import fmean

from sbp_core import limits
from sbp_core.errors import NoRangeServerError, StatusCode
from sbp_core.pd.model import ServerLoad


class Placement:
    """Chooses servers for a batch of new ranges, counting those that it placed."""

    def __init__(self, servers: Iterable[ServerLoad], open_range_counts: Mapping[int, int]) -> None:
        live = list(servers)
        rates = [each.maybe_append_rate for each in live if each.maybe_append_rate is not None]
        neutral_rate = fmean(rates) if rates else 0.0
        self._has_servers = bool(live)
        self._servers = [
            (
                _is_nearly_full(each),
                open_range_counts.get(each.server_id, 0),
                neutral_rate if each.maybe_append_rate is None else each.maybe_append_rate,
                each.server_id,
            )
            for each in live
            if each.maybe_disk_free_bytes is None or each.maybe_disk_free_bytes > 0
        ]
        heapq.heapify(self._servers)

    def next_server(self) -> int:
        """Return the id of the best server: one with room on its disk before one without.

        Then the one with the fewest open ranges, then with the lowest append rate, then with the
        smallest id. A server that never reported counts as one with room and the mean rate.
        Raises NoRangeServerError when no server is alive, or none has any room at all.
        """
        if not self._servers:
            raise NoRangeServerError(
                StatusCode.PD_NO_AVAILABLE_RS,
                "the disks of all range servers are full: make room, or start another one"
                if self._has_servers
                else "no range server is alive: start one, or wait for its first heartbeat",
            )
        is_nearly_full, count, rate, server_id = self._servers[0]
        heapq.heapreplace(self._servers, (is_nearly_full, count + 1, rate, server_id))
        return server_id


def _is_nearly_full(server: ServerLoad) -> bool:
    free_bytes = server.maybe_disk_free_bytes
    return free_bytes is not None and free_bytes < limits.PLACEMENT_DISK_FREE_BYTES
