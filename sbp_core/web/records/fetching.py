"""Positions in a stream, and the records from there, for requests."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from sbp_core import limits
from sbp_core.client.aio import AsyncClient
from sbp_core.client.stream_position import PositionKind, find_offset, parse_position
from sbp_core.client.types import FetchItem, Reach
from sbp_core.errors import DeadlineExceededError, RecordBatchError
from sbp_core.records.stream_decoder import Records, StreamDecoder

FETCH_WAIT_MS: Final = 10_000
REACH_MS: Final = 3_000
"""How long range servers are waited for that do not answer."""


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

    An end may be beyond the tail, which is returned then. Raises ConfigurationError for what is no
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
    client: AsyncClient, decoder: StreamDecoder, stream_id: int, end: int | None
) -> list[Records]:
    """Return the next records, about a MiB as they are stored; none if there are none in time.

    Raises SbpError.
    """
    item = FetchItem(stream_id, decoder.next_offset, end, limits.FETCH_BATCH_BYTES_DEFAULT)
    found: list[Records] = []
    async for outcome in client.fetch([item], max_wait_ms=FETCH_WAIT_MS):
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
