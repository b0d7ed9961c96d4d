"""Operations on the servers of a cluster, and on the rights of its clients."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from sbp_core.access.rights import Grant, checked_grant
from sbp_core.client.cluster_info import ClusterInfo, PlacementDriverInfo, RangeServerInfo
from sbp_core.client.operations.calls import Context, ask
from sbp_core.client.operations.router import reachable_nodes
from sbp_core.errors import SbpError
from sbp_core.wire.headers import (
    ChangeGrantsRequest,
    ChangeGrantsResponse,
    DescribePlacementDriverClusterRequest,
    DescribePlacementDriverClusterResponse,
    DescribeServersRequest,
    DescribeServersResponse,
    DrainServersRequest,
    DrainServersResponse,
    HaltedRanges,
    ListGrantsRequest,
    ListGrantsResponse,
    PlacementDriverCluster,
    RangeServer,
)
from sbp_core.wire.headers import Grant as GrantTable
from sbp_core.wire.opcodes import Opcode
from sbp_core.wording import counted

_LOG: Final = logging.getLogger("sbp_core.client")


async def placement_drivers(
    context: Context, asker: RangeServer | None = None
) -> list[PlacementDriverInfo]:
    """Return the placement drivers of the cluster; `asker` is the range server that asks."""
    # SPEC "DESCRIBE_PD_CLUSTER"
    header = DescribePlacementDriverClusterRequest(asker, context.timeout_ms)
    answers = await ask(
        context, Opcode.DESCRIBE_PD_CLUSTER, header, DescribePlacementDriverClusterResponse
    )
    cluster = answers[-1].cluster or PlacementDriverCluster()
    context.drivers.learn(cluster)
    return [PlacementDriverInfo(*node) for node in reachable_nodes(cluster)]


async def describe_cluster(context: Context) -> ClusterInfo:
    """Return the range servers of the cluster, and the replicas that ranges lack."""
    # SPEC "DESCRIBE_SERVERS"
    header = DescribeServersRequest(context.timeout_ms)
    answers = await ask(context, Opcode.DESCRIBE_SERVERS, header, DescribeServersResponse)
    servers = [
        RangeServerInfo(
            each.server.server_id,
            each.server.advertise_addr or "",
            each.server.rack,
            each.is_live,
            None if each.disk_free_space < 0 else each.disk_free_space,
            each.led_range_cnt,
            each.copied_range_cnt,
            each.sealed_range_cnt,
            each.unreplicated_range_cnt,
            each.range_missing_replica_cnt,
            each.is_draining,
            each.is_retired,
            each.drain_obstacle,
        )
        for answer in answers
        for each in answer.servers
        if each.server is not None
    ]
    last = answers[-1]
    halted = last.halted or HaltedRanges()
    return ClusterInfo(
        servers,
        last.lacking_range_cnt,
        last.missing_replica_cnt,
        last.missing_sealed_replica_cnt,
        halted.range_cnt,
        tuple((each.stream_id, each.range_index) for each in halted.some),
        halted.cause,
    )


async def explain_missing(context: Context, replica_count: int) -> str | None:
    """Return why a new stream gets fewer replicas now, and the remedy; None if it gets all."""
    if replica_count <= 1:
        return None
    try:
        found = await describe_cluster(context)
    except SbpError as error:
        _LOG.debug("range servers not counted: %s", error)
        return None
    usable_count = sum(each.is_usable for each in found.range_servers)
    if usable_count >= replica_count:
        return None
    return (
        f"a stream wants {counted(replica_count, 'replica')}, and only"
        f" {counted(usable_count, 'range server')} can have them now: new records have fewer"
        f" replicas until there are {replica_count}; start more range servers"
    )


async def drain_servers(
    context: Context, server_ids: Sequence[int], *, is_cancelled: bool = False
) -> None:
    """Begin to drain range servers, or cancel their drains.

    A server that is drained gets no new ranges, and its ranges are copied to other servers. Returns
    before the copies are done. Raises NotFoundError for an unknown id.
    """
    # SPEC "DRAIN_SERVERS"
    header = DrainServersRequest(context.timeout_ms, tuple(server_ids), is_cancelled)
    await ask(context, Opcode.DRAIN_SERVERS, header, DrainServersResponse)


async def list_grants(context: Context, subject: str | None = None) -> list[Grant]:
    """Return the grants of a subject, or of all subjects, by subject, right and pattern."""
    # SPEC "LIST_GRANTS"
    header = ListGrantsRequest(context.timeout_ms, subject)
    answers = await ask(context, Opcode.LIST_GRANTS, header, ListGrantsResponse)
    return [
        checked_grant(each.subject or "", each.right or "", each.pattern or "")
        for answer in answers
        for each in answer.grants
    ]


async def change_grants(
    context: Context, grants: Sequence[Grant], *, is_revoked: bool = False
) -> None:
    """Grant rights, or revoke them: all or none. The call may be repeated.

    Raises InvalidRequestError for a grant that is not possible.
    """
    # SPEC "CHANGE_GRANTS"
    tables = tuple(GrantTable(each.subject, each.right, each.pattern) for each in grants)
    header = ChangeGrantsRequest(context.timeout_ms, tables, is_revoked)
    await ask(context, Opcode.CHANGE_GRANTS, header, ChangeGrantsResponse)
