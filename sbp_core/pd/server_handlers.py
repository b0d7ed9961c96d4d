"""The range servers of a cluster, as an operator sees them (DESCRIBE_SERVERS)."""

from __future__ import annotations

from collections.abc import Mapping

from sbp_core.pd.metadata.store import MetadataStore, StoreThread
from sbp_core.pd.model import HostedCounts, RangeServerRecord
from sbp_core.pd.range_servers import Membership
from sbp_core.pd.streams.fail_over import missing_replicas
from sbp_core.server.answers import respond_all
from sbp_core.server.dispatch import Handler, ServerCall
from sbp_core.wire.headers import (
    DescribeServersRequest,
    DescribeServersResponse,
    RangeServer,
    ServerDescription,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import SUCCESS

_NO_RANGES = HostedCounts()


class ServerHandlers:
    """Serves what is asked about the range servers of the cluster."""

    def __init__(self, store: StoreThread, membership: Membership) -> None:
        self._store = store
        self._membership = membership

    def by_opcode(self) -> Mapping[Opcode, Handler]:
        """Return the handler of each operation served here."""
        return {Opcode.DESCRIBE_SERVERS: self.describe}

    async def describe(self, call: ServerCall) -> None:
        """SPEC "DESCRIBE_SERVERS": all range servers that ever announced an address, by id."""
        call.decode(DescribeServersRequest)
        addresses, counts, missing_count = await self._store.run(_read)
        servers = [
            self._description(RangeServerRecord(*each), counts.get(each[0], _NO_RANGES))
            for each in sorted(addresses.items())
        ]
        await respond_all(
            call,
            servers,
            lambda part: DescribeServersResponse(
                servers=part, status=SUCCESS, missing_replica_cnt=missing_count
            ),
        )

    def _description(self, server: RangeServerRecord, counts: HostedCounts) -> ServerDescription:
        load = self._membership.load_of(server.server_id)
        return ServerDescription(
            RangeServer(server.server_id, server.address, load.rack or None),
            self._membership.is_live(server),
            -1 if load.disk_free_bytes is None else load.disk_free_bytes,
            counts.led,
            counts.copied,
            counts.sealed,
            counts.unreplicated,
            load.missing_replica_count,
        )


def _read(store: MetadataStore) -> tuple[Mapping[int, str], Mapping[int, HostedCounts], int]:
    missing_count = sum(missing_replicas(store).values())
    return store.servers.addresses(), store.hosted_counts(), missing_count
