"""The tail of a stream as server-sent events, until the caller leaves.

Each event is a record, and its id the offset. A browser that has lost the connection connects again
with the id of the last event, and goes on behind it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from typing import Final

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from sbp_core.client.aio import AsyncClient
from sbp_core.client.types import StreamInfo
from sbp_core.errors import SbpError
from sbp_core.records.stream_decoder import Records, StreamDecoder
from sbp_core.web.problems import problem_of, refusal
from sbp_core.web.records.fetching import RECORD_HEADERS, events, fetch_records, pieces

_LOG: Final = logging.getLogger(__name__)

EVENTS: Final = "text/event-stream"
TAILS_MAX: Final = 256
_RETRY_MS: Final = 2_000
"""When browsers connect again."""


class Tails:
    """Answers that follow streams: TAILS_MAX at most, until `stopping` is set."""

    def __init__(self, stopping: asyncio.Event, count_max: int = TAILS_MAX) -> None:
        self._stopping = stopping
        self._count_max = count_max
        self.count = 0
        """Answers that follow a stream now."""

    def follow(self, client: AsyncClient, info: StreamInfo, start: int) -> StreamingResponse:
        """Return the answer with the records from `start` on. Raises ProblemError: 429."""
        if self.count >= self._count_max:
            raise refusal(
                *(429, "too-many-tails"),
                f"{self.count} requests follow streams, as many as can: retry later",
                Retry_After="5",
            )
        return _Following(self, self._events(client, info, start))

    async def _events(
        self, client: AsyncClient, info: StreamInfo, start: int
    ) -> AsyncGenerator[bytes, None]:
        yield b"retry: %d\n\n" % _RETRY_MS
        decoder = StreamDecoder(info.stream_id, start)
        try:
            while True:
                found = await self._maybe_next(client, decoder, info.stream_id)
                if found is None:
                    return
                if not found:
                    yield b": nothing new\n\n"  # keeps the connection alive
                for records in found:
                    for piece in pieces(records):
                        yield events(piece, info.label)
                        await asyncio.sleep(0)
        except SbpError as error:
            _LOG.info("tail ended stream=%s offset=%d: %s", info.label, decoder.next_offset, error)
            problem = json.dumps(problem_of(error).members())
            yield f"event: problem\ndata: {problem}\n\n".encode()

    async def _maybe_next(
        self, client: AsyncClient, decoder: StreamDecoder, stream_id: int
    ) -> list[Records] | None:
        """Return the next records, none if there are none in time; None when it is to stop."""
        fetching = asyncio.create_task(fetch_records(client, decoder, stream_id, None))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({fetching, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return fetching.result() if fetching.done() else None
        finally:
            fetching.cancel()
            stopping.cancel()


class _Following(StreamingResponse):
    """An answer that is counted while it is sent."""

    def __init__(self, tails: Tails, content: AsyncGenerator[bytes, None]) -> None:
        super().__init__(content, headers=RECORD_HEADERS, media_type=EVENTS)
        self._tails = tails

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._tails.count += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._tails.count -= 1
