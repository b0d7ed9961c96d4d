"""A connection to a cluster, by the names of its streams, for asyncio."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Self

import pyarrow as pa

from sbp_core import group_limits, limits
from sbp_core.app import defaults
from sbp_core.app.aio.assignment import AsyncAssignment, AsyncMember, AsyncWholeSelection
from sbp_core.app.aio.consumer import AsyncConsumer
from sbp_core.app.aio.fetched import AsyncRecordIterator, Hand, OnTrimmed
from sbp_core.app.aio.producer import AsyncProducer, OnDelivery
from sbp_core.app.aio.transaction import AsyncTransaction
from sbp_core.app.encoding import ArrowStream, schema_of
from sbp_core.app.gates import OnLoop
from sbp_core.app.outbox import Batching
from sbp_core.app.positions import Start
from sbp_core.app.process import Unsendable
from sbp_core.client import (
    AsyncClient,
    Connecting,
    Credentials,
    RetryPolicy,
    StreamInfo,
    StreamSpec,
    StreamUpdate,
    Tls,
)
from sbp_core.errors import AlreadyExistsError, ConfigurationError, SbpError
from sbp_core.records import Compression

NO_PROPERTIES: Final[Mapping[str, Any]] = MappingProxyType({})


def connect(
    endpoint: str,
    *,
    timeout_ms: int = limits.REQUEST_TIMEOUT_MS,
    retry_ms: float = limits.OUTAGE_MS,
    tls: Tls | None = None,
    credentials: Credentials | None = None,
) -> AsyncConnection:
    """Return a connection to the cluster at `endpoint`, a context manager that closes it.

    `endpoint` is the "host:port" of the placement driver, or several of one cluster, separated by
    commas. Nothing is sent before the first call. A request has `timeout_ms`, and is retried for
    `retry_ms` if it fails; with `math.inf` for as long as servers are down. Until a server has
    answered once, retries end after 5 s, so that a wrong endpoint is reported soon. Raises
    ConfigurationError for a text that is no endpoint.
    """
    return AsyncConnection(client_for(endpoint, timeout_ms, retry_ms, tls, credentials))


def client_for(
    endpoint: str,
    timeout_ms: int,
    retry_ms: float,
    tls: Tls | None,
    credentials: Credentials | None,
) -> AsyncClient:
    """Return the client of a connection, by the arguments of `connect`."""
    return AsyncClient(
        endpoint,
        timeout_ms=timeout_ms,
        connecting=Connecting(tls=tls, credentials=credentials),
        retry=RetryPolicy(budget_ms=retry_ms, first_ms=min(timeout_ms, limits.CONNECT_TIMEOUT_MS)),
    )


class AsyncConnection(Unsendable):
    """Producers, consumers and transactions over one client. Made by `connect`.

    The tasks of one loop may share a connection and its producers; each consumer is for one task.
    `client` has the operations that a connection lacks.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        hand: type[Hand] = AsyncRecordIterator,
        callers: Callable[[], OnLoop] = OnLoop,
    ) -> None:
        self.client = client
        self._hand = hand
        self._callers = callers
        self._open: dict[AsyncConsumer | AsyncProducer, None] = {}

    async def create_stream(
        self,
        name: str,
        *,
        schema: pa.Schema | ArrowStream | None = None,
        replicas: int = 1,
        retention_ms: int = 0,
        properties: Mapping[str, str] = NO_PROPERTIES,
        if_missing: bool = False,
    ) -> StreamInfo:
        """Create a stream; return it. A stream with a `schema` is a typed one.

        `schema` is an Arrow schema, or a table or data frame that has the columns. `retention_ms` 0
        keeps records for ever. With `if_missing` a stream that exists already is returned as it is;
        its schema has to fit. Raises AlreadyExistsError, SchemaError, SbpError.
        """
        columns = None if schema is None else schema_of(schema)
        spec = StreamSpec(
            name,
            replica_count=replicas,
            retention_period_ms=retention_ms,
            properties=properties,
        )
        try:
            (info,) = await self.client.create_streams([spec])
        except AlreadyExistsError:
            if not if_missing:
                raise
            (info,) = await self.client.describe_streams([name])
        if columns is not None:
            await self.client.evolve_schema(info.stream_id, columns, may_change=False)
        return info

    async def delete_stream(self, name: str) -> None:
        """Delete a stream and its records. Raises NotFoundError, SbpError."""
        await self.client.delete_streams([name])

    async def properties(self, stream: str) -> dict[str, str]:
        """Return the properties of a stream, by key. Raises NotFoundError, SbpError."""
        (info,) = await self.client.describe_streams([stream])
        return (await self.client.describe_properties([info.stream_id]))[info.stream_id]

    async def update_properties(
        self,
        stream: str,
        properties: Mapping[str, str | None],
        *,
        expected: Mapping[str, str | None] = NO_PROPERTIES,
    ) -> None:
        """Set properties of a stream; None removes a property, and all others stay.

        Raises ConditionFailedError, and changes nothing, unless the stream has the `expected`
        properties; an expected None stands for no property. A change with `expected` is not sent
        again if its answer is lost: the outcome of the error is UNKNOWN. Call again then: a
        ConditionFailedError means that the first call, or somebody else, has changed the stream.
        Raises NotFoundError, ConfigurationError, SbpError.
        """
        update = StreamUpdate(stream, properties=properties, expected_properties=expected)
        await self.client.update_streams([update])

    async def streams(self) -> list[StreamInfo]:
        """Return all streams of the cluster, by id. Raises SbpError."""
        return await self.client.list_streams()

    def consumer(
        self,
        *streams: str,
        group: str | None = None,
        shared: bool = False,
        session_timeout_ms: int = group_limits.GROUP_SESSION_MS,
        max_poll_interval_ms: int = defaults.MAX_POLL_INTERVAL_MS,
        start: Start = "earliest",
        follow: bool = False,
        commit_interval_ms: int | None = defaults.COMMIT_INTERVAL_MS,
        refresh_interval_ms: int = defaults.REFRESH_INTERVAL_MS,
        fetch_bytes: int = defaults.FETCH_BYTES,
        on_trimmed: OnTrimmed = "error",
        assignment: AsyncAssignment | None = None,
    ) -> AsyncConsumer:
        """Return a consumer of streams, given by names and patterns of names such as `audit-*`.

        The consumer begins at the cursors of its `group`. Without a group, and in streams without a
        cursor, it begins at `start`: "earliest", "latest", an offset or a datetime. It ends where
        the streams end now. With `follow` it waits for more records, looks for new streams that
        match a pattern every `refresh_interval_ms`, and reads these from their beginning. The
        consumer commits every `commit_interval_ms`, and at its end; with None only `commit`
        commits. `fetch_bytes` are fetched of a stream at a time.

        Records that were trimmed before they were read are an error. With `on_trimmed` "earliest"
        or "latest" the consumer logs a warning, and goes on there. A `shared` consumer reports the
        error in its log, gives the stream up, and goes on with its other streams.

        `shared` consumers divide the streams of their group: one of them reads a stream at a time.
        The streams of a consumer that ends, or is silent for `session_timeout_ms` (1 s to 30 min),
        go to the others. A consumer whose caller works on a record for longer than
        `max_poll_interval_ms` loses its streams, too, and its `commit` raises MemberUnknownError.
        Shared consumers need a group and `follow`. An `assignment` says which streams the consumer
        reads, and keeps the positions in place of the group. Raises ConfigurationError.
        """
        if shared and (group is None or not follow or assignment is not None):
            raise ConfigurationError(
                "consumers share the streams of a group while they follow them: shared=True needs"
                " group=... and follow=True, and takes no assignment"
            )
        member = None
        if shared and group is not None:
            member = AsyncMember(
                self.client, group, streams, session_timeout_ms, max_poll_interval_ms
            )
        made = AsyncConsumer(
            self.client,
            streams,
            start=start,
            follow=follow,
            commit_interval_ms=commit_interval_ms,
            refresh_interval_ms=refresh_interval_ms,
            fetch_bytes=fetch_bytes,
            assignment=assignment or member or AsyncWholeSelection(self.client, group),
            group=group,
            on_trimmed=on_trimmed,
            on_close=self._forget,
            hand=self._hand,
        )
        if member is not None:
            member.is_waiting = lambda: made.is_waiting
        self._open[made] = None
        return made

    def producer(
        self,
        stream: str | None = None,
        *,
        id: str | None = None,  # noqa: A002 - as a caller says it
        batch_bytes: int = defaults.BATCH_BYTES,
        batch_records: int = defaults.BATCH_RECORDS_MAX,
        linger_ms: float = defaults.LINGER_MS,
        buffer_bytes: int = defaults.BUFFER_BYTES,
        compression: Compression = "none",
        timestamp_column: str | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> AsyncProducer:
        """Return a producer of records, a context manager that closes it.

        Records go to `stream`, or where `send` says: one producer serves many streams.

        A record batch is sent when it has `batch_bytes` or `batch_records` of records, or
        `linger_ms` after its first record if nothing is in flight; with 0 it does not wait for more
        records. `send` waits while `buffer_bytes` are unacknowledged. `timestamp_column` of a
        typed stream has the times of its records. The producer's worker calls `on_delivery` with
        the outcome of each batch, and waits for it: it must return soon.

        A producer with an `id` writes to one stream, and counts the committed records under the id.
        After a restart, skip `position` records of the source: each record is stored once. Run one
        producer with an id at a time. Its records have no offsets to report, and each batch takes a
        commit, of milliseconds. Raises ConfigurationError.
        """
        made = AsyncProducer(
            self.client,
            stream,
            producer_id=id,
            batching=Batching(batch_bytes, batch_records, linger_ms, buffer_bytes),
            compression=compression,
            timestamp_column=timestamp_column,
            on_delivery=on_delivery,
            on_close=self._forget,
            callers=self._callers(),
        )
        self._open[made] = None
        return made

    def transaction(self, *streams: str) -> AsyncTransaction:
        """Return a transaction: records of these streams that become visible together or never."""
        return AsyncTransaction(self.client, streams)

    async def close(self) -> None:
        """Close all producers and consumers, the newest first, and the sockets. Idempotent.

        Raises the first error of a producer or consumer, once all of them are closed.
        """
        errors: list[SbpError] = []
        try:
            while self._open:
                newest = next(reversed(self._open))
                try:
                    await newest.close()
                except SbpError as error:
                    errors.append(error)
                self._forget(newest)
        finally:
            await self.client.close()
        if errors:
            raise errors[0]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _forget(self, closed: AsyncConsumer | AsyncProducer) -> None:
        self._open.pop(closed, None)
