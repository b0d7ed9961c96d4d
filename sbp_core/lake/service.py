"""All streams of a cluster whose property `lake.table` names a table."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, Final, NamedTuple

from pyiceberg.catalog import Catalog

from sbp_core.client import AsyncClient
from sbp_core.client.types import StreamInfo, StreamUpdate
from sbp_core.errors import SbpError
from sbp_core.lake import TABLE_PROPERTY, TRIM_PROPERTY, metrics
from sbp_core.lake.landing import Landing, LandingSettings
from sbp_core.lake.status import find_lags
from sbp_core.operating.cursor_lag import Lag
from sbp_core.server.metrics import Catalog as Metrics
from sbp_core.server.metrics import Reading
from sbp_core.server.served import Condition, Unready
from sbp_core.settings.lake_tables import TableRule, maybe_table

_LOG: Final = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 10.0
"""Pause between looks at the streams."""
_LOOKED_SECONDS_MAX: Final = 60.0
"""Time since the last look from which on nothing is known of the streams."""
_WORKERS: Final = 4


class Target(NamedTuple):
    """A stream that is to land, the name of its table, and the age in ms at which it is trimmed."""

    stream: StreamInfo
    table: str
    trim_after: str | None


async def find_targets(client: AsyncClient, rules: Sequence[TableRule] = ()) -> list[Target]:
    """Return the streams whose properties say that they are to land. Raises SbpError.

    A stream without a table gets the property from the first rule that matches its name, so that
    `sbp lake status`, the console and readers of the history find the table.
    """
    streams = await client.list_streams()
    properties = await client.describe_properties([each.stream_id for each in streams])
    targets = []
    for stream in streams:
        own = properties.get(stream.stream_id, {})
        if TABLE_PROPERTY not in own and (table := maybe_table(rules, stream.name)):
            own = own | await _name_table(client, stream, table)
        if TABLE_PROPERTY in own:
            targets.append(Target(stream, own[TABLE_PROPERTY], own.get(TRIM_PROPERTY)))
    return targets


async def _name_table(client: AsyncClient, stream: StreamInfo, table: str) -> dict[str, str]:
    """Set the table of a stream that has none; return the property, or nothing if that fails."""
    named = {TABLE_PROPERTY: table}
    update = StreamUpdate(
        stream.stream_id, properties=named, expected_properties={TABLE_PROPERTY: None}
    )
    try:
        await client.update_streams([update])
    except SbpError as error:
        _LOG.warning("table not set stream=%s table=%s: %s", stream.label, table, error)
        return {}
    return named


class Lake:
    """Lands streams, each in a task of its own; looks for new ones from time to time.

    `rules` name the tables of streams that have none.
    """

    catalogs: ClassVar[Sequence[Metrics]] = (metrics.METRICS,)

    def __init__(
        self,
        client: AsyncClient,
        catalog: Catalog,
        settings: LandingSettings,
        rules: Sequence[TableRule] = (),
    ) -> None:
        self._client = client
        self._catalog = catalog
        self._settings = settings
        self._rules = rules
        self._lags: dict[int, Lag] = {}
        self._looked_at = -float("inf")
        self._workers = ThreadPoolExecutor(_WORKERS, "sbp-lake")
        self._landings: dict[Target, tuple[Landing, asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """Land streams until this is cancelled. A commit in progress is finished."""
        try:
            while True:
                try:
                    self._follow(await find_targets(self._client, self._rules))
                    opened = [each for each in self._all() if each.state.metadata_location]
                    landed = {each.stream: each.state.landed_offset for each in opened}
                    self._lags = await find_lags(self._client, landed)
                    self._looked_at = time.monotonic()
                except SbpError as error:
                    _LOG.warning("streams not listed: %s", error)
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            self._follow([])
            await asyncio.to_thread(self._workers.shutdown)

    def unready(self) -> list[Unready]:
        """Return why streams do not land, whatever their tables are."""
        if time.monotonic() - self._looked_at <= _LOOKED_SECONDS_MAX:
            return []
        reason = "the streams of the cluster were not listed within the last minute"
        return [Unready("placement_driver_unreachable", reason)]

    def condition(self) -> Condition:
        """Return how many streams land."""
        return {"streams": len(self._landings)}

    async def read_metrics(self) -> list[Reading]:
        """Return how far each stream has landed. An old lag is not shown."""
        lags = {} if self.unready() else self._lags
        return [*metrics.read(self._all(), lags)]

    def _all(self) -> list[Landing]:
        return [landing for landing, _ in self._landings.values()]

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
