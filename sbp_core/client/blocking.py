"""The blocking client: what it does beyond its asyncio source, see aio.py."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from sbp_core import limits
from sbp_core.client.connecting import Connecting
from sbp_core.client.fetches import fetching
from sbp_core.client.fetches.places import LocalReads, PlacedBatches, PlacedPiece
from sbp_core.client.io.blocking_runner import BlockingRunner
from sbp_core.client.io.local_log import CAN_READ, READ_ERRORS, read_pieces
from sbp_core.client.programs.calls import RetryPolicy
from sbp_core.client.socket_client import SocketClient
from sbp_core.client.types import FetchItem, FetchOutcome

_LOG: Final = logging.getLogger(__name__)


class Client(SocketClient):
    """A blocking client of the cluster whose placement driver is at `endpoint` ("host:port").

    Threads may share it. Every call has a deadline of `timeout_ms`; failed calls are tried again
    as `retry` says, where that is safe. All methods raise SbpError. With `reads_locally` large
    batches of range servers on this machine are read from their files, where these can be opened.
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
    ) -> None:
        super().__init__(
            endpoint, timeout_ms=timeout_ms, connecting=connecting, retry=retry, random=random
        )
        if reads_locally and CAN_READ:
            local = LocalReads(limits.LOCAL_READ_PAUSE_MS)
            self._context = replace(self._context, maybe_local=local)

    def fetch(
        self,
        items: Sequence[FetchItem],
        *,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        leaves_placed: bool = False,
    ) -> Iterator[FetchOutcome]:
        """Yield one outcome per item, as they come. Failures are outcomes with an error.

        Large batches in files of this machine are left there if the caller `leaves_placed` batches
        to `read_places`: LOCAL_READ_PLACES_BYTES_MAX of an item then, whatever it asks for.
        """
        program = fetching.fetch(
            self._context,
            items,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            leaves_placed=leaves_placed,
        )
        return BlockingRunner(self._pool).stream(program)

    def read_places(
        self, placed: PlacedBatches, *, piece_bytes: int = limits.BATCH_TARGET_BYTES
    ) -> Iterator[PlacedPiece]:
        """Yield batches that an outcome told the places of, about `piece_bytes` at a time.

        Ends early where they cannot be read: then they have to be fetched, and their server is not
        asked for places for a while.
        """
        try:
            yield from read_pieces(placed, piece_bytes)
        except READ_ERRORS as error:
            _LOG.debug("stream %d is read through its server: %s", placed.stream_id, error)
            if self._context.maybe_local is not None:
                self._context.maybe_local.on_failure(placed.endpoint, time.monotonic() * 1000)
