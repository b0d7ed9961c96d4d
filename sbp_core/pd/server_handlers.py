"""The range servers of a cluster, as an operator sees them (DESCRIBE_SERVERS, DRAIN_SERVERS).

A range is halted if it is open and nothing can be appended, as too few of its servers are left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from sbp_core import limits
from sbp_core.errors import NotFoundError, StatusError
from sbp_core.pd.metadata.store import MetadataStore, StoreThread
from sbp_core.pd.model import HostedCounts, RangeRecord, RangeServerRecord
from sbp_core.pd.server_membership import Membership
from sbp_core.pd.streams.fail_over import FailOver, missing_replicas
from sbp_core.pd.streams.repair import Repair
from sbp_core.replication import answers_needed
from sbp_core.server.answers import in_frames
from sbp_core.server.dispatch import Answer, Response, ServerCall
from sbp_core.wire.headers import (
    DescribeServersRequest,
    DescribeServersResponse,
    DrainServersRequest,
    DrainServersResponse,
    HaltedRanges,
    RangeId,
    RangeServer,
    ServerDescription,
)
from sbp_core.wire.status import SUCCESS, status_for
from sbp_core.wording import listed

_NO_RANGES = HostedCounts()
_HALTED_MAX: Final = 10
"""Ranges that an answer names in which nothing can be appended."""


class ServerHandlers:
    """Serves DESCRIBE_SERVERS and DRAIN_SERVERS."""

    def __init__(
        self, store: StoreThread, membership: Membership, fail_over: FailOver, repair: Repair
    ) -> None:
        self._store = store
        self._membership = membership
        self._fail_over = fail_over
        self._repair = repair

    async def start(self) -> None:
        """Let the servers that are being drained get no ranges."""
        self._membership.draining = await self._store.run(lambda store: store.servers.draining())

    async def describe(self, call: ServerCall) -> Answer:
        """SPEC "DESCRIBE_SERVERS": all range servers that ever announced an address, by id."""
        call.decode(DescribeServersRequest)
        live = self._membership.live_server_ids()
        addresses, counts, missing, missing_sealed = await self._store.run(_read)
        missing_sealed += sum(
            each.sealed - each.unreplicated
            for server_id, each in counts.items()
            if server_id not in live
        )
        halted = await self._halted(live, addresses)
        obstacles = self._repair.obstacles() | await self._fail_over.obstacles()
        servers = [
            self._description(
                RangeServerRecord(*each), counts.get(each[0], _NO_RANGES), obstacles.get(each[0])
            )
            for each in sorted(addresses.items())
        ]
        return in_frames(
            servers,
            lambda part: DescribeServersResponse(
                servers=part,
                status=SUCCESS,
                missing_replica_cnt=sum(missing.values()),
                lacking_range_cnt=len(missing),
                missing_sealed_replica_cnt=missing_sealed,
                halted=halted,
            ),
        )

    async def _halted(
        self, live: Sequence[int], addresses: Mapping[int, str]
    ) -> HaltedRanges | None:
        """Return the ranges in which nothing can be appended, and why; None without any.

        Return None as well until every server had the time to be heard.
        """
        if not self._membership.has_listened:
            return None
        full = [each for each in live if self._membership.load_of(each).disk_free_bytes == 0]
        halted = await self._store.run(_find_halted, live, full)
        if not halted:
            return None
        some = tuple(RangeId(each.stream_id, each.range_index) for each in halted[:_HALTED_MAX])
        return HaltedRanges(len(halted), some, _halt_cause(halted, live, full, addresses))

    async def drain(self, call: ServerCall) -> Answer:
        """SPEC "DRAIN_SERVERS": nothing is changed if one of the servers is unknown."""
        request = call.decode(DrainServersRequest)
        try:
            self._membership.draining = await self._store.run(
                _drain, request.server_ids, is_cancelled=request.is_cancelled
            )
            await self._fail_over.drain()
        except StatusError as error:
            return Response(DrainServersResponse(status=status_for(error)))
        else:
            return Response(DrainServersResponse(status=SUCCESS))

    def _description(
        self, server: RangeServerRecord, counts: HostedCounts, obstacle: str | None
    ) -> ServerDescription:
        load = self._membership.load_of(server.server_id)
        is_live = self._membership.is_live(server)
        has_ranges = counts != _NO_RANGES
        return ServerDescription(
            RangeServer(server.server_id, server.address, load.rack or None),
            is_live,
            -1 if load.disk_free_bytes is None else load.disk_free_bytes,
            counts.led,
            counts.copied,
            counts.sealed,
            counts.unreplicated,
            load.missing_replica_count,
            server.server_id in self._membership.draining,
            not is_live and not has_ranges and self._repair.is_lost(server.server_id),
            obstacle,
        )


def _drain(
    store: MetadataStore, server_ids: Sequence[int], *, is_cancelled: bool
) -> frozenset[int]:
    """Change which servers are being drained; return all of them."""
    unknown = {*server_ids} - store.servers.addresses().keys()
    if unknown:
        raise NotFoundError.of(
            f"no range server has the id {min(unknown)}: `sbp cluster` lists them"
        )
    store.servers.drain(server_ids, is_cancelled=is_cancelled)
    return store.servers.draining()


def _read(
    store: MetadataStore,
) -> tuple[Mapping[int, str], Mapping[int, HostedCounts], Mapping[int, int], int]:
    counts = store.hosted_counts()
    missing_sealed = store.missing_sealed_count()
    return store.servers.addresses(), counts, missing_replicas(store), missing_sealed


def _find_halted(
    store: MetadataStore, live: Collection[int], full: Collection[int]
) -> list[RangeRecord]:
    """Return open ranges whose primary is down or full, or too many of whose servers are.

    Return FAIL_OVER_RANGES_MAX ranges of each such server at most, by stream. A range that the
    placement driver is about to continue at other servers is among them until then.
    """
    unusable = (store.open_range_counts().keys() - {*live}) | {*full}
    found = {
        each.stream_id: each
        for server_id in unusable
        for each in store.open_ranges_on(server_id, limits.FAIL_OVER_RANGES_MAX)
        if each.server_ids[0] in unusable
        or len({*each.server_ids} - unusable) < max(1, each.ack_count)
    }
    return [found[each] for each in sorted(found)]


def _halt_cause(
    halted: Sequence[RangeRecord],
    live: Collection[int],
    full: Collection[int],
    addresses: Mapping[int, str],
) -> str | None:
    """Return why nothing can be appended in these ranges, and the remedy; None without any."""
    members = {server_id for each in halted for server_id in each.server_ids}
    down, crowded = members - {*live}, members.intersection(full)
    parts = []
    if down:
        others = ""
        if all(_may_go_on(each, down | crowded) for each in halted):
            others = ", or start other range servers"
        parts.append(f"down: {_named(down, addresses)}; start them with their data{others}")
    if crowded:
        parts.append(f"without free disk space: {_named(crowded, addresses)}; free some")
    if any(len(each.server_ids) == 1 and each.server_ids[0] in down for each in halted):
        parts.append(
            "a stream with one replica cannot go on elsewhere: if its server is lost permanently,"
            " so are its records; delete it"
        )
    return ". ".join(parts) or None


def _may_go_on(halted: RangeRecord, unusable: Collection[int]) -> bool:
    """Whether enough servers of a range are left to decide where it ends."""
    count = len(halted.server_ids)
    usable_count = len({*halted.server_ids} - {*unusable})
    return count > 1 and usable_count >= answers_needed(count, halted.ack_count)


def _named(server_ids: Iterable[int], addresses: Mapping[int, str]) -> str:
    named = [f"{each} ({addresses.get(each, 'unknown address')})" for each in sorted(server_ids)]
    return f"range servers {listed(named)}"
