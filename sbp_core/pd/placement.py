"""Where a new range goes: to the live server with the fewest open ranges."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from sbp_core.errors import NoRangeServerError, StatusCode


class Placement:
    """Chooses servers for a batch of new ranges, counting those that it placed."""

    def __init__(
        self, live_server_ids: Iterable[int], open_range_counts: Mapping[int, int]
    ) -> None:
        self._servers = [(open_range_counts.get(each, 0), each) for each in live_server_ids]
        heapq.heapify(self._servers)

    def next_server(self) -> int:
        """Return the id of the server with the fewest open ranges, the smallest id among equals.

        Raises NoRangeServerError when no server is alive.
        """
        if not self._servers:
            raise NoRangeServerError(
                StatusCode.PD_NO_AVAILABLE_RS,
                "no range server is alive: start one, or wait for its first heartbeat",
            )
        count, server_id = self._servers[0]
        heapq.heapreplace(self._servers, (count + 1, server_id))
        return server_id
