"""All streams of a cluster whose property `lake.table` names a table."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pyiceberg.catalog import Catalog

from sbp_core.client import AsyncClient
from sbp_core.client.types import StreamInfo
from sbp_core.errors import SbpError
from sbp_core.lake import TABLE_PROPERTY
from sbp_core.lake.landing import Landing, LandingSettings
from sbp_core.lake.table import TableState

_LOG: Final = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 10.0
"""Pause between looks at the streams."""
_WORKERS: Final = 4


async def landed_streams(client: AsyncClient) -> dict[StreamInfo, str]:
    """Return the streams that are to land, each with the name of its table. Raises SbpError."""
    streams = await client.list_streams()
    properties = await client.describe_properties([each.stream_id for each in streams])
    return {
        each: properties[each.stream_id][TABLE_PROPERTY]
        for each in streams
        if TABLE_PROPERTY in properties.get(each.stream_id, ())
    }


class Lake:
    """Lands streams, each in a task of its own; looks for new ones from time to time."""

    def __init__(self, client: AsyncClient, catalog: Catalog, settings: LandingSettings) -> None:
        self._client = client
        self._catalog = catalog
        self._settings = settings
        self._workers = ThreadPoolExecutor(_WORKERS, "sbp-lake")
        self._landings: dict[tuple[StreamInfo, str], tuple[Landing, asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """Land streams until this is cancelled. A commit in progress is finished."""
        try:
            while True:
                try:
                    self._follow(await landed_streams(self._client))
                except SbpError as error:
                    _LOG.warning("streams not listed: %s", error)
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            self._follow({})
            await asyncio.to_thread(self._workers.shutdown)

    def states(self) -> list[TableState]:
        """Return how far each stream has landed."""
        return [landing.state for landing, _ in self._landings.values()]

    def _follow(self, wanted: Mapping[StreamInfo, str]) -> None:
        for key in self._landings.keys() - set(wanted.items()):
            _, task = self._landings.pop(key)
            task.cancel()
        for stream, table in wanted.items():
            if (stream, table) not in self._landings:
                landing = Landing(
                    *(self._client, self._catalog, stream, table),
                    settings=self._settings,
                    workers=self._workers,
                )
                self._landings[stream, table] = landing, asyncio.create_task(landing.run())
