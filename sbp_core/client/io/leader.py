"""Which placement driver to ask next: the leader, as far as it is known."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sbp_core import limits
from sbp_core.client.endpoint import parse_endpoint
from sbp_core.errors import (
    ConfigurationError,
    DeadlineExceededError,
    NotLeaderError,
    SbpError,
    TransportError,
)
from sbp_core.wire.headers import PlacementDriverCluster
from sbp_core.wire.status import maybe_cluster


@dataclass(frozen=True, slots=True)
class Turn:
    """The known placement drivers, in the order in which they are asked.

    `given` is the one that the client was given: it is never forgotten. Of the others those stay
    that a placement driver named last.
    """

    given: str
    endpoints: tuple[str, ...]

    def after(self, asked: str, error: SbpError) -> Turn:
        """Return the order once `asked` failed with `error`, or answered so.

        Nothing changes when `asked` is not the first any more: somebody else was faster.
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
        """Return the order with the nodes of `cluster` behind the one that is asked now."""
        named = [endpoint for endpoint, _ in reachable_nodes(cluster)]
        in_turn = dict.fromkeys((self.endpoints[0], self.given, *named))
        return replace(self, endpoints=tuple(in_turn))

    def _told(self, cluster: PlacementDriverCluster) -> Turn:
        """The first does not lead; it may know who does."""
        known = self.knowing(cluster).endpoints
        nodes = reachable_nodes(cluster)
        leaders = [each for each, is_leader in nodes if is_leader and each != known[0]]
        in_turn = (leaders[0], self.given, *known) if leaders else (*known[1:], known[0])
        return replace(self, endpoints=tuple(dict.fromkeys(in_turn)))

    def _behind(self) -> Turn:
        """The first has to wait until the others had their turn."""
        first, *others = self.endpoints
        return replace(self, endpoints=(*others, first))


class PlacementDrivers:
    """The placement drivers of one client. The order is replaced whole, so threads may share it."""

    def __init__(self, given: str) -> None:
        self._turn = Turn(given, (given,))

    @property
    def endpoint(self) -> str:
        """Where to ask next."""
        return self._turn.endpoints[0]

    @property
    def known(self) -> tuple[str, ...]:
        """All that are known, the one to ask next first."""
        return self._turn.endpoints

    def on_error(self, asked: str, error: SbpError) -> None:
        """Take note that `asked` answered with `error`, or could not be reached."""
        self._turn = self._turn.after(asked, error)

    def learn(self, cluster: PlacementDriverCluster) -> None:
        """Remember who else may be asked when the leader is gone."""
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
