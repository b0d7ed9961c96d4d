"""The blocking client: what it does beyond its asyncio source, see aio.py."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from contextlib import closing

from sbp_core.client.io.blocking_transport import BlockingRunner
from sbp_core.client.programs import fetching
from sbp_core.client.socket_client import SocketClient
from sbp_core.client.types import FetchItem, FetchOutcome, SchemaVersion
from sbp_core.errors import UnsupportedError


class Client(SocketClient):
    """A blocking client of the cluster whose placement driver is at `endpoint` ("host:port").

    Threads may share it. Every call has a deadline of `timeout_ms`; failed calls are retried
    as `retry` says, where that is safe. All methods raise SbpError.
    """

    def fetch(
        self,
        items: Sequence[FetchItem],
        *,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
    ) -> Generator[FetchOutcome, None, None]:
        """Yield one outcome per item, as they come. Failures are outcomes with an error."""
        program = fetching.fetch(self._context, items, max_wait_ms=max_wait_ms, min_bytes=min_bytes)
        with closing(BlockingRunner(self._pool).stream(program)) as outcomes:
            yield from outcomes


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
