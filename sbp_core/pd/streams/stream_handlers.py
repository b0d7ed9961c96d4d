"""The requests that a placement driver serves, by opcode: headers in, response frames out.

The handlers of cursors, schemas and transactions are in files of their own; what they all do with
the store is in the `*_operations.py` beside them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from sbp_core import limits
from sbp_core.client.connecting import Connecting
from sbp_core.errors import (
    AlreadyExistsError,
    ConfigurationError,
    InvalidRequestError,
    PermissionDeniedError,
    StatusError,
    invalid,
)
from sbp_core.pd.backups.cut_handlers import CutTaker
from sbp_core.pd.backups.restore_handlers import Restorer
from sbp_core.pd.driver_metrics import Observation
from sbp_core.pd.grant_handlers import GrantHandlers, StoredRights
from sbp_core.pd.groups.group_handlers import GroupHandlers
from sbp_core.pd.log_marks import NO_POSITION, LogMarks, maybe_log_mark
from sbp_core.pd.metadata.history import NO_COMMIT, CommitId, is_life_id
from sbp_core.pd.metadata.store import MetadataStore, StoreThread
from sbp_core.pd.model import ServerLoad
from sbp_core.pd.server_handlers import ServerHandlers
from sbp_core.pd.server_membership import Joining, Membership, log_missing_servers
from sbp_core.pd.streams import change_operations as changes
from sbp_core.pd.streams import stream_operations as operations
from sbp_core.pd.streams.change_operations import Trimmer
from sbp_core.pd.streams.cursor_handlers import CursorHandlers
from sbp_core.pd.streams.fail_over import FailOver
from sbp_core.pd.streams.repair import Repair
from sbp_core.pd.streams.schema_handlers import SchemaHandlers
from sbp_core.pd.streams.seal_handlers import RangeHandlers
from sbp_core.pd.streams.sealing import RangeAnnouncer, Sealer
from sbp_core.pd.txns.ending import RangeServers
from sbp_core.pd.txns.publishing import Publisher
from sbp_core.pd.txns.txn_handlers import TxnHandlers
from sbp_core.peers.driver_calls import Peers
from sbp_core.peers.links import Links, Secrets
from sbp_core.server.answers import in_parts, with_results
from sbp_core.server.dispatch import Answer, Handler, Response, ServerCall
from sbp_core.server.guard import Guard
from sbp_core.server.runtime import Clock, cancel_all
from sbp_core.server.trust import (
    SECRETS_FEATURE,
    Standing,
    check_cluster,
    heartbeat_answer,
    new_secret,
)
from sbp_core.tls import Tls
from sbp_core.wire.headers import (
    ClientRole,
    CreateStreamsRequest,
    CreateStreamsResponse,
    DeleteStreamsRequest,
    DeleteStreamsResponse,
    DescribePlacementDriverClusterResponse,
    DescribeStreamResult,
    DescribeStreamsRequest,
    DescribeStreamsResponse,
    HeartbeatRequest,
    IdAllocationRequest,
    IdAllocationResponse,
    ListRangesRequest,
    ListRangesResponse,
    ListRangesResult,
    PlacementDriverCluster,
    PlacementDriverNode,
    ReportMetricsRequest,
    ReportMetricsResponse,
    TrimStreamsRequest,
    TrimStreamsResponse,
    UpdateStreamsRequest,
    UpdateStreamsResponse,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import SUCCESS, shown, status_for

_REFUSALS: Final = (InvalidRequestError, ConfigurationError, PermissionDeniedError)
_NO_NUMBER: Final = -1


class PlacementDriverHandlers:
    """Serves the placement driver's operations from a store and a membership."""

    def __init__(
        self,
        store: StoreThread,
        membership: Membership,
        clock: Clock,
        endpoint: Callable[[], str],
        *,
        name: str,
        batch_number_leap_max: int,
        replace_server_after_ms: int,
        fail_over_interval_ms: int = limits.FAIL_OVER_INTERVAL_MS,
        tls: Tls | None = None,
    ) -> None:
        self._name = name
        self._store = store
        self._membership = membership
        self._clock = clock
        secrets = Secrets(
            store.cluster_id,
            lambda address: store.run(lambda metadata: metadata.servers.secrets_at(address)),
        )
        self._peers = Peers(Links(Connecting(tls=tls), secrets))
        self._announcer = RangeAnnouncer(self._peers)
        self._joining = Joining(store, membership, tls)
        self._sealer = Sealer(store, membership, self._announcer, self._peers, clock)
        self._fail_over = FailOver(
            store, membership, self._sealer, clock, interval_ms=fail_over_interval_ms
        )
        self._repair = Repair(
            store,
            membership,
            self._peers,
            self._announcer,
            clock,
            replace_after_ms=replace_server_after_ms,
        )
        self._trimmer = Trimmer(store, self._peers)
        self._cursors = CursorHandlers(store, clock)
        self._groups = GroupHandlers(store, clock)
        self._schemas = SchemaHandlers(store, clock)
        self._log_marks = LogMarks(store, clock)
        self._range_servers = RangeServers(store, self._peers)
        self._publisher = Publisher(store, self._range_servers, self._sealer, clock)
        self._txns = TxnHandlers(
            store, self._publisher, self._range_servers, clock, batch_number_leap_max
        )
        self._servers = ServerHandlers(store, membership, self._fail_over, self._repair)
        self._ranges = RangeHandlers(store, membership, self._sealer, self._repair, self._announcer)
        self._grants = GrantHandlers(store, clock)
        self._cuts = CutTaker(store, self._publisher, self._peers, clock)
        self._restorer = Restorer(store, membership, clock)
        self.observation = Observation(
            *(store, membership, self._publisher, self._peers),
            clock=clock,
            restorer=self._restorer,
            groups=self._groups.operations,
        )
        self._endpoint = endpoint
        self._looking: asyncio.Task[None] | None = None

    def by_opcode(self) -> Mapping[Opcode, Handler]:
        """Return the handler of each operation, guarded; what is not listed is not served."""
        handlers: dict[Opcode, Handler] = {
            Opcode.HEARTBEAT: self.heartbeat,
            Opcode.ALLOCATE_ID: self.allocate_id,
            Opcode.LIST_RANGES: self.list_ranges,
            Opcode.CREATE_STREAMS: self.create_streams,
            Opcode.DELETE_STREAMS: self.delete_streams,
            Opcode.UPDATE_STREAMS: self.update_streams,
            Opcode.DESCRIBE_STREAMS: self.describe_streams,
            Opcode.TRIM_STREAMS: self.trim_streams,
            Opcode.REPORT_METRICS: self.report_metrics,
            Opcode.DESCRIBE_PD_CLUSTER: self.describe_cluster,
            Opcode.SEAL_RANGE: self._ranges.seal,
            Opcode.CREATE_RANGE: self._ranges.create,
            Opcode.MOVE_RANGES: self._ranges.move,
            Opcode.COMMIT_CURSORS: self._cursors.commit,
            Opcode.DESCRIBE_CURSORS: self._cursors.describe,
            Opcode.JOIN_GROUP: self._groups.join,
            Opcode.GROUP_HEARTBEAT: self._groups.heartbeat,
            Opcode.LEAVE_GROUP: self._groups.leave,
            Opcode.DESCRIBE_GROUP: self._groups.describe,
            Opcode.REGISTER_SCHEMAS: self._schemas.register,
            Opcode.DESCRIBE_SCHEMAS: self._schemas.describe,
            Opcode.COMMIT_TXN: self._txns.commit,
            Opcode.DESCRIBE_TXNS: self._txns.describe,
            Opcode.DESCRIBE_SERVERS: self._servers.describe,
            Opcode.DRAIN_SERVERS: self._servers.drain,
            Opcode.LIST_GRANTS: self._grants.list,
            Opcode.CHANGE_GRANTS: self._grants.change,
            Opcode.CHECK_RIGHTS: self._grants.check,
            Opcode.TAKE_CUT: self._cuts.take,
            Opcode.RESTORE_METADATA: self._restorer.restore,
        }
        return self._restorer.wrap(Guard(StoredRights(self._store)).wrap(handlers))

    async def start(self) -> None:
        """Continue with what was committed and is not published yet; watch the range servers."""
        await self._restorer.start()
        await self._servers.start()
        await self._store.run(lambda store: store.grants.canonicalise())
        await self._publisher.start()
        self._looking = asyncio.create_task(log_missing_servers(self._store, self._membership))
        await self._groups.start()
        self._fail_over.start()
        self._repair.start()

    async def rest(self) -> None:
        """End the calls that wait for work in the background, and store the marks of logs."""
        await self._publisher.stop()
        with suppress(StatusError):  # a store that fails has said so
            await self._log_marks.flush()

    async def heartbeat(self, call: ServerCall) -> Answer:
        """SPEC "HEARTBEAT": register a range server; answer every client with the cluster's id."""
        request = call.decode(HeartbeatRequest)
        status = SUCCESS
        commit, promised = NO_COMMIT, NO_POSITION
        try:
            check_cluster(request, self._store.cluster_id)
            if request.client_role == ClientRole.RANGE_SERVER:
                await self._joining.heard(
                    request.range_server,
                    request.server_secret,
                    call.peer.standing,
                    is_leaving=request.is_leaving,
                    interval_ms=request.interval_ms,
                )
                commit = await self._check_history(request, call.peer.standing)
            promised = await self._check_log(request, call.peer.standing)
        except (*_REFUSALS, AlreadyExistsError) as error:
            status = status_for(error)
        return await call.greet(
            request,
            replace(
                heartbeat_answer(request, status, self._store.cluster_id),
                features=tuple(each for each in request.features if each.name == SECRETS_FEATURE),
                store_commit=commit.number if commit.life_id else _NO_NUMBER,
                store_life=commit.life_id or None,
                promised_position=promised,
                interval_ms=self._membership.interval_ms,
            ),
        )

    async def _check_log(self, request: HeartbeatRequest, standing: Standing) -> int:
        """Return how far a range server's log has to reach.

        Only a server that proved its id can report how far its log reaches now. Any other may ask:
        a server does so before it serves.
        """
        if request.range_server is None:
            return NO_POSITION
        server_id = request.range_server.server_id
        mark = maybe_log_mark(server_id, request.log_id, request.durable_position)
        if mark is None:
            return NO_POSITION
        is_proven = server_id in standing.server_ids
        if request.client_role == ClientRole.RANGE_SERVER and is_proven:
            return await self._log_marks.note(mark)
        return await self._log_marks.promised(mark)

    async def _check_history(self, request: HeartbeatRequest, standing: Standing) -> CommitId:
        """Return the store's last commit.

        Raises StatusError if the store lacks a commit that a server knows, which counts only if the
        server proved its id.
        """
        claimed = NO_COMMIT
        server, life_id = request.range_server, request.store_life
        if life_id is not None and server is not None and server.server_id in standing.server_ids:
            if not is_life_id(life_id):
                raise invalid(f"{shown(life_id)} is no store_life of a HEARTBEAT")
            claimed = CommitId(request.store_commit, life_id)

        def check(store: MetadataStore) -> CommitId:
            store.database.check_history(claimed)
            return store.last_commit

        return await self._store.run(check)

    async def stop(self) -> None:
        """Cancel the work in the background."""
        if self._looking is not None:
            await cancel_all([self._looking])
        await self._groups.stop()
        await self.observation.lags.stop()
        await self._publisher.stop()
        await self._repair.stop()
        await self._fail_over.stop()
        await self._sealer.stop()
        await self._range_servers.stop()
        await self._announcer.stop()
        await self._peers.close()

    async def report_metrics(self, call: ServerCall) -> Answer:
        """SPEC "REPORT_METRICS": keep the load for placement; the server is alive."""
        request = call.decode(ReportMetricsRequest)
        status = SUCCESS
        try:
            await self._joining.reported(request.range_server, call.peer.standing)
            assert request.range_server is not None
            self._membership.report(
                ServerLoad(
                    request.range_server.server_id,
                    request.disk_free_space,
                    request.network_append_rate,
                    missing_replica_count=request.range_missing_replica_cnt,
                )
            )
        except (*_REFUSALS, AlreadyExistsError) as error:
            status = status_for(error)
        return Response(ReportMetricsResponse(range_server=request.range_server, status=status))

    async def allocate_id(self, call: ServerCall) -> Answer:
        """SPEC "ALLOCATE_ID": an id for a range server, never issued before, and its secret."""
        call.decode(IdAllocationRequest)
        secret = new_secret()
        server_id = await self._store.run(_allocate, secret)
        return Response(IdAllocationResponse(server_id, SUCCESS, secret))

    async def create_streams(self, call: ServerCall) -> Answer:
        """SPEC "CREATE_STREAMS": results in the order of the request."""
        request = call.decode(CreateStreamsRequest)
        results = await self._store.run(
            operations.create_streams,
            request.streams,
            self._membership.live_servers(),
            self._clock.wall_ms(),
        )
        self._announcer.announce(
            result.stream_range for result in results if result.stream_range is not None
        )
        return with_results(CreateStreamsResponse, results)

    async def delete_streams(self, call: ServerCall) -> Answer:
        """SPEC "DELETE_STREAMS": results in the order of the request."""
        request = call.decode(DeleteStreamsRequest)
        results = await self._store.run(operations.delete_streams, request.streams)
        return with_results(DeleteStreamsResponse, results)

    async def update_streams(self, call: ServerCall) -> Answer:
        """SPEC "UPDATE_STREAMS": results in the order of the request."""
        request = call.decode(UpdateStreamsRequest)
        results, moved = await self._store.run(
            changes.update_streams, request.streams, self._membership.live_servers()
        )
        await self._fail_over.renew(moved)
        return with_results(UpdateStreamsResponse, results)

    async def trim_streams(self, call: ServerCall) -> Answer:
        """SPEC "TRIM_STREAMS": the smallest remaining ranges, in the order of the request."""
        request = call.decode(TrimStreamsRequest)
        results = await self._trimmer.trim(request.trimmed_streams)
        return with_results(TrimStreamsResponse, results)

    async def describe_streams(self, call: ServerCall) -> Answer:
        """SPEC "DESCRIBE_STREAMS": results by id, then by name, or all streams by id."""
        request = call.decode(DescribeStreamsRequest)
        asked = len(request.stream_ids) + len(request.names)
        if request.all_streams and (asked or request.with_properties):
            raise invalid("all_streams goes without stream_ids, names and with_properties")
        return in_parts(
            self._all_streams() if request.all_streams else self._some_streams(request),
            lambda part: DescribeStreamsResponse(describe_responses=part, status=SUCCESS),
        )

    async def _some_streams(
        self, request: DescribeStreamsRequest
    ) -> AsyncIterator[tuple[DescribeStreamResult, ...]]:
        for describe in operations.descriptions(request):
            yield tuple(await self._store.run(describe))

    async def _all_streams(self) -> AsyncIterator[tuple[DescribeStreamResult, ...]]:
        last_id = -1
        while results := await self._store.run(operations.describe_after, last_id):
            yield tuple(results)
            last_id = results[-1].stream_id

    async def list_ranges(self, call: ServerCall) -> Answer:
        """SPEC "LIST_RANGES": results in the order of the owners; without owners, what changed.

        The revision is read before the ranges, so a client that asks again "since" it misses no
        change. A client that names a commit which the store lacks proves nothing about the store,
        as clients are not trusted: only the answer reports it.
        """
        request = call.decode(ListRangesRequest)
        owners = request.range_owners
        revision, commit, lacks_commit, changed = await self._store.run(_standing, request)
        if revision == request.since_revision:
            owners = ()

        async def parts() -> AsyncIterator[tuple[ListRangesResult, ...]]:
            cursor: operations.ListCursor | None = operations.ListCursor() if owners else None
            while cursor is not None:
                results, cursor = await self._store.run(operations.list_ranges, owners, cursor)
                yield tuple(results)

        return in_parts(
            parts(),
            lambda part: ListRangesResponse(
                list_responses=part,
                status=SUCCESS,
                revision=revision,
                store_commit=commit.number,
                store_life=commit.life_id,
                lacks_commit=lacks_commit,
                lists_changes=changed is not None,
                changed_streams=tuple(changed or ()),
            ),
        )

    async def describe_cluster(self, call: ServerCall) -> Answer:
        """SPEC "DESCRIBE_PD_CLUSTER": one placement driver, the leader; `Election` has several."""
        node = PlacementDriverNode(name=self._name, advertise_addr=self._endpoint(), is_leader=True)
        return Response(
            DescribePlacementDriverClusterResponse(
                status=SUCCESS, cluster=PlacementDriverCluster(nodes=(node,))
            )
        )


def _standing(
    store: MetadataStore, request: ListRangesRequest
) -> tuple[int, CommitId, bool, list[int] | None]:
    """Return the revision, the last commit, whether the store lacks one, and what changed.

    The streams that changed are None if they are not asked for or not known.
    """
    life = request.store_life
    lacks_commit = life is not None and not (
        is_life_id(life) and store.database.has_commit(CommitId(request.store_commit, life))
    )
    is_asked = not request.range_owners and request.since_revision >= 0
    changed = store.servers.maybe_changed_since(request.since_revision) if is_asked else None
    return store.revision(), store.last_commit, lacks_commit, changed


def _allocate(store: MetadataStore, secret: str) -> int:
    server_id = store.servers.allocate_id()
    store.servers.claim_secret(server_id, secret)
    return server_id
