"""Landing one stream: records go into files, which are committed to its table by interval and size.

Nothing is kept between attempts. After any error the table is loaded again, and says how far the
stream has landed: a commit of unknown outcome is found there, or was not made.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar, TypeVarTuple, Unpack

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException

from sbp_core.app.decoding import decode_fetched, fingerprints_of
from sbp_core.client import AsyncClient
from sbp_core.client.types import FetchItem, StreamInfo
from sbp_core.errors import ConfigurationError, OffsetOutOfRangeError
from sbp_core.lake import TRIM_PROPERTY
from sbp_core.lake.catalog import describe_error
from sbp_core.lake.columns import PLAIN, rows_of, table_schema
from sbp_core.lake.table import LakeConflictError, LakeTable, PendingAppend, TableState
from sbp_core.quantities import quoted
from sbp_core.records import Envelope, StreamSchema
from sbp_core.records.splitting import split_envelopes

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

_LOG: Final = logging.getLogger(__name__)

_FETCH_BYTES: Final = 8 << 20
_COMPACTED_COMMITS: Final = 16
_EXPIRY_SECONDS: Final = 3_600.0
RETRY_SECONDS: Final = (1.0, 60.0)
"""The first pause after an error, and the longest one."""


@dataclass(frozen=True, slots=True)
class LandingSettings:
    """When records are committed: `interval_seconds` after the first, or with `file_bytes`.

    Snapshots are kept for `keep_seconds`: so long a reader may use an old one. A stream without new
    records is trimmed every `idle_seconds`.
    """

    interval_seconds: float = 60.0
    file_bytes: int = 128 << 20
    keep_seconds: float = 86_400.0
    idle_seconds: float = 10.0


class Landing:
    """Lands one stream in one table until it is cancelled. Blocking work is done by `workers`.

    `error` is the last one of an earlier process: it counts until an attempt succeeds.
    """

    def __init__(
        self,
        client: AsyncClient,
        catalog: Catalog,
        stream: StreamInfo,
        table: str,
        *,
        settings: LandingSettings,
        workers: Executor,
        trim_after: str | None = None,
        error: str | None = None,
    ) -> None:
        self._client = client
        self._catalog = catalog
        self.stream: Final = stream
        self._settings = settings
        self._workers = workers
        self._schemas: dict[str, StreamSchema] = {}
        self._columns: pa.Schema | None = None
        """The columns of the stream's latest schema; None for a plain stream."""
        self._uncompacted = _COMPACTED_COMMITS
        """Commits since the table was compacted. A process that was killed may have left many."""
        self._expire_at = 0.0
        self._trim_after = trim_after
        self._trimmed_offset = 0
        self.state = TableState(stream.label, table, error=error)
        self.error_count = 0
        self.changed: Final = asyncio.Event()
        """Set whenever `state` is another one."""

    async def run(self) -> None:
        """Land records, and begin again after each error."""
        pause = RETRY_SECONDS[0]
        while True:
            landed = self.state.landed_offset
            try:
                await self._land()
            except (LakeConflictError, CommitFailedException) as error:
                _LOG.info("landing goes on behind another process: %s", error)
            except Exception as error:  # noqa: BLE001 - catalogs and object stores raise anything
                text = describe_error(error, self._catalog)
                _LOG.error("landing failed stream=%s: %s", self.stream.label, text)
                self.error_count += 1
                self._show(replace(self.state, error=text))
            if self.state.landed_offset != landed:
                pause = RETRY_SECONDS[0]
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_SECONDS[1])

    async def _land(self) -> None:
        trim_after_ms = self._trim_age()
        await self._learn_schemas()
        schema = PLAIN if self._columns is None else table_schema(self._columns)
        table = await self._blocking(
            LakeTable.open, self._catalog, self.state.table, self.stream, schema
        )
        landed = await self._blocking(table.landed)
        commit = None if landed is None else landed.commit
        if commit is not None and await self._client.has_commit(commit) is False:
            raise ConfigurationError(
                "the metadata of the cluster is older than the table, or of another cluster:"
                " offsets may stand for other records now. Name another table"
            )
        # A table that opens is no success yet: the next commit may fail as the last one did.
        self._show(replace(table.state(), error=self.state.error))
        expected = None if landed is None else landed.end_offset
        position = expected
        if position is None:
            (bounds,) = await self._client.stream_bounds([self.stream.stream_id])
            position = bounds.start_offset
        while True:
            append, position = await self._next_append(table, position, expected)
            if append is not None:
                await self._blocking(append.commit, self._client.last_commit)
                expected = position
                await self._blocking(self._maintain, table)
            self._show(table.state())
            if expected is not None and trim_after_ms is not None:
                await self._trim(expected, trim_after_ms)

    def _trim_age(self) -> int | None:
        """Return the age in ms at which records are trimmed. Raises ConfigurationError."""
        age = self._trim_after
        if age is None:
            return None
        if not (age.isascii() and age.isdecimal()):
            raise ConfigurationError(
                f"property {TRIM_PROPERTY} is {quoted(age)}; expected milliseconds, as"
                " `sbp streams update --trim-after-lake 1h` sets them"
            )
        return int(age)

    async def _trim(self, landed_offset: int, age_ms: int) -> None:
        """Trim the records that have landed and were appended longer ago than an age."""
        stream_id = self.stream.stream_id
        time_ms = max(0, time.time_ns() // 1_000_000 - age_ms)
        found = await self._client.lookup_offsets({stream_id: 1000 * time_ms})
        offset = min(found[stream_id], landed_offset)
        if offset > self._trimmed_offset:
            await self._client.trim_streams({stream_id: offset})
            self._trimmed_offset = offset
            self._show(self.state)

    async def _next_append(
        self, table: LakeTable, position: int, expected: int | None
    ) -> tuple[PendingAppend | None, int]:
        """Return the records from a position on, not yet committed, and where they end.

        They end at a size, a time, a gap, or a change of the schema. Without new records there is
        nothing to commit after `idle_seconds`.
        """
        append: PendingAppend | None = None
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        try:
            while append is None or append.bytes < self._settings.file_bytes:
                wait_ms = int(1000 * self._settings.idle_seconds)
                if deadline is not None:
                    wait_ms = min(wait_ms, int(1000 * (deadline - loop.time())))
                    if wait_ms <= 0:
                        break
                item = FetchItem(self.stream.stream_id, position, None, _FETCH_BYTES)
                (found,) = [each async for each in self._client.fetch([item], max_wait_ms=wait_ms)]
                if isinstance(found.error, OffsetOutOfRangeError):
                    if append is not None:
                        break
                    position = self._behind_gap(position, found.error)
                    continue
                if found.error is not None:
                    raise found.error
                envelopes = list(split_envelopes(found.payload))
                if not fingerprints_of(envelopes) <= self._schemas.keys():
                    await self._learn_schemas()
                    if append is not None:
                        break
                rows = await self._blocking(self._decode, envelopes, position)
                if append is None:
                    if not rows:
                        break
                    columns = rows[0].schema
                    append = await self._blocking(table.append, columns, position, expected)
                    deadline = loop.time() + self._settings.interval_seconds
                is_whole = await self._blocking(append.add, rows)
                position = append.end_offset
                if not is_whole:
                    break
        except BaseException:
            if append is not None:
                await self._blocking(append.discard)
            raise
        return append, position

    def _behind_gap(self, position: int, error: OffsetOutOfRangeError) -> int:
        """Return where the stream goes on. Raises the error if it ends before the position."""
        start, end = error.bounds or (-1, -1)
        if not position < start <= end:
            raise error
        _LOG.error(
            "records lost to the lake stream=%s start=%d end=%d: they were trimmed before they had"
            " landed",
            *(self.stream.label, position, start),
        )
        return start

    def _decode(self, envelopes: list[Envelope], position: int) -> list[pa.RecordBatch]:
        decoded = decode_fetched(self.stream.label, envelopes, position, None, self._schemas)
        return [rows_of(each, self._columns) for each in decoded]

    def _show(self, state: TableState) -> None:
        self.state = state
        self.changed.set()

    def _maintain(self, table: LakeTable) -> None:
        """Compact the table and remove old snapshots, where that is due."""
        now = time.monotonic()
        self._uncompacted += 1
        if self._uncompacted >= _COMPACTED_COMMITS:
            self._uncompacted = 0
            table.compact(self._settings.file_bytes)
        if now >= self._expire_at:
            self._expire_at = now + min(_EXPIRY_SECONDS, self._settings.keep_seconds)
            table.expire(datetime.now(UTC) - timedelta(seconds=self._settings.keep_seconds))

    async def _learn_schemas(self) -> None:
        stream_id = self.stream.stream_id
        versions = (await self._client.describe_schemas([stream_id]))[stream_id]
        self._schemas = {each.schema.fingerprint: each.schema for each in versions}
        self._columns = versions[-1].schema.arrow if versions else None

    async def _blocking(self, work: Callable[[Unpack[Arguments]], T], *arguments: *Arguments) -> T:
        working = asyncio.get_running_loop().run_in_executor(self._workers, work, *arguments)
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            with suppress(Exception):
                await working  # a thread ends what it has begun
            raise
