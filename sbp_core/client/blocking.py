"""The blocking client: what it does beyond its asyncio source, see aio.py."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

from sbp_core import limits
from sbp_core.client.io.blocking_transport import BlockingRunner
from sbp_core.client.io.local_log import CAN_READ, LocalLogs, configured_folders
from sbp_core.client.programs import fetching
from sbp_core.client.programs.calls import RetryPolicy
from sbp_core.client.socket_client import SocketClient
from sbp_core.client.types import (
    Connecting,
    FetchItem,
    FetchOutcome,
    ReceivedBatches,
    SchemaVersion,
)
from sbp_core.errors import DeadlineExceededError, SbpError, UnsupportedError


class Client(SocketClient):
    """A blocking client of the cluster whose placement driver is at `endpoint` ("host:port").

    Threads may share it. Every call has a deadline of `timeout_ms`; failed calls are retried
    as `retry` says, where that is safe. All methods raise SbpError. With `reads_locally` large
    batches of range servers on this machine are read from their files: of servers of the same user,
    or of those whose folder is below one of `local_folders` (SBP_LOCAL_FOLDERS), if there are any.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        timeout_ms: int = limits.REQUEST_TIMEOUT_MS,
        connecting: Connecting | None = None,
        retry: RetryPolicy | None = None,
        random: Random | None = None,
        reads_locally: bool = True,
        local_folders: Sequence[Path | str] | None = None,
    ) -> None:
        super().__init__(
            endpoint, timeout_ms=timeout_ms, connecting=connecting, retry=retry, random=random
        )
        self._logs: LocalLogs | None = None
        if reads_locally and CAN_READ:
            self._logs = LocalLogs(
                lambda: self._pool.maybe_cluster_id(self._context.drivers.endpoint),
                self._fetch_bytes,
                pause_ms=limits.LOCAL_READ_PAUSE_MS,
                folders=configured_folders(local_folders),
            )

    def fetch(
        self,
        items: Sequence[FetchItem],
        *,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        leaves_batches: bool = False,
    ) -> Generator[FetchOutcome, None, None]:
        """Yield one outcome per item, as they come. Failures are outcomes with an error.

        If the caller `leaves_batches`, large ones in files of this machine are not read before it
        draws their pieces: LOCAL_READ_PLACES_BYTES_MAX of an item then, whatever it asks for.
        """
        program = fetching.fetch(self._context, items, max_wait_ms=max_wait_ms, min_bytes=min_bytes)
        with closing(BlockingRunner(self._pool, self._logs).stream(program)) as outcomes:
            for outcome in outcomes:
                is_here = leaves_batches or isinstance(outcome.batches, ReceivedBatches)
                yield outcome if is_here else _read(outcome, items[outcome.item_index])

    def _fetch_bytes(self, item: FetchItem) -> ReceivedBatches:
        """Fetch batches that a server has, as bytes."""
        wait_ms = min(self._context.timeout_ms, limits.FETCH_WAIT_MS_MAX)
        program = fetching.fetch(self._context, [item], max_wait_ms=wait_ms, min_bytes=1)
        (outcome,) = BlockingRunner(self._pool).stream(program)
        if outcome.error is not None:
            raise outcome.error
        if not outcome.payload:
            raise DeadlineExceededError(
                f"the server of stream {item.stream_id} has sent nothing from offset"
                f" {item.fetch_offset} for {wait_ms} ms, although it named batches up to"
                f" {item.end_offset}; has it lost what it had acknowledged?"
            )
        return ReceivedBatches(outcome.payload, outcome.next_offset)


def newest_schemas(
    client: Client, stream_ids: Collection[int], *, is_required: bool = False
) -> dict[int, SchemaVersion]:
    """Return the newest schema of each stream that has one, by id.

    If the placement driver knows no schemas, no stream has one; or that is an UnsupportedError, if
    they are required. Raises SbpError, NotFoundError for a stream that does not exist.
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


def _read(outcome: FetchOutcome, item: FetchItem) -> FetchOutcome:
    """Return an outcome with its first batches in memory, as many as were asked for."""
    try:
        with closing(outcome.batches.pieces(min(item.max_bytes, limits.BATCH_BYTES_MAX))) as pieces:
            return replace(outcome, batches=next(pieces))
    except SbpError as error:
        nothing = ReceivedBatches(memoryview(b""), item.fetch_offset)
        return replace(outcome, batches=nothing, error=error)
