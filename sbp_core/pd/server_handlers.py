"""The range servers of a cluster, as an operator sees them (DESCRIBE_SERVERS, DRAIN_SERVERS)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sbp_core.errors import NotFoundError, StatusError
from sbp_core.pd.metadata.store import MetadataStore, StoreThread
from sbp_core.pd.model import HostedCounts, RangeServerRecord
from sbp_core.pd.range_servers import Membership
from sbp_core.pd.streams.fail_over import FailOver, missing_replicas
from sbp_core.pd.streams.repair import Repair
from sbp_core.pd.streams.stream_operations import check_item_count
from sbp_core.server.answers import respond_all
from sbp_core.server.dispatch import Handler, ServerCall
from sbp_core.wire.headers import (
    DescribeServersRequest,
    DescribeServersResponse,
    DrainServersRequest,
    DrainServersResponse,
    RangeServer,
    ServerDescription,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import SUCCESS, status_for

_NO_RANGES = HostedCounts()


class ServerHandlers:
    """Serves what is asked about the range servers of the cluster."""

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

    def by_opcode(self) -> Mapping[Opcode, Handler]:
        """Return the handler of each operation served here."""
        return {Opcode.DESCRIBE_SERVERS: self.describe, Opcode.DRAIN_SERVERS: self.drain}

    async def describe(self, call: ServerCall) -> None:
        """SPEC "DESCRIBE_SERVERS": all range servers that ever announced an address, by id."""
        call.decode(DescribeServersRequest)
        addresses, counts, missing = await self._store.run(_read)
        obstacles = self._repair.obstacles() | await self._fail_over.obstacles()
        servers = [
            self._description(
                RangeServerRecord(*each), counts.get(each[0], _NO_RANGES), obstacles.get(each[0])
            )
            for each in sorted(addresses.items())
        ]
        await respond_all(
            call,
            servers,
            lambda part: DescribeServersResponse(
                servers=part,
                status=SUCCESS,
                missing_replica_cnt=sum(missing.values()),
                lacking_range_cnt=len(missing),
            ),
        )

    async def drain(self, call: ServerCall) -> None:
        """SPEC "DRAIN_SERVERS": nothing is changed if one of the servers is unknown."""
        request = call.decode(DrainServersRequest)
        check_item_count(len(request.server_ids))
        try:
            self._membership.draining = await self._store.run(
                _drain, request.server_ids, is_cancelled=request.is_cancelled
            )
            await self._fail_over.drain()
        except StatusError as error:
            await call.respond(DrainServersResponse(status=status_for(error)))
        else:
            await call.respond(DrainServersResponse(status=SUCCESS))

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
) -> tuple[Mapping[int, str], Mapping[int, HostedCounts], Mapping[int, int]]:
    return store.servers.addresses(), store.hosted_counts(), missing_replicas(store)
