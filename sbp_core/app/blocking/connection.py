"""A connection to a cluster, by the names of its streams, for threads."""

from __future__ import annotations

from typing import Final, Self

from sbp_core import group_limits, limits
from sbp_core.app import defaults
from sbp_core.app.aio import connection as aio
from sbp_core.app.aio.connection import AsyncConnection, client_for
from sbp_core.app.aio.fetching import OnTrimmed
from sbp_core.app.blocking.consumer import Assignment, Consumer, RecordIterator, on_other_threads
from sbp_core.app.blocking.producer import Producer, Transaction
from sbp_core.app.delivery import check_may_wait
from sbp_core.app.gates import OnThreads
from sbp_core.app.positions import Start
from sbp_core.app.process import Unsendable
from sbp_core.client import Client, Credentials, Tls
from sbp_core.client.facades import blocking, documented_as, making
from sbp_core.client.io.loop_thread import loop_thread


@documented_as(aio.connect)
def connect(
    endpoint: str,
    *,
    timeout_ms: int = limits.REQUEST_TIMEOUT_MS,
    retry_ms: float = limits.OUTAGE_MS,
    tls: Tls | None = None,
    credentials: Credentials | None = None,
) -> Connection:
    """Return a connection to the cluster at `endpoint`, a context manager that closes it."""
    client = client_for(endpoint, timeout_ms, retry_ms, tls, credentials)
    return Connection(Client.over(client))


class Connection(Unsendable):
    """Producers, consumers and transactions over one client. Made by `connect`.

    Threads may share it; a producer too, but each consumer is for one thread.
    `client` is the client below it, for everything that is not here.
    """

    def __init__(self, client: Client) -> None:
        self.client: Final = client
        self.on_loop = AsyncConnection(client.on_loop, hand=RecordIterator, callers=OnThreads)

    create_stream = blocking(AsyncConnection.create_stream)
    delete_stream = blocking(AsyncConnection.delete_stream)
    properties = blocking(AsyncConnection.properties)
    update_properties = blocking(AsyncConnection.update_properties)
    streams = blocking(AsyncConnection.streams)
    producer = making(AsyncConnection.producer, Producer)
    transaction = making(AsyncConnection.transaction, Transaction)

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
            self.on_loop.consumer(
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

    def close(self) -> None:
        """Close what was made here, the newest first, then the connections. Idempotent."""
        check_may_wait("close()")
        loop_thread().run(self.on_loop.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
