"""All streams of a cluster whose property `lake.table` names a table."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, Final, NamedTuple

from pyiceberg.catalog import Catalog

from sbp_core.client import AsyncClient
from sbp_core.client.types import StreamInfo, StreamUpdate
from sbp_core.errors import ConfigurationError, SbpError
from sbp_core.lake import ERROR_PROPERTY, TABLE_PROPERTY, TRIM_PROPERTY, metrics
from sbp_core.lake.landing import RETRY_SECONDS, Landing, LandingSettings
from sbp_core.lake.status import find_lags
from sbp_core.operating.cursor_lag import Lag
from sbp_core.properties import PROPERTY_VALUE_BYTES_MAX
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


async def find_targets(
    client: AsyncClient, rules: Sequence[TableRule] = ()
) -> dict[Target, str | None]:
    """Return the streams whose properties say that they are to land, and their noted errors.

    A stream without a table gets the property from the first rule that matches its name, so that
    `sbp lake status`, the console and readers of the history find the table. Raises SbpError.
    """
    streams = await client.list_streams()
    properties = await client.describe_properties([each.stream_id for each in streams])
    targets = {}
    for stream in streams:
        own = properties.get(stream.stream_id, {})
        if TABLE_PROPERTY not in own and (table := maybe_table(rules, stream.name)):
            own = own | await _name_table(client, stream, table)
        if TABLE_PROPERTY in own:
            target = Target(stream, own[TABLE_PROPERTY], own.get(TRIM_PROPERTY))
            targets[target] = own.get(ERROR_PROPERTY)
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

    `open_catalog` raises ConfigurationError, which ends `run`, or another SbpError: it is called
    again then. `rules` name the tables of streams that have none.
    """

    catalogs: ClassVar[Sequence[Metrics]] = (metrics.METRICS,)

    def __init__(
        self,
        client: AsyncClient,
        open_catalog: Callable[[], Catalog],
        settings: LandingSettings,
        rules: Sequence[TableRule] = (),
        *,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._client = client
        self._open_catalog = open_catalog
        self._has_catalog = False
        self._settings = settings
        self._rules = rules
        self._look_seconds = look_seconds
        self._lags: dict[int, Lag] = {}
        self._looked_at = -float("inf")
        self._workers = ThreadPoolExecutor(_WORKERS, "sbp-lake")
        self._landings: dict[Target, tuple[Landing, asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """Land streams until this is cancelled. A commit in progress is finished.

        Raises ConfigurationError if the catalog cannot be opened as it is configured.
        """
        try:
            catalog = await self._open()
            while True:
                try:
                    noted = await find_targets(self._client, self._rules)
                    self._follow(noted, catalog)
                    await self._note_errors(noted)
                    opened = [each for each in self._all() if each.state.metadata_location]
                    landed = {each.stream: each.state.landed_offset for each in opened}
                    self._lags = await find_lags(self._client, landed)
                    self._looked_at = time.monotonic()
                except SbpError as error:
                    _LOG.warning("streams not listed: %s", error)
                await asyncio.sleep(self._look_seconds)
        finally:
            for _, task in self._landings.values():
                task.cancel()
            await asyncio.to_thread(self._workers.shutdown)

    def unready(self) -> list[Unready]:
        """Return why streams do not land, whatever their tables are."""
        if not self._has_catalog:
            return [Unready("catalog_unreachable", "the catalog is not open: see the log")]
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

    async def _open(self) -> Catalog:
        """Open the catalog, again and again until it is there."""
        loop, pause = asyncio.get_running_loop(), RETRY_SECONDS[0]
        while True:
            try:
                catalog = await loop.run_in_executor(self._workers, self._open_catalog)
            except ConfigurationError:
                raise
            except SbpError as error:
                _LOG.error("no stream lands: %s", error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_SECONDS[1])
            else:
                self._has_catalog = True
                return catalog

    def _follow(self, wanted: Mapping[Target, str | None], catalog: Catalog) -> None:
        for target in self._landings.keys() - wanted.keys():
            _, task = self._landings.pop(target)
            task.cancel()
        for target, error in wanted.items():
            if target not in self._landings:
                landing = Landing(
                    *(self._client, catalog, target.stream, target.table),
                    settings=self._settings,
                    workers=self._workers,
                    trim_after=target.trim_after,
                    error=error,
                )
                self._landings[target] = landing, asyncio.create_task(landing.run())

    async def _note_errors(self, noted: Mapping[Target, str | None]) -> None:
        """Note the errors of streams that are new or over, for `sbp lake status` elsewhere."""
        for target, before in noted.items():
            error = self._landings[target][0].state.error
            if error is not None:
                error = error.encode()[:PROPERTY_VALUE_BYTES_MAX].decode(errors="ignore")
            if error != before:
                update = StreamUpdate(target.stream.stream_id, properties={ERROR_PROPERTY: error})
                try:
                    await self._client.update_streams([update])
                except SbpError as refused:  # the log has the error of the stream itself
                    _LOG.debug("error not noted stream=%s: %s", target.stream.label, refused)
