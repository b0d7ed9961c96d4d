"""The servers of the cluster as their page shows them, and what a drain means."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sbp_core.client import ClusterInfo, PlacementDriverInfo, RangeServerInfo
from sbp_core.web.console.words import counted


@dataclass(frozen=True, slots=True)
class DriverRow:
    """A placement driver; the leader is the one that answers requests."""

    endpoint: str
    is_leader: bool
    is_live: bool


@dataclass(frozen=True, slots=True)
class ServerRow:
    """A range server, and how far its drain is: "" without one."""

    info: RangeServerInfo
    state: str
    drain: str

    @property
    def is_good(self) -> bool:
        """Whether nobody has to do anything about it."""
        return self.info.is_live and not self.info.missing_replicas


def driver_rows(
    drivers: Sequence[PlacementDriverInfo], down: Collection[str]
) -> tuple[DriverRow, ...]:
    """Return the placement drivers, the leader first; `down` are those that do not answer."""
    found = (
        DriverRow(each.endpoint, each.is_leader, each.endpoint not in down) for each in drivers
    )
    return tuple(sorted(found, key=lambda each: (not each.is_leader, each.endpoint)))


def server_rows(found: ClusterInfo, *, shows_retired: bool) -> tuple[ServerRow, ...]:
    """Return the range servers; those that were replaced or drained and stopped on demand."""
    kept = (each for each in found.range_servers if shows_retired or not each.is_retired)
    return tuple(
        ServerRow(each, each.state, each.drain_remark if each.is_draining else "") for each in kept
    )


def drain_consequences(server: RangeServerInfo, other_count: int) -> list[str]:
    """Return what a drain will do, a sentence each; ranges can go to `other_count` servers."""
    moved = counted(server.open_ranges, "open range")
    copied = counted(server.copied_by_drain, "sealed range")
    said = [
        "It gets no new ranges.",
        f"{moved} there: sealed, and continued on other servers. Appends wait for less than 1 s.",
        f"{copied} with other replicas: copied to other servers.",
    ]
    if server.unreplicated_ranges:
        single = counted(server.unreplicated_ranges, "sealed range")
        said.append(
            f"{single} with one replica: not copied. Keep the server until they are trimmed."
        )
    if not other_count:
        said.append(
            "No other server can be given ranges now: until there is one, the drain waits, and no"
            " stream can be created. Start another range server first."
        )
    return [*said, "The drain goes on by itself until it is done or cancelled."]
