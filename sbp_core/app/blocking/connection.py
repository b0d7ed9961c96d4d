"""A connection to a cluster, by the names of its streams, for threads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self

import pyarrow as pa

from sbp_core import group_limits, limits
from sbp_core.app import defaults
from sbp_core.app.aio.connection import NO_PROPERTIES, AsyncConnection, client_for
from sbp_core.app.aio.fetching import OnTrimmed
from sbp_core.app.aio.producer import OnDelivery
from sbp_core.app.blocking.consumer import Assignment, Consumer, RecordIterator, on_other_threads
from sbp_core.app.blocking.producer import Producer, Transaction
from sbp_core.app.delivery import check_may_wait
from sbp_core.app.gates import OnThreads
from sbp_core.app.positions import Start
from sbp_core.app.process import Unsendable
from sbp_core.app.rows import ArrowStream
from sbp_core.client import Client, Credentials, StreamInfo, Tls
from sbp_core.client.facades import documented_as
from sbp_core.client.io.loop_thread import loop_thread
from sbp_core.records import Compression


def connect(
    endpoint: str,
    *,
    timeout_ms: int = limits.REQUEST_TIMEOUT_MS,
    retry_ms: float = limits.OUTAGE_MS,
    tls: Tls | None = None,
    credentials: Credentials | None = None,
) -> Connection:
    """Return a connection to the cluster at `endpoint`, a context manager that closes it.

    `endpoint` is the "host:port" of the placement driver, or several of one cluster, separated by
    commas. Nothing is sent before the first call. A request has `timeout_ms`; one that fails is
    retried for `retry_ms`, `math.inf` for as long as servers are down. Before any has answered it
    is 5 s at most, so that a wrong endpoint is reported soon. Raises ConfigurationError for what is
    no endpoint.
    """
    client = client_for(endpoint, timeout_ms, retry_ms, tls, credentials)
    return Connection(Client.over(client))


class Connection(Unsendable):
    """Producers, consumers and transactions over one client. Made by `connect`.

    Threads may share it; a producer too, but each consumer is for one thread.
    `client` is the client below it, for everything that is not here.
    """

    def __init__(self, client: Client) -> None:
        self.client: Final = client
        self._connection = AsyncConnection(client.on_loop, hand=RecordIterator, callers=OnThreads)

    @documented_as(AsyncConnection.create_stream)
    def create_stream(
        self,
        name: str,
        *,
        schema: pa.Schema | ArrowStream | None = None,
        replicas: int = 1,
        retention_ms: int = 0,
        properties: Mapping[str, str] = NO_PROPERTIES,
        if_missing: bool = False,
    ) -> StreamInfo:
        """Create a stream; return it. With a `schema` it is a typed one."""
        return loop_thread().run(
            self._connection.create_stream(
                name,
                schema=schema,
                replicas=replicas,
                retention_ms=retention_ms,
                properties=properties,
                if_missing=if_missing,
            )
        )

    def delete_stream(self, name: str) -> None:
        """Delete a stream and its records. Raises NotFoundError, SbpError."""
        loop_thread().run(self._connection.delete_stream(name))

    def properties(self, stream: str) -> dict[str, str]:
        """Return the properties of a stream, by key. Raises NotFoundError, SbpError."""
        return loop_thread().run(self._connection.properties(stream))

    @documented_as(AsyncConnection.update_properties)
    def update_properties(
        self,
        stream: str,
        properties: Mapping[str, str | None],
        *,
        expected: Mapping[str, str | None] = NO_PROPERTIES,
    ) -> None:
        """Set properties of a stream, and remove those that are None; others stay."""
        update = self._connection.update_properties(stream, properties, expected=expected)
        loop_thread().run(update)

    def streams(self) -> list[StreamInfo]:
        """Return all streams of the cluster, by id. Raises SbpError."""
        return loop_thread().run(self._connection.streams())

    @documented_as(AsyncConnection.consumer)
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
        assignment: Assignment | None = None,
    ) -> Consumer:
        """Return a consumer of streams, given by names and patterns of names such as `audit-*`."""
        return Consumer(
            self._connection.consumer(
                *streams,
                group=group,
                shared=shared,
                session_timeout_ms=session_timeout_ms,
                max_poll_interval_ms=max_poll_interval_ms,
                start=start,
                follow=follow,
                commit_interval_ms=commit_interval_ms,
                refresh_interval_ms=refresh_interval_ms,
                fetch_bytes=fetch_bytes,
                on_trimmed=on_trimmed,
                assignment=None if assignment is None else on_other_threads(assignment),
            )
        )

    @documented_as(AsyncConnection.producer)
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
    ) -> Producer:
        """Return a producer of records, a context manager that closes it."""
        return Producer(
            self._connection.producer(
                stream,
                id=id,
                batch_bytes=batch_bytes,
                batch_records=batch_records,
                linger_ms=linger_ms,
                buffer_bytes=buffer_bytes,
                compression=compression,
                timestamp_column=timestamp_column,
                on_delivery=on_delivery,
            )
        )

    def transaction(self, *streams: str) -> Transaction:
        """Return a transaction: records of these streams that become visible together or never."""
        return Transaction(self._connection.transaction(*streams))

    def close(self) -> None:
        """Close what was made here, the newest first, then the connections. Idempotent."""
        check_may_wait("close()")
        loop_thread().run(self._connection.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
