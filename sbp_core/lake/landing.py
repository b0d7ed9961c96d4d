"""Landing one stream: records are collected, and committed to its table by interval and size.

Nothing is kept between attempts. After any error the table is loaded again, and says how far the
stream has landed: a commit of unknown outcome is found there, or was not made.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException

from sbp_core.app.decoding import decode_fetched, fingerprints_of
from sbp_core.client import AsyncClient
from sbp_core.client.types import FetchItem, StreamInfo
from sbp_core.errors import ConfigurationError, OffsetOutOfRangeError
from sbp_core.lake import TRIM_PROPERTY
from sbp_core.lake.catalog import describe_error
from sbp_core.lake.columns import PLAIN, join_rows, rows_of, table_schema
from sbp_core.lake.table import LakeConflictError, LakeTable, TableState
from sbp_core.quantities import quoted
from sbp_core.records import StreamSchema
from sbp_core.records.envelope import split_envelopes

T = TypeVar("T")

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


@dataclass(slots=True)
class _Collected:
    """Records from `start_offset` on, which follow each other."""

    start_offset: int
    end_offset: int = field(init=False)
    batches: list[pa.RecordBatch] = field(default_factory=list)
    bytes: int = 0

    def __post_init__(self) -> None:
        self.end_offset = self.start_offset

    def add(self, rows: pa.RecordBatch) -> None:
        self.batches.append(rows)
        self.bytes += rows.nbytes
        self.end_offset += rows.num_rows


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
            collected = await self._collect(position)
            if collected.batches:
                await self._blocking(self._commit, table, collected, expected)
                expected = position = collected.end_offset
                await self._blocking(self._maintain, table)
            else:
                position = collected.end_offset
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

    async def _collect(self, position: int) -> _Collected:
        """Return the next records: up to a size, a time, a gap, or a change of the schema.

        Without new records they are none after `idle_seconds`.
        """
        collected = _Collected(position)
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        while collected.bytes < self._settings.file_bytes:
            wait_ms = int(1000 * self._settings.idle_seconds)
            if deadline is not None:
                wait_ms = min(wait_ms, int(1000 * (deadline - loop.time())))
                if wait_ms <= 0:
                    break
            item = FetchItem(self.stream.stream_id, collected.end_offset, None, _FETCH_BYTES)
            (found,) = [each async for each in self._client.fetch([item], max_wait_ms=wait_ms)]
            if isinstance(found.error, OffsetOutOfRangeError):
                if collected.batches:
                    break
                collected.start_offset = collected.end_offset = self._behind_gap(
                    collected.end_offset, found.error
                )
            elif found.error is not None:
                raise found.error
            elif found.payload:
                envelopes = list(split_envelopes(found.payload))
                if not fingerprints_of(envelopes) <= self._schemas.keys():
                    await self._learn_schemas()
                    if collected.batches:
                        break
                await self._blocking(self._add, collected, envelopes)
                if deadline is None:
                    deadline = loop.time() + self._settings.interval_seconds
            elif deadline is None:
                break
        return collected

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

    def _add(self, collected: _Collected, envelopes: list[Any]) -> None:
        label, at = self.stream.label, collected.end_offset
        for batch in decode_fetched(label, envelopes, at, None, self._schemas):
            collected.add(rows_of(batch, self._columns))

    def _commit(self, table: LakeTable, collected: _Collected, expected: int | None) -> None:
        table.append(
            join_rows(collected.batches),
            start_offset=collected.start_offset,
            end_offset=collected.end_offset,
            expected_offset=expected,
            commit=self._client.last_commit,
        )

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

    async def _blocking(self, work: Callable[..., T], *arguments: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._workers, work, *arguments)
