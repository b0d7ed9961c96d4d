"""The asyncio client: its methods."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from random import Random, SystemRandom
from typing import Self, TypeVar

from sbp_core import limits
from sbp_core.access.rights import Grant
from sbp_core.client.aio_groups import AsyncGroupMethods
from sbp_core.client.cluster_info import ClusterInfo, PlacementDriverInfo, RangeServerInfo
from sbp_core.client.io.aio_transport import AsyncPool
from sbp_core.client.io.connections import is_own_endpoint
from sbp_core.client.operations import (
    appending,
    bounds,
    calls,
    fetching,
    metadata,
    positions,
    watching,
)
from sbp_core.client.operations import range_placement as placement
from sbp_core.client.operations import stored_bytes as sizes
from sbp_core.client.operations import stream_changes as changes
from sbp_core.client.operations import txn_decisions as txns
from sbp_core.client.operations.appending import AsyncAppender, OnAppended, OnFailed
from sbp_core.client.operations.calls import Context, RetryPolicy
from sbp_core.client.operations.numbering import Transaction, Writer
from sbp_core.client.operations.open_calls import Call
from sbp_core.client.operations.replicas import Replicas
from sbp_core.client.operations.router import PlacementDrivers, Router
from sbp_core.client.operations.watching import BoundsView
from sbp_core.client.types import (
    AppendItem,
    AppendOutcome,
    Connecting,
    FetchItem,
    FetchOutcome,
    MetadataChanges,
    RangeInfo,
    Reach,
    SchemaVersion,
    StoreCommit,
    StreamBounds,
    StreamInfo,
    StreamSpec,
    StreamUpdate,
    TxnDecision,
    TxnInfo,
    TxnLoss,
    TxnPart,
)
from sbp_core.errors import SbpError
from sbp_core.records.stream_schema import StreamSchema
from sbp_core.wire.checksum import Buffer
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import RangeServer
from sbp_core.wire.opcodes import Opcode

T = TypeVar("T")


class AsyncClient(AsyncGroupMethods):
    """An asyncio client of the cluster whose placement driver is at `endpoint` ("host:port").

    Several placement drivers of one cluster are separated by commas: one that is down is passed
    over, and one that does not lead names the one that does.

    The tasks of one loop may share it. Every call has a deadline of `timeout_ms`; failed calls are
    retried as `retry` says, where that is safe. All methods raise SbpError.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        timeout_ms: int = limits.REQUEST_TIMEOUT_MS,
        connecting: Connecting | None = None,
        retry: RetryPolicy | None = None,
        random: Random | None = None,
    ) -> None:
        random = random or SystemRandom()
        pool = AsyncPool(connecting or Connecting())
        context = Context(
            PlacementDrivers(endpoint),
            Router(),
            retry or RetryPolicy(),
            random,
            timeout_ms,
            pool.open_calls,
            replicas=Replicas(random.getrandbits(32), is_own_endpoint),
        )
        super().__init__(context, pool)

    @property
    def endpoint(self) -> str:
        """The placement driver that is asked next, "host:port"; the one that answered last."""
        return self._context.drivers.endpoint

    async def call(
        self,
        endpoint: str,
        opcode: Opcode,
        header: object | None = None,
        payload: Sequence[Buffer] = (),
        *,
        timeout_ms: int | None = None,
    ) -> list[Frame]:
        """Make one call to any server, without retries; return the frames of its answer.

        For operations that have no method here. `header` is the opcode's request table (module
        `sbp_core.wire.headers`). Raises SbpError when there is no complete answer, or when it is a
        system error. Check the status inside the answer yourself.
        """
        deadline_ms = self._within(timeout_ms).timeout_ms
        return await self.exchange(Call(endpoint, opcode, header, deadline_ms, tuple(payload)))

    async def exchange(self, call: Call) -> list[Frame]:
        """Do what `call` does, with a call that may need a feature of the connection.

        Raises UnsupportedError if the server did not agree to the feature; nothing is sent then.
        """
        return await calls.exchange(self._context.open_calls, call)

    async def ask(
        self, opcode: Opcode, header: object, table: type[T], *, timeout_ms: int | None = None
    ) -> list[T]:
        """Ask the placement driver that leads; return the headers of its answer.

        `header` is the opcode's request table, `table` its response table. The call is retried,
        also after a timeout: use it for requests that may be repeated. Raises SbpError, also for
        an error status of the answer.
        """
        return await calls.ask(self._within(timeout_ms), opcode, header, table)

    async def placement_drivers(
        self, asker: RangeServer | None = None
    ) -> list[PlacementDriverInfo]:
        """Return the placement drivers of the cluster; `asker` is the range server that asks."""
        return await calls.placement_drivers(self._context, asker)

    async def range_servers(self) -> list[RangeServerInfo]:
        """Return the range servers that the cluster ever had, by id."""
        return (await self.describe_cluster()).range_servers

    async def describe_cluster(self) -> ClusterInfo:
        """Return the range servers, and what the open ranges of all streams lack."""
        return await calls.describe_cluster(self._context)

    async def explain_missing(self, replica_count: int) -> str | None:
        """Return why a stream gets fewer replicas than these now, and the remedy; None if not."""
        return await calls.explain_missing(self._context, replica_count)

    async def drain_servers(self, server_ids: Sequence[int], *, is_cancelled: bool = False) -> None:
        """Let range servers get no ranges any more, and copy theirs to others; or cancel that.

        Returns before it is done. Raises NotFoundError for an unknown id.
        """
        await calls.drain_servers(self._context, server_ids, is_cancelled=is_cancelled)

    async def list_grants(self, subject: str | None = None) -> list[Grant]:
        """Return what a subject may do, or all subjects, by subject, right and pattern."""
        return await calls.list_grants(self._context, subject)

    async def change_grants(self, grants: Sequence[Grant], *, is_revoked: bool = False) -> None:
        """Grant rights, or revoke them: all or none. It may be repeated.

        Raises InvalidRequestError for what cannot be granted.
        """
        await calls.change_grants(self._context, grants, is_revoked=is_revoked)

    async def ping(self) -> float:
        """Return the time in ms of one round trip to the placement driver."""
        return await calls.ping(self._context)

    async def describe_streams(self, refs: Sequence[int | str]) -> list[StreamInfo]:
        """Return the metadata of streams given by id (int) or name (str), in that order.

        Raises NotFoundError naming all that are missing.
        """
        return await metadata.describe_streams(self._context, refs)

    async def find_streams(self, refs: Sequence[int | str]) -> list[StreamInfo]:
        """Return the metadata of those streams, by id or name, that exist, in any order."""
        return await metadata.find_streams(self._context, refs)

    async def list_streams(self) -> list[StreamInfo]:
        """Return all streams of the cluster, by id."""
        return await metadata.list_streams(self._context)

    async def describe_properties(self, stream_ids: Sequence[int]) -> dict[int, dict[str, str]]:
        """Return the properties of streams, by id and key. Raises NotFoundError."""
        return await metadata.describe_properties(self._context, stream_ids)

    async def create_streams(
        self,
        specs: Sequence[StreamSpec],
        *,
        on_created: Callable[[StreamInfo], None] | None = None,
    ) -> list[StreamInfo]:
        """Create streams; return them in the order of `specs`.

        Waits while no range server can take a range. Raises AlreadyExistsError, NoRangeServerError;
        other streams may be created nevertheless, and `on_created` is called with each that is.
        """
        return await metadata.create_streams(self._context, specs, on_created)

    async def delete_streams(self, refs: Sequence[int | str]) -> None:
        """Delete streams given by id or name. Raises NotFoundError naming all that are missing."""
        await metadata.delete_streams(self._context, refs)

    async def update_streams(self, updates: Sequence[StreamUpdate]) -> list[StreamInfo]:
        """Change streams; return them as they are then, in the order of `updates`.

        Raises ConditionFailedError for properties that are not as expected. Others are changed.
        """
        return await changes.update_streams(self._context, updates)

    async def trim_streams(self, offsets: Mapping[int, int]) -> dict[int, RangeInfo]:
        """Forget the records of streams, by id, below an offset; return their first ranges.

        Raises OffsetOutOfRangeError for an offset beyond the tail. Offsets never go back.
        """
        return await changes.trim_streams(self._context, offsets)

    async def seal_streams(self, stream_ids: Sequence[int]) -> dict[int, RangeInfo]:
        """Let streams, by id, go on in new ranges; return the new writable range of each."""
        return await changes.seal_streams(self._context, stream_ids)

    async def metadata_changes(self, since: int = -1) -> MetadataChanges | None:
        """Return the revision of the metadata, and the streams that changed since an earlier one.

        The revision grows with every change of streams and ranges. None if the placement driver
        counts no revisions.
        """
        return await placement.metadata_changes(self._context, since)

    async def record_bytes_max(self, stream_ids: Collection[int]) -> dict[int, int]:
        """Return how many bytes a record of each stream may have, by stream id.

        It is the setting record_bytes_max of the range server of the stream, or the largest one
        that there can be if the server does not answer now. Raises NotFoundError naming all missing
        streams.
        """
        return await metadata.record_bytes_max(self._context, stream_ids)

    @property
    def last_commit(self) -> StoreCommit | None:
        """The last commit of the placement driver's metadata that it reported, or None.

        Answers about revisions and ranges carry it. Keep it to detect a restored backup later.
        """
        return self._context.router.last_commit

    async def has_commit(self, commit: StoreCommit) -> bool | None:
        """Return whether the placement driver's metadata include a commit; None if unknown.

        `commit` is an earlier `last_commit`. False means that the metadata were restored from an
        older backup since then, or that this is another cluster: offsets that were read or
        committed after the backup may stand for other records now.
        """
        return await placement.has_commit(self._context, commit)

    async def list_ranges(
        self, stream_ids: Sequence[int], *, as_of: int | None = None
    ) -> dict[int, tuple[RangeInfo, ...]]:
        """Return the ranges of each stream as the placement driver knows them now.

        It is not asked for what is known `as_of` a revision that it has just reported.
        """
        return await placement.list_ranges(self._context, stream_ids, as_of)

    async def stream_bounds(self, stream_ids: Sequence[int]) -> list[StreamBounds]:
        """Return where each stream begins and ends now, in the order of `stream_ids`."""
        return await bounds.stream_bounds(self._context, stream_ids)

    async def watch_bounds(
        self, stream_ids: Sequence[int], earlier: BoundsView | None = None
    ) -> BoundsView:
        """Return where streams begin and end now, cheaply for callers that poll.

        Pass the result of the last call as `earlier`: only changes since then are asked for, and
        `bounds` is the same object if there are none. Raises NotFoundError naming all missing
        streams.
        """
        return await watching.watch_bounds(self._context, stream_ids, earlier)

    async def reach(
        self,
        positions: Mapping[int, int | None],
        *,
        timeout_ms: int,
        spared: Mapping[str, SbpError],
    ) -> dict[int, Reach]:
        """Return how far streams, by id, can be read from a position; None is their first record.

        Unlike `stream_bounds` it does not wait until a range server is available again: the ranges
        of those that do not answer within `timeout_ms` are `Reach.unavailable`. Those in `spared`
        are not asked: they count as unavailable with that error. Raises NotFoundError naming all
        missing streams.
        """
        return await watching.reach(self._context, positions, timeout_ms, spared)

    async def stored_bytes(self, stream_ids: Sequence[int], *, timeout_ms: int) -> dict[int, int]:
        """Return the bytes that each stream, by id, takes in the log of one replica.

        Streams with a range whose servers do not answer within `timeout_ms`, or do not know, are
        left out. Raises NotFoundError naming the missing streams.
        """
        return await sizes.stored_bytes(self._context, stream_ids, timeout_ms)

    async def probe(self, endpoints: Collection[str], *, timeout_ms: int) -> dict[str, SbpError]:
        """Send a PING to each server; return the errors of those that fail within `timeout_ms`.

        Servers that answer are not in the result: it is empty if all are reachable.
        """
        return await watching.probe(self._context, endpoints, timeout_ms)

    async def lookup_offsets(
        self,
        timestamps: Mapping[int, int],
        *,
        start_offsets: Mapping[int, int] | None = None,
        timeout_ms: int | None = None,
    ) -> dict[int, int]:
        """Return for each stream, by id, where to start for what was appended since a time.

        Times in us (UTC), by the clocks of the range servers, which count in ms. The answer is the
        first record, in the order of offsets, that was appended then or later, or else the tail.
        For a stream in `start_offsets` only records from there on count, and only the servers of
        ranges that end behind it are asked. With a `timeout_ms` servers are not waited for any
        longer: streams that they have ranges of are left out.
        """
        return await positions.lookup_offsets(
            self._context, timestamps, start_offsets or {}, timeout_ms
        )

    async def append_times(
        self, offsets: Mapping[int, int], *, timeout_ms: int | None = None
    ) -> dict[int, int | None]:
        """Return for each stream, by id, when the record at an offset was appended, in ms (UTC).

        If that one was trimmed, when the first one left was; None at the tail and beyond. With a
        `timeout_ms` streams whose servers take longer are left out.
        """
        return await positions.append_times(self._context, offsets, timeout_ms)

    async def describe_schemas(
        self, stream_ids: Sequence[int], *, newest_only: bool = False
    ) -> dict[int, tuple[SchemaVersion, ...]]:
        """Return the versions of each stream's schema, the newest last; none if it has no schema.

        Raises NotFoundError naming the missing streams.
        """
        return await changes.describe_schemas(self._context, stream_ids, newest_only=newest_only)

    async def register_schema(
        self, stream_id: int, schema: StreamSchema, *, version: int
    ) -> SchemaVersion:
        """Register a schema as `version` of a stream's; return the version that is newest now.

        `version` is the newest one plus 1, or 1 for the first. Compare the result: if another
        client registered that version first, its schema is returned, and this one is not
        registered. Raises SchemaError if the schema does not extend the newest one,
        AlreadyExistsError for a version that is not the next one. `evolve_schema` does all that.
        """
        return await changes.register_schema(self._context, stream_id, schema, version)

    async def evolve_schema(
        self, stream_id: int, schema: StreamSchema, *, may_change: bool
    ) -> SchemaVersion:
        """Return a version of a stream's schema that data of `schema` fit.

        A stream without one gets this one, and if it `may_change`, a new version of it where that
        is needed. Raises SchemaError with what does not fit.
        """
        return await changes.evolve_schema(self._context, stream_id, schema, may_change=may_change)

    async def commit_txn(
        self,
        producer: str,
        batch_number: int,
        parts: Sequence[TxnPart],
        *,
        record_count: int,
        digest: bytes,
        timeout_ms: int | None = None,
    ) -> TxnDecision:
        """Decide what a producer's batch is: `parts`, which have `record_count` records together.

        The first decision is final; a repeat returns it. Waits until all is visible, or for most of
        `timeout_ms`: what is committed will be visible.
        """
        context = self._within(timeout_ms)
        return await txns.commit_txn(
            context, producer, batch_number, parts, record_count=record_count, digest=digest
        )

    async def abort_txns(self, parts: Sequence[TxnPart]) -> list[TxnPart]:
        """Give up what was staged, unless it is committed; return what is given up now."""
        return await txns.abort_txns(self._context, parts)

    async def give_up_txn(self, producer: str, batch_number: int) -> TxnLoss:
        """Give up what range servers have lost of a decided batch, so that others can follow.

        It may be repeated. Raises NotFoundError if the batch is not decided, InvalidRequestError if
        it only waits: what can be published is not given up; RequestTimeoutError if its range
        server does not say in time what it has.
        """
        return await txns.give_up_txn(self._context, producer, batch_number)

    async def describe_txns(
        self, producer: str | None = None, *, spared: Collection[str] | None = ()
    ) -> list[TxnInfo]:
        """Return the states of a producer's transactions, or of all, staged ones included.

        The range servers in `spared` are not asked. None asks no range server, so that staged
        transactions are left out.
        """
        return await txns.describe_txns(self._context, producer, spared)

    async def append(
        self,
        items: Sequence[AppendItem],
        *,
        retry_unknown: bool = False,
        writer: Writer | None = None,
        transaction: Transaction | None = None,
    ) -> list[AppendOutcome]:
        """Append encoded batches, those of one stream in order; return an outcome for each.

        A call whose answer is lost is not repeated, since its batches may be appended: the error
        has the outcome UNKNOWN then. To retry it nevertheless, pass one of: `writer`, and each
        batch is appended exactly once; `retry_unknown`, and batches may be appended twice;
        `transaction`, and they are staged, not visible before it is committed, with the base
        offset -1. Writer and transaction need servers that know the extension: UnsupportedError.

        Raises the error of the first batch that failed; others may be appended, see its `outcome`.
        ConfigurationError for a batch that is too large; nothing is appended then.
        """
        kind = appending.AppendKind(retry_unknown, writer, transaction)
        return await appending.append(self._context, items, kind)

    def appender(
        self,
        *,
        retry_unknown: bool = False,
        writer: Writer | None = None,
        transaction: Transaction | None = None,
        on_appended: OnAppended | None = None,
        on_failed: OnFailed | None = None,
    ) -> AsyncAppender:
        """Return an appender, which sends batches while earlier ones wait for their answers.

        The keywords are those of `append`, and `on_appended`, which is called within the methods of
        the appender with the number of a batch, from 0 on in the order in which they were given,
        and its outcome. A batch that fails ends the appender; with `on_failed`
        only its stream: that is called with the stream's id and the error, and later batches for
        the stream raise ConfigurationError. All other batches are appended once `flush` or `finish`
        returns. With a `writer` or a `transaction`, several frames of one stream are sent at a
        time, else one. It cannot be used elsewhere before the appender is finished or closed.
        """
        kind = appending.AppendKind(retry_unknown, writer, transaction)
        work = appending.GradualAppend(self._context, kind, on_appended, on_failed)
        return AsyncAppender(work, work.steps())

    def fetch(
        self, items: Sequence[FetchItem], *, max_wait_ms: int = 0, min_bytes: int = 1
    ) -> AsyncGenerator[FetchOutcome]:
        """Yield one outcome per item, as they come. Failures are outcomes with an error."""
        return fetching.fetch(self._context, items, max_wait_ms=max_wait_ms, min_bytes=min_bytes)

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _within(self, timeout_ms: int | None) -> Context:
        return (
            self._context if timeout_ms is None else replace(self._context, timeout_ms=timeout_ms)
        )
