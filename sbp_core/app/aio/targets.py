"""The streams that records are sent to, for asyncio."""

from __future__ import annotations

from contextlib import suppress

from sbp_core.app.rows import Target
from sbp_core.client import AsyncClient
from sbp_core.errors import UnsupportedError
from sbp_core.records import Compression


async def find_target(
    client: AsyncClient,
    stream: str,
    *,
    compression: Compression = "none",
    timestamp_column: str | None = None,
) -> Target:
    """Return what has to be known of a stream to encode records for it. Raises SbpError."""
    (info,) = await client.describe_streams([stream])
    stream_id = info.stream_id
    bytes_max = (await client.record_bytes_max([stream_id]))[stream_id]
    schema = None
    with suppress(UnsupportedError):  # servers without typed streams
        versions = (await client.describe_schemas([stream_id], newest_only=True))[stream_id]
        schema = versions[-1].schema if versions else None
    return Target(stream, stream_id, schema, bytes_max, compression, timestamp_column)
