"""Public values: the servers of a cluster, as its placement driver knows them."""

from __future__ import annotations

from dataclasses import dataclass

from sbp_core.wording import counted


@dataclass(frozen=True, slots=True)
class PlacementDriverInfo:
    """A placement driver of the cluster, at `endpoint` ("host:port")."""

    endpoint: str
    is_leader: bool


@dataclass(frozen=True, slots=True)
class RangeServerInfo:
    """A range server of the cluster, at `endpoint` ("host:port"), as the leader knows it.

    The server is the primary of `led_ranges` open ranges, and a secondary of `copied_ranges`.
    `unreplicated_ranges` counts the `sealed_ranges` that no other server has. `missing_replicas`
    counts the led ranges with a replica that lacks entries, and the ranges with damage on this
    server. `disk_free_bytes` is None if the server reported no load. A server that `is_draining`
    gets no ranges; `drain_obstacle` is the reason if some ranges stay. A server that `is_retired`
    was drained or replaced, and is silent.
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

    @property
    def state(self) -> str:
        """The state in words: live, silent or retired, and whether the server is draining."""
        if self.is_retired:
            return "retired"
        return ("live" if self.is_live else "silent") + (" draining" if self.is_draining else "")

    @property
    def is_usable(self) -> bool:
        """Whether the server can get ranges now."""
        return self.is_live and not self.is_draining and self.disk_free_bytes != 0

    @property
    def open_ranges(self) -> int:
        """The open ranges on the server; a drain moves all of them."""
        return self.led_ranges + self.copied_ranges

    @property
    def copied_by_drain(self) -> int:
        """The sealed ranges that a drain copies to other servers; unreplicated ranges stay."""
        return self.sealed_ranges - self.unreplicated_ranges

    @property
    def is_cleared(self) -> bool:
        """Whether a drain has no ranges left to move or to copy."""
        return not self.open_ranges and not self.copied_by_drain

    @property
    def drain_remark(self) -> str:
        """The progress of the drain, and the next step, in a sentence."""
        name = f"range server {self.server_id}"
        if not self.is_cleared:
            return (
                f"{name} still has {counted(self.open_ranges, 'open range')}, and"
                f" {counted(self.copied_by_drain, 'sealed one')} to be copied"
            )
        if not self.unreplicated_ranges:
            return f"{name} is drained: it has no ranges, and can be stopped"
        left = f"{name} has {self.unreplicated_ranges} sealed ranges left, with one replica"
        if not self.is_live:
            return (
                f"{left}, and it is down: start it with its data directory to read them; if that is"
                " lost permanently, so are their records"
            )
        return (
            f"{left}: they are not copied. Stop it when their records are trimmed, or no longer"
            " needed"
        )


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The range servers of a cluster, and the replicas that its ranges lack.

    `lacking_ranges` open ranges lack `missing_replicas` replicas together. Sealed ranges lack
    `missing_sealed_replicas`. `halt_cause` is why nothing can be appended to `halted_count` open
    ranges; `halted` has some of these, as (stream id, range index).
    """

    range_servers: list[RangeServerInfo]
    lacking_ranges: int
    missing_replicas: int
    missing_sealed_replicas: int = 0
    halted_count: int = 0
    halted: tuple[tuple[int, int], ...] = ()
    halt_cause: str | None = None

    @property
    def remarks(self) -> tuple[str, ...]:
        """The obstacles and missing replicas, each in a sentence with its remedy."""
        found = [
            f"the drain of range server {each.server_id} waits: {each.drain_obstacle}"
            for each in self.range_servers
            if each.drain_obstacle
        ]
        if self.halted_count:
            some = ", ".join(f"stream {each[0]} range {each[1]}" for each in self.halted)
            more = ", ..." if self.halted_count > len(self.halted) else ""
            found.append(
                f"appends stand still in {self.halted_count} open ranges ({some}{more}):"
                f" {self.halt_cause}"
            )
        if self.missing_sealed_replicas:
            found.append(
                f"sealed ranges lack {self.missing_sealed_replicas} replicas: they are copied when"
                " enough range servers are live, and the lost ones were silent for long enough"
            )
        if self.lacking_ranges:
            found.append(
                f"{counted(self.missing_replicas, 'replica')} missing, in"
                f" {counted(self.lacking_ranges, 'open range')}: made when enough range servers are"
                " live"
            )
        return tuple(found)
