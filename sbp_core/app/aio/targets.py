"""The streams that records are sent to, for asyncio.

Only the placement driver is asked about a stream: a producer collects records for it while its
range server is down. How large its records may be is asked for when one comes that not every range
server accepts.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from sbp_core.app.rows import Target
from sbp_core.client import AsyncClient
from sbp_core.errors import RecordBatchError, UnsupportedError
from sbp_core.records import Compression, record_too_large


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
    schema = None
    with suppress(UnsupportedError):  # servers without typed streams
        versions = (await client.describe_schemas([stream_id], newest_only=True))[stream_id]
        schema = versions[-1].schema if versions else None
    return Target(
        stream, stream_id, schema, compression=compression, timestamp_column=timestamp_column
    )


async def enlarged(client: AsyncClient, target: Target, size_bytes: int) -> Target:
    """Return a target that accepts records of `size_bytes`, more than every server accepts.

    Raises RecordBatchError if the server of the stream does not, SbpError.
    """
    bytes_max = (await client.record_bytes_max([target.stream_id]))[target.stream_id]
    if size_bytes > bytes_max:
        raise RecordBatchError(f"the record has {record_too_large(size_bytes, bytes_max)}")
    return replace(target, record_bytes_max=bytes_max)
