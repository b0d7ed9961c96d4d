"""Records in the forms that answers have: lines of JSON, an Arrow stream, server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from typing import Final

import msgspec
import pyarrow as pa

from sbp_core.records.evolution import map_columns
from sbp_core.records.stream_decoder import Records

_RECORDS_AT_ONCE: Final = 512
"""Records that are described at a time; then other requests have a turn."""

RECORD_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
"""Headers of answers with records: nothing keeps the records, or takes them for a page."""

_encode: Final = msgspec.json.Encoder().encode


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
