"""The placement cache: which placement driver leads, and which server has the range of an offset.

Pure: operations fill the cache with the answers of servers. Read `Router` first.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

from sbp_core import limits
from sbp_core.client.connecting import parse_endpoint, parse_endpoints
from sbp_core.client.types import EARLIEST, LATEST, RangeInfo, StoreCommit
from sbp_core.errors import (
    ConfigurationError,
    ConnectError,
    DeadlineExceededError,
    NotLeaderError,
    SbpError,
    TransportError,
)
from sbp_core.wire.headers import PlacementDriverCluster
from sbp_core.wire.status import maybe_cluster

_LOG: Final = logging.getLogger("sbp_core.client")


@dataclass(frozen=True, slots=True)
class Turn:
    """The known placement drivers, in the order in which they are asked.

    The client was given the endpoints in `given`, and never forgets them. Other endpoints stay only
    while the last answer of a placement driver names them.
    """

    given: tuple[str, ...]
    endpoints: tuple[str, ...]

    def after(self, asked: str, error: SbpError) -> Turn:
        """Return the order after `asked` failed with `error`, or answered with it.

        Nothing changes if `asked` is no longer the first, because another call was faster.
        """
        if asked != self.endpoints[0]:
            return self
        if isinstance(error, NotLeaderError):
            cluster = maybe_cluster(error.detail)
            return self._behind() if cluster is None else self._told(cluster)
        if isinstance(error, TransportError | DeadlineExceededError):
            return self._behind()
        return self

    def knowing(self, cluster: PlacementDriverCluster) -> Turn:
        """Return the order with the nodes of `cluster` behind the first endpoint."""
        named = [endpoint for endpoint, _ in reachable_nodes(cluster)]
        in_turn = dict.fromkeys((self.endpoints[0], *self.given, *named))
        return replace(self, endpoints=tuple(in_turn))

    def _told(self, cluster: PlacementDriverCluster) -> Turn:
        """Return the order if the first endpoint does not lead; `cluster` may name the leader."""
        known = self.knowing(cluster).endpoints
        nodes = reachable_nodes(cluster)
        leaders = [each for each, is_leader in nodes if is_leader and each != known[0]]
        in_turn = (leaders[0], *self.given, *known) if leaders else (*known[1:], known[0])
        return replace(self, endpoints=tuple(dict.fromkeys(in_turn)))

    def _behind(self) -> Turn:
        """Return the order with the first endpoint at the end."""
        first, *others = self.endpoints
        return replace(self, endpoints=(*others, first))


class PlacementDrivers:
    """The placement drivers of one client. The order is replaced whole, so threads may share it.

    `given` is "host:port", or several of these separated by commas. Raises ConfigurationError.
    """

    def __init__(self, given: str) -> None:
        endpoints = parse_endpoints(given)
        self._turn = Turn(endpoints, endpoints)
        self.have_answered = False
        """Whether a placement driver has answered a request of the client."""

    @property
    def endpoint(self) -> str:
        """The endpoint to ask next."""
        return self._turn.endpoints[0]

    @property
    def known(self) -> tuple[str, ...]:
        """All known endpoints, in the order in which they are asked."""
        return self._turn.endpoints

    def is_passed_over(
        self, error: SbpError, tried: Collection[str], *, is_repeatable: bool = False
    ) -> bool:
        """Whether to ask the next placement driver at once, because `error` means that one is down.

        This is no retry: nothing was sent, or a repeatable request was sent to a silent server.
        `tried` are the endpoints that were asked already. A client that was given one placement
        driver waits for it as the retry policy says.
        """
        is_silent = is_repeatable and isinstance(error, DeadlineExceededError)
        is_down = is_silent or isinstance(error, ConnectError)
        return is_down and len(self._turn.given) > 1 and self.endpoint not in tried

    def on_error(self, asked: str, error: SbpError) -> None:
        """Record that `asked` answered with `error`, or could not be reached."""
        self._turn = self._turn.after(asked, error)

    def learn(self, cluster: PlacementDriverCluster) -> None:
        """Remember the placement drivers to ask when the leader is unavailable."""
        self._turn = self._turn.knowing(cluster)


def reachable_nodes(cluster: PlacementDriverCluster) -> list[tuple[str, bool]]:
    """Return endpoint and leadership of the nodes that have an address, a bounded number."""
    return [
        (node.advertise_addr, node.is_leader)
        for node in cluster.nodes[: limits.PLACEMENT_DRIVERS_MAX]
        if node.advertise_addr is not None and _is_endpoint(node.advertise_addr)
    ]


def _is_endpoint(text: str) -> bool:
    try:
        parse_endpoint(text)
    except ConfigurationError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Placement:
    ranges: tuple[RangeInfo, ...]
    revision: int


class Router:
    """The known ranges of streams, and the revision of the metadata that they are of.

    Entries are immutable and replaced whole, so threads may share a router. `last_commit` is the
    last commit of its metadata that the placement driver reported.
    """

    def __init__(self) -> None:
        self.last_commit: StoreCommit | None = None
        self._placements: dict[int, _Placement] = {}
        self._open: dict[int, RangeInfo] = {}
        """The open ranges with replicas that were known last."""

    def learn(self, stream_id: int, ranges: Iterable[RangeInfo], revision: int = -1) -> None:
        """Replace the known ranges of a stream. `revision` -1: the server counts no revisions."""
        ordered = tuple(sorted(ranges, key=lambda piece: piece.range_index))
        self._placements[stream_id] = _Placement(ordered, revision)
        if ordered and ordered[-1].is_open_and_replicated:
            self._note_primary(ordered[-1])

    def _note_primary(self, piece: RangeInfo) -> None:
        """Log that a stream goes on at another server: after a fail-over or a drain."""
        before = self._open.get(piece.stream_id, piece)
        self._open[piece.stream_id] = piece
        if piece.range_index > before.range_index and piece.servers[0] != before.servers[0]:
            _LOG.warning(
                "fail-over followed: stream=%d old_range=%d old_server=%s range=%d server=%s",
                *(piece.stream_id, before.range_index, before.servers[0]),
                *(piece.range_index, piece.servers[0]),
            )

    def forget(self, stream_id: int) -> None:
        """Forget the ranges of a stream, so that it is looked up before its next use."""
        self._placements.pop(stream_id, None)

    def maybe_ranges(self, stream_id: int) -> tuple[RangeInfo, ...] | None:
        """Return the ranges of a stream in order, None when they must be looked up."""
        placement = self._placements.get(stream_id)
        return None if placement is None else placement.ranges

    def unknown(self, stream_ids: Iterable[int]) -> list[int]:
        """Return which of the streams must be looked up, each once."""
        return [each for each in dict.fromkeys(stream_ids) if each not in self._placements]

    def known(self, stream_ids: Iterable[int]) -> list[int]:
        """Return which of the streams need not be looked up."""
        return [each for each in stream_ids if each in self._placements]

    def confirm(self, stream_ids: Iterable[int], since: int, revision: int) -> None:
        """Record that streams known as of revision `since` have not changed up to `revision`."""
        for stream_id in stream_ids:
            placement = self._placements.get(stream_id)
            if placement is not None and placement.revision == since:
                self._placements[stream_id] = replace(placement, revision=revision)

    def maybe_revision(self, stream_ids: Iterable[int]) -> int | None:
        """Return the revision as of which all streams are known, None if there is no single one."""
        placements = [self._placements.get(each) for each in stream_ids]
        revisions = {-1 if entry is None else entry.revision for entry in placements}
        return revisions.pop() if len(revisions) == 1 and -1 not in revisions else None

    def maybe_open_range(self, stream_id: int) -> RangeInfo | None:
        """Return the range that takes appends: the last one, unless it is sealed."""
        ranges = self.maybe_ranges(stream_id)
        return ranges[-1] if ranges and ranges[-1].end_offset is None else None

    def maybe_range_at(self, stream_id: int, offset: int) -> RangeInfo | None:
        """Return the range to fetch `offset` from, None when no known range holds it.

        The end of a last range that is sealed belongs to that range.
        """
        ranges = self.maybe_ranges(stream_id)
        if not ranges:
            return None
        if offset == EARLIEST:
            return ranges[0]
        if offset == LATEST:
            return ranges[-1]
        for piece in reversed(ranges):
            if piece.start_offset <= offset:
                is_inside = piece.end_offset is None or offset < piece.end_offset
                is_tail = piece is ranges[-1] and offset == piece.end_offset
                return piece if is_inside or is_tail else None
        return None
