"""The blocking client: a facade of the asyncio client, on the event loop of facades.py."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Generator, Sequence
from random import Random
from typing import Any, Self

from sbp_core import limits
from sbp_core.client.async_client import AsyncClient
from sbp_core.client.connecting import Connecting
from sbp_core.client.facades import Callbacks, blocking, documented_as, internal, loop_thread
from sbp_core.client.operations.appending import AsyncAppender, OnAppended, OnFailed
from sbp_core.client.operations.calls import RetryPolicy
from sbp_core.client.operations.numbering import Transaction, Writer
from sbp_core.client.types import (
    AppendItem,
    FetchItem,
    FetchOutcome,
    SchemaVersion,
    StoreCommit,
    StreamInfo,
    StreamSpec,
)
from sbp_core.errors import UnsupportedError


class Appender:
    """Appends batches one group after the other, while earlier ones are on their way.

    Made by `Client.appender`; for one thread. The batches of one stream are appended in order::

        with client.appender(writer=Writer()) as appender:
            for items in groups:
                appender.append(items)
            appender.finish()

    Leaving the block without `finish` gives up the batches that are not appended. The appender is
    over then, as after `finish` and after an error: `append` and `finish` raise ConfigurationError,
    and the outcome of the batches in `unacknowledged` is not known.
    """

    def __init__(self, appender: AsyncAppender, callbacks: Callbacks) -> None:
        self._appender = appender
        self._callbacks = callbacks

    @property
    def unacknowledged(self) -> list[AppendItem]:
        """The batches from the first one of each stream on that is not known to be appended."""
        return self._appender.unacknowledged

    def append(self, items: Sequence[AppendItem]) -> None:
        """Send batches; return when all are sent, and most are answered. Raises SbpError."""
        self._run(self._appender.append(items))

    def flush(self) -> None:
        """Return when all batches are appended; more batches may follow. Raises SbpError."""
        self._run(self._appender.flush())

    def finish(self) -> None:
        """Return when all batches are appended, and end the appender. Raises SbpError."""
        self._run(self._appender.finish())

    def close(self) -> None:
        """Give up the batches that are not appended. Idempotent."""
        self._run(self._appender.close())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        loop_thread().run(work, callbacks=self._callbacks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client:
    """A blocking client of the cluster whose placement driver is at `endpoint` ("host:port").

    Threads may share a client, and the child of a fork may go on with it. Every call has a deadline
    of `timeout_ms`; failed calls are retried as `retry` says, where that is safe. All methods raise
    SbpError. AsyncClient has the same methods as coroutines.
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
        self.on_loop = AsyncClient(
            endpoint, timeout_ms=timeout_ms, connecting=connecting, retry=retry, random=random
        )
        """The client that does the work, on the loop of `loop_thread`."""

    @classmethod
    @internal
    def over(cls, client: AsyncClient) -> Self:
        """Return a blocking client over an asyncio client that only the loop thread uses."""
        made = cls.__new__(cls)
        made.on_loop = client
        return made

    @property
    def endpoint(self) -> str:
        """The placement driver that the next call asks, "host:port"."""
        return self.on_loop.endpoint

    @property
    def last_commit(self) -> StoreCommit | None:
        """The last commit of the metadata that was reported; see AsyncClient."""
        return self.on_loop.last_commit

    call = blocking(AsyncClient.call)
    exchange = blocking(AsyncClient.exchange)
    ask = blocking(AsyncClient.ask)
    ping = blocking(AsyncClient.ping)
    probe = blocking(AsyncClient.probe)

    placement_drivers = blocking(AsyncClient.placement_drivers)
    range_servers = blocking(AsyncClient.range_servers)
    describe_cluster = blocking(AsyncClient.describe_cluster)
    explain_missing = blocking(AsyncClient.explain_missing)
    drain_servers = blocking(AsyncClient.drain_servers)
    list_grants = blocking(AsyncClient.list_grants)
    change_grants = blocking(AsyncClient.change_grants)

    describe_streams = blocking(AsyncClient.describe_streams)
    find_streams = blocking(AsyncClient.find_streams)
    list_streams = blocking(AsyncClient.list_streams)
    delete_streams = blocking(AsyncClient.delete_streams)
    update_streams = blocking(AsyncClient.update_streams)
    describe_properties = blocking(AsyncClient.describe_properties)
    trim_streams = blocking(AsyncClient.trim_streams)
    seal_streams = blocking(AsyncClient.seal_streams)
    describe_schemas = blocking(AsyncClient.describe_schemas)
    register_schema = blocking(AsyncClient.register_schema)
    evolve_schema = blocking(AsyncClient.evolve_schema)
    metadata_changes = blocking(AsyncClient.metadata_changes)
    record_bytes_max = blocking(AsyncClient.record_bytes_max)
    has_commit = blocking(AsyncClient.has_commit)

    list_ranges = blocking(AsyncClient.list_ranges)
    stream_bounds = blocking(AsyncClient.stream_bounds)
    watch_bounds = blocking(AsyncClient.watch_bounds)
    reach = blocking(AsyncClient.reach)
    stored_bytes = blocking(AsyncClient.stored_bytes)
    range_bytes = blocking(AsyncClient.range_bytes)
    lookup_offsets = blocking(AsyncClient.lookup_offsets)
    append_times = blocking(AsyncClient.append_times)

    append = blocking(AsyncClient.append)
    commit_txn = blocking(AsyncClient.commit_txn)
    abort_txns = blocking(AsyncClient.abort_txns)
    give_up_txn = blocking(AsyncClient.give_up_txn)
    describe_txns = blocking(AsyncClient.describe_txns)

    commit_cursors = blocking(AsyncClient.commit_cursors)
    describe_cursors = blocking(AsyncClient.describe_cursors)
    list_groups = blocking(AsyncClient.list_groups)
    join_group = blocking(AsyncClient.join_group)
    group_heartbeat = blocking(AsyncClient.group_heartbeat)
    leave_group = blocking(AsyncClient.leave_group)
    describe_group = blocking(AsyncClient.describe_group)

    close = blocking(AsyncClient.close)

    @documented_as(AsyncClient.create_streams)
    def create_streams(
        self,
        specs: Sequence[StreamSpec],
        *,
        on_created: Callable[[StreamInfo], None] | None = None,
    ) -> list[StreamInfo]:
        """Create streams; return them in the order of `specs`."""
        callbacks = Callbacks()
        call_back = None if on_created is None else callbacks.of(on_created)
        work = self.on_loop.create_streams(specs, on_created=call_back)
        return loop_thread().run(work, callbacks=callbacks)

    @documented_as(AsyncClient.appender)
    def appender(
        self,
        *,
        retry_unknown: bool = False,
        writer: Writer | None = None,
        transaction: Transaction | None = None,
        on_appended: OnAppended | None = None,
        on_failed: OnFailed | None = None,
    ) -> Appender:
        """Return an appender, which sends batches while earlier ones wait for their answers."""
        callbacks = Callbacks()
        appender = self.on_loop.appender(
            retry_unknown=retry_unknown,
            writer=writer,
            transaction=transaction,
            on_appended=None if on_appended is None else callbacks.of(on_appended),
            on_failed=None if on_failed is None else callbacks.of(on_failed),
        )
        return Appender(appender, callbacks)

    @documented_as(AsyncClient.fetch)
    def fetch(
        self,
        items: Sequence[FetchItem],
        *,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
    ) -> Generator[FetchOutcome, None, None]:
        """Yield one outcome per item, in the order of the answers. Failed items have an error."""
        outcomes = self.on_loop.fetch(items, max_wait_ms=max_wait_ms, min_bytes=min_bytes)
        return loop_thread().iterate(outcomes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def newest_schemas(
    client: Client, stream_ids: Collection[int], *, is_required: bool = False
) -> dict[int, SchemaVersion]:
    """Return the newest schema of each stream that has one, by id.

    If the placement driver knows no schemas, no stream has one; with `is_required` that raises
    UnsupportedError. Raises SbpError, NotFoundError for a stream that does not exist.
    """
    if not stream_ids:
        return {}
    try:
        found = client.describe_schemas(list(stream_ids), newest_only=True)
    except UnsupportedError:
        if is_required:
            raise
        return {}
    return {stream_id: versions[-1] for stream_id, versions in found.items() if versions}
