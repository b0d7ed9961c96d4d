"""Public values: the servers of a cluster, as its placement driver knows them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlacementDriverInfo:
    """A placement driver of the cluster, at `endpoint` ("host:port")."""

    endpoint: str
    is_leader: bool


@dataclass(frozen=True, slots=True)
class RangeServerInfo:
    """A range server of the cluster, at `endpoint` ("host:port"), as it is known to the leader.

    `led_ranges` and `copied_ranges` are the open ranges of which it is the primary and a secondary.
    `unreplicated_ranges` counts the `sealed_ranges` that are on no other server.
    `missing_replicas` counts the ranges led there of which a replica lacks entries, and those with
    damage there.
    `disk_free_bytes` is None if it reported no load. One that `is_draining` gets no ranges;
    `drain_obstacle` is why some stay. One that `is_retired` was drained or replaced, and is silent.
    """

    server_id: int
    endpoint: str
    rack: str | None
    is_live: bool
    disk_free_bytes: int | None
    led_ranges: int
    copied_ranges: int
    sealed_ranges: int
    unreplicated_ranges: int
    missing_replicas: int
    is_draining: bool = False
    is_retired: bool = False
    drain_obstacle: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The range servers, the open ranges that lack replicas, and how many of these they lack.

    The sealed ranges lack `missing_sealed_replicas`. Nothing can be appended in `halted_count` open
    ranges, for `halt_cause`; `halted` has some of them, as (stream id, range index).
    """

    range_servers: list[RangeServerInfo]
    lacking_ranges: int
    missing_replicas: int
    missing_sealed_replicas: int = 0
    halted_count: int = 0
    halted: tuple[tuple[int, int], ...] = ()
    halt_cause: str | None = None
