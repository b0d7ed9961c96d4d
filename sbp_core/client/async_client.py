"""The asyncio client. Most of its methods are operations, whose docstrings are in `operations`."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import wraps
from random import Random, SystemRandom
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from sbp_core import limits
from sbp_core.client.cluster_info import RangeServerInfo
from sbp_core.client.connecting import Connecting
from sbp_core.client.io.aio_transport import AsyncPool, is_own_endpoint
from sbp_core.client.operations import (
    appending,
    calls,
    cluster_state,
    consumer_groups,
    fetching,
    metadata,
    time_lookup,
    watching,
)
from sbp_core.client.operations import range_placement as placement
from sbp_core.client.operations import stream_bounds as bounds
from sbp_core.client.operations import stream_changes as changes
from sbp_core.client.operations import txn_decisions as txns
from sbp_core.client.operations.appending import AsyncAppender, OnAppended, OnFailed
from sbp_core.client.operations.calls import Context, RetryPolicy
from sbp_core.client.operations.numbering import Transaction, Writer
from sbp_core.client.operations.open_calls import Call
from sbp_core.client.operations.replicas import Replicas
from sbp_core.client.operations.router import PlacementDrivers, Router
from sbp_core.client.types import AppendItem, AppendOutcome, FetchItem, FetchOutcome, StoreCommit
from sbp_core.wire.checksum import Buffer
from sbp_core.wire.frame import Frame
from sbp_core.wire.opcodes import Opcode

P = ParamSpec("P")
T = TypeVar("T")


def _operation(
    operation: Callable[Concatenate[Context, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """Return a method that runs an operation, over the connections of the client."""

    @wraps(operation)
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await operation(self._context, *args, **kwargs)

    signature = inspect.signature(operation)
    _, *rest = signature.parameters.values()
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY), *rest]
    method.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return method


class AsyncClient:
    """An asyncio client of the cluster whose placement driver is at `endpoint` ("host:port").

    Several placement drivers of one cluster are separated by commas. The client passes over a
    placement driver that is down, and follows to the leader that another one names.

    The tasks of one loop may share a client. Every call has a deadline of `timeout_ms`; failed
    calls are retried as `retry` says, where that is safe. All methods raise SbpError.
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
        self._context = context
        self._pool = pool

    @property
    def endpoint(self) -> str:
        """The placement driver that the next call asks, "host:port"."""
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

        For operations that the client lacks. `header` is the opcode's request table (module
        `sbp_core.wire.headers`). Raises SbpError if no complete answer arrives, or if the answer is
        a system error. Check the status inside the answer yourself.
        """
        deadline_ms = self._within(timeout_ms).timeout_ms
        return await self.exchange(Call(endpoint, opcode, header, deadline_ms, tuple(payload)))

    async def exchange(self, call: Call) -> list[Frame]:
        """Make one call as `call` does; it may need a feature of the connection.

        Raises UnsupportedError, and sends nothing, if the server did not agree to the feature.
        """
        return await calls.exchange(self._context.open_calls, call)

    async def ask(
        self, opcode: Opcode, header: object, table: type[T], *, timeout_ms: int | None = None
    ) -> list[T]:
        """Ask the leading placement driver; return the headers of its answer.

        `header` is the opcode's request table, `table` its response table. The call is retried,
        also after a timeout, so the request must be repeatable. Raises SbpError, also for an error
        status of the answer.
        """
        return await calls.ask(self._within(timeout_ms), opcode, header, table)

    async def range_servers(self) -> list[RangeServerInfo]:
        """Return all range servers that the cluster ever had, in the order of their ids."""
        return (await self.describe_cluster()).range_servers

    @property
    def last_commit(self) -> StoreCommit | None:
        """The last commit of the metadata that a placement driver reported, or None.

        Answers about revisions and ranges report it. Keep it to detect a restored backup later.
        """
        return self._context.router.last_commit

    placement_drivers = _operation(cluster_state.placement_drivers)
    describe_cluster = _operation(cluster_state.describe_cluster)
    explain_missing = _operation(cluster_state.explain_missing)
    drain_servers = _operation(cluster_state.drain_servers)
    list_grants = _operation(cluster_state.list_grants)
    change_grants = _operation(cluster_state.change_grants)
    ping = _operation(calls.ping)

    describe_streams = _operation(metadata.describe_streams)
    find_streams = _operation(metadata.find_streams)
    list_streams = _operation(metadata.list_streams)
    describe_properties = _operation(metadata.describe_properties)
    create_streams = _operation(metadata.create_streams)
    delete_streams = _operation(metadata.delete_streams)
    update_streams = _operation(changes.update_streams)
    trim_streams = _operation(changes.trim_streams)
    seal_streams = _operation(changes.seal_streams)
    record_bytes_max = _operation(metadata.record_bytes_max)
    describe_schemas = _operation(changes.describe_schemas)
    register_schema = _operation(changes.register_schema)
    evolve_schema = _operation(changes.evolve_schema)

    metadata_changes = _operation(placement.metadata_changes)
    has_commit = _operation(placement.has_commit)
    list_ranges = _operation(placement.list_ranges)
    stream_bounds = _operation(bounds.stream_bounds)
    watch_bounds = _operation(watching.watch_bounds)
    reach = _operation(watching.reach)
    stored_bytes = _operation(bounds.stored_bytes)
    range_bytes = _operation(bounds.range_bytes)
    probe = _operation(watching.probe)
    lookup_offsets = _operation(time_lookup.lookup_offsets)
    append_times = _operation(time_lookup.append_times)

    commit_txn = _operation(txns.commit_txn)
    abort_txns = _operation(txns.abort_txns)
    give_up_txn = _operation(txns.give_up_txn)
    describe_txns = _operation(txns.describe_txns)

    commit_cursors = _operation(consumer_groups.commit_cursors)
    describe_cursors = _operation(consumer_groups.describe_cursors)
    list_groups = _operation(consumer_groups.list_groups)
    join_group = _operation(consumer_groups.join_group)
    group_heartbeat = _operation(consumer_groups.group_heartbeat)
    leave_group = _operation(consumer_groups.leave_group)
    describe_group = _operation(consumer_groups.describe_group)

    async def append(
        self,
        items: Sequence[AppendItem],
        *,
        retry_unknown: bool = False,
        writer: Writer | None = None,
        transaction: Transaction | None = None,
    ) -> list[AppendOutcome]:
        """Append encoded batches, in order within a stream; return an outcome for each.

        A call whose answer is lost is not repeated, because its batches may be appended: the error
        has the outcome UNKNOWN. To repeat such calls, pass a `writer`: each batch is appended
        exactly once; or `retry_unknown`: batches may be appended twice; or a `transaction`: batches
        are staged with the base offset -1, and not visible before the commit. Raises
        UnsupportedError for a writer or transaction if a server does not know the extension.

        Raises the error of the first batch that failed; its `outcome` says whether other batches
        may be appended. Raises ConfigurationError, and appends nothing, for a batch that is too
        large.
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

        The appender has the keywords of `append`, and two callbacks, which the methods of the
        appender call. `on_appended` gets the number of a batch, counted from 0 in the order given,
        and its outcome. A failed batch ends the appender; with `on_failed` it ends its stream only:
        `on_failed` gets the stream's id and the error, and later batches for the stream raise
        ConfigurationError. All other batches are appended once `flush` or `finish` returns. With a
        `writer` or a `transaction` several frames of a stream are in flight, else one. A writer or
        transaction is free again when the appender is finished or closed.
        """
        kind = appending.AppendKind(retry_unknown, writer, transaction)
        return AsyncAppender(self._context, kind, on_appended, on_failed)

    def fetch(
        self, items: Sequence[FetchItem], *, max_wait_ms: int = 0, min_bytes: int = 1
    ) -> AsyncGenerator[FetchOutcome]:
        """Yield one outcome per item, in the order of the answers. Failed items have an error."""
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
