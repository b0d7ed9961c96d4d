"""All streams of a cluster whose property `lake.table` names a table."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from pyiceberg.catalog import Catalog

from sbp_core.client import AsyncClient
from sbp_core.client.types import StreamInfo
from sbp_core.errors import SbpError
from sbp_core.lake import TABLE_PROPERTY, TRIM_PROPERTY
from sbp_core.lake.landing import Landing, LandingSettings
from sbp_core.lake.table import TableState

_LOG: Final = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 10.0
"""Pause between looks at the streams."""
_WORKERS: Final = 4


class Target(NamedTuple):
    """A stream that is to land, the name of its table, and the age in ms at which it is trimmed."""

    stream: StreamInfo
    table: str
    trim_after: str | None


async def find_targets(client: AsyncClient) -> list[Target]:
    """Return the streams whose properties say that they are to land. Raises SbpError."""
    streams = await client.list_streams()
    properties = await client.describe_properties([each.stream_id for each in streams])
    targets = []
    for stream in streams:
        own = properties.get(stream.stream_id, {})
        if TABLE_PROPERTY in own:
            targets.append(Target(stream, own[TABLE_PROPERTY], own.get(TRIM_PROPERTY)))
    return targets


class Lake:
    """Lands streams, each in a task of its own; looks for new ones from time to time."""

    def __init__(self, client: AsyncClient, catalog: Catalog, settings: LandingSettings) -> None:
        self._client = client
        self._catalog = catalog
        self._settings = settings
        self._workers = ThreadPoolExecutor(_WORKERS, "sbp-lake")
        self._landings: dict[Target, tuple[Landing, asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """Land streams until this is cancelled. A commit in progress is finished."""
        try:
            while True:
                try:
                    self._follow(await find_targets(self._client))
                except SbpError as error:
                    _LOG.warning("streams not listed: %s", error)
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            self._follow([])
            await asyncio.to_thread(self._workers.shutdown)

    def states(self) -> list[TableState]:
        """Return how far each stream has landed."""
        return [landing.state for landing, _ in self._landings.values()]

    def _follow(self, wanted: Collection[Target]) -> None:
        for target in self._landings.keys() - set(wanted):
            _, task = self._landings.pop(target)
            task.cancel()
        for target in wanted:
            if target not in self._landings:
                landing = Landing(
                    *(self._client, self._catalog, target.stream, target.table),
                    settings=self._settings,
                    workers=self._workers,
                    trim_after=target.trim_after,
                )
                self._landings[target] = landing, asyncio.create_task(landing.run())
