"""Records on their way out: positions, the records from there, and the forms of answers.

A tail is server-sent events, until the caller leaves: each event is a record, and its id
the offset. A browser that has lost the connection connects again with the id of the last event, and
goes on behind it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from sbp_core import limits
from sbp_core.client.async_client import AsyncClient
from sbp_core.client.types import FetchItem, Reach, StreamInfo
from sbp_core.errors import DeadlineExceededError, RecordBatchError, SbpError
from sbp_core.operating.stream_position import PositionKind, find_offset, parse_position
from sbp_core.records.evolution import map_columns
from sbp_core.records.stream_decoder import Records, StreamDecoder
from sbp_core.web.problems import problem_of, refusal

FETCH_WAIT_MS: Final = 10_000
REACH_MS: Final = 3_000
"""How long range servers are waited for that do not answer."""
_RECORDS_AT_ONCE: Final = 512
"""Records that are described at a time; then other requests have a turn."""

RECORD_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
"""Headers of answers with records: nothing keeps the records, or takes them for a page."""
_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Span:
    """The offsets [start, end) of a stream."""

    start: int
    end: int


async def find_reach(client: AsyncClient, stream_id: int) -> Reach:
    """Return how far a stream can be read. Raises SbpError if its tail is not known."""
    at = (await client.reach({stream_id: None}, timeout_ms=REACH_MS, spared={}))[stream_id]
    if at.next_offset is None:
        raise at.unavailable[-1].error
    return at


def tail_of(at: Reach) -> int:
    """Return the tail of a stream that `find_reach` has found."""
    assert at.next_offset is not None
    return at.next_offset


async def resolve(client: AsyncClient, at: Reach, text: str, *, is_end: bool = False) -> int:
    """Return the offset of a position such as latest, -10 or a time, in the stream of `at`.

    An end beyond the tail becomes the tail. Raises ConfigurationError for what is no
    position, OffsetOutOfRangeError for an offset that the stream does not have.
    """
    position = parse_position(text)
    if is_end and position.kind is PositionKind.OFFSET:
        return min(position.number, tail_of(at))
    found = None
    if position.kind is PositionKind.TIME:
        offsets = await client.lookup_offsets({at.stream_id: position.number})
        found = offsets.get(at.stream_id)
    return find_offset(position, at, found)


async def wait_for_records(client: AsyncClient, stream_id: int, offset: int, wait_ms: int) -> None:
    """Return when there is a record at an offset, or when the time is over. Raises SbpError."""
    item = FetchItem(stream_id, offset, None, 1)
    async for outcome in client.fetch([item], max_wait_ms=wait_ms):
        if outcome.error is not None:
            raise outcome.error


async def fetch_records(
    client: AsyncClient,
    decoder: StreamDecoder,
    stream_id: int,
    end: int | None,
    *,
    wait_ms: int = FETCH_WAIT_MS,
) -> list[Records]:
    """Return the next records, about a MiB as they are stored; none if there are none in time.

    Raises SbpError.
    """
    item = FetchItem(stream_id, decoder.next_offset, end, limits.FETCH_BATCH_BYTES_DEFAULT)
    found: list[Records] = []
    async for outcome in client.fetch([item], max_wait_ms=wait_ms):
        if outcome.error is not None:
            raise outcome.error
        for envelope in decoder.wanted(outcome.payload):
            if decoder.lacks_schema(envelope):
                versions = await client.describe_schemas([stream_id])
                decoder.learn(each.schema for each in versions[stream_id])
            try:
                found.append(decoder.decode(envelope))
            except RecordBatchError:
                if found:
                    return found  # the next fetch begins with the damaged batch
                raise
    return found


async def read_span(
    client: AsyncClient, stream_id: int, span: Span
) -> AsyncGenerator[Records, None]:
    """Yield the records of a span, fetched as they are asked for. Raises SbpError."""
    decoder = StreamDecoder(stream_id, span.start, span.end)
    while not decoder.is_done:
        found = await fetch_records(client, decoder, stream_id, span.end)
        if not found:
            raise DeadlineExceededError(
                f"no records at offset {decoder.next_offset} within {FETCH_WAIT_MS} ms, although"
                f" the stream has some up to {span.end}: try again"
            )
        for records in found:
            yield records


def pieces(records: Records) -> Iterator[Records]:
    """Yield the records, some at a time."""
    for start in range(0, records.rows.num_rows, _RECORDS_AT_ONCE):
        rows = records.rows.slice(start, _RECORDS_AT_ONCE)
        yield Records(records.base_offset + start, rows, records.is_typed)


async def json_lines(
    found: AsyncGenerator[Records, None], stream: str
) -> AsyncGenerator[bytes, None]:
    """Yield lines of JSON, one for each record."""
    async with aclosing(found):
        async for records in found:
            for piece in pieces(records):
                yield b"".join(_encode(each) + b"\n" for each in piece.describe(stream))
                await asyncio.sleep(0)


async def arrow_stream(
    found: AsyncGenerator[Records, None], schema: pa.Schema
) -> AsyncGenerator[bytes, None]:
    """Yield a stream in Arrow's IPC format, in one schema. Raises SchemaError.

    Rows of older versions of a stream's schema get the columns that they lack, as nulls.
    """
    sink = _Sink()
    writer = pa.ipc.new_stream(sink, schema)
    async with aclosing(found):
        async for records in found:
            writer.write_batch(map_columns(records.rows, schema))
            yield sink.take()
            await asyncio.sleep(0)
    writer.close()
    yield sink.take()


def events(records: Records, stream: str) -> bytes:
    """Return records as server-sent events, whose ids are the offsets."""
    described = enumerate(records.describe(stream), records.base_offset)
    return b"".join(b"id: %d\ndata: %b\n\n" % (offset, _encode(each)) for offset, each in described)


class _Sink:
    """A file that keeps what is written to it until it is taken."""

    closed = False

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._written.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Do nothing: all is there."""

    def take(self) -> bytes:
        data = b"".join(self._written)
        self._written = []
        return data


async def behind(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    """Yield a piece that was asked for already, and the ones behind it."""
    async with aclosing(rest):
        yield first
        async for piece in rest:
            yield piece


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
