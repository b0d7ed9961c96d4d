"""The schemas of typed streams, which are asked for once in a while."""

from __future__ import annotations

import time
from typing import Final

from sbp_core.client.async_client import AsyncClient
from sbp_core.records import StreamSchema

_KEPT_SECONDS: Final = 5.0
_STREAMS_MAX: Final = 10_000


class Schemas:
    """The schemas of streams, by id."""

    def __init__(self) -> None:
        self._newest: dict[int, tuple[StreamSchema | None, float]] = {}

    async def newest(self, client: AsyncClient, stream_id: int) -> StreamSchema | None:
        """Return the newest schema of a stream, some seconds old at most; None if it has none."""
        now = time.monotonic()
        schema, found_at = self._newest.get(stream_id, (None, -_KEPT_SECONDS))
        if found_at <= now - _KEPT_SECONDS:
            versions = (await client.describe_schemas([stream_id], newest_only=True))[stream_id]
            schema = versions[-1].schema if versions else None
            if len(self._newest) >= _STREAMS_MAX:
                self._newest.clear()
            self._newest[stream_id] = schema, now
        return schema
