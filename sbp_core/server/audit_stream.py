"""The stream of the audit events, `_audit`: each server of the cluster appends its own.

The events wait in a queue. One task appends them in their order, those of LINGER_MS in one batch,
with the numbers of an idempotent writer: so each is there once, however often a batch is sent.
While the stream is unavailable the queue waits. Events beyond its size are lost, and counted in the
next one. No request waits for any of this.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

import pyarrow as pa

from sbp_core import limits
from sbp_core.access.rights import AUDIT_STREAM
from sbp_core.client import AppendItem, AsyncClient, Connecting, Tls, Writer
from sbp_core.errors import (
    NotFoundError,
    SbpError,
    WriterGapError,
    WriterRepeatError,
    WriterUnknownError,
)
from sbp_core.records import ROWS_SCHEMA, encode_rows
from sbp_core.server.metrics import COMMON, Reading
from sbp_core.server.runtime import cancel_all

_LOG: Final = logging.getLogger(__name__)

_LINGER_MS: Final = 100
"""How long an event waits for others, which then go into the same batch."""
_BATCH_EVENTS_MAX: Final = 1_000
_BATCH_BYTES_MAX: Final = limits.MIB
"""How much goes into one batch, one event at least."""
_QUEUED_MAX: Final = 10_000
_QUEUED_BYTES_MAX: Final = 16 * limits.MIB
"""Events that wait for the stream, and their bytes; beyond it they are lost, and counted."""
_RETRY_MS: Final = 1_000
"""Pause before the next try, after the client has given up."""
_FLUSH_MS: Final = 2_000
"""How long a server that stops waits for its last events to be stored."""
_OTHER_WRITER: Final = (NotFoundError, WriterGapError, WriterRepeatError, WriterUnknownError)
"""The stream is another one by now, or it does not know the writer any more."""


_WAITING: Final = COMMON.gauge(
    "sbp_audit_events_waiting", "Audit events that are not in the stream _audit yet.", "role"
)
_LOST: Final = COMMON.counter(
    "sbp_audit_events_lost_total", "Audit events that are not there, as too many waited.", "role"
)


class _Record(NamedTuple):
    """An event as a record: its operation, the event as JSON, and its time in ms."""

    key: bytes
    value: bytes
    time_ms: int


class AuditStream:
    """Appends the events of one server to the stream, from `start` to `stop`.

    Events that are added before `start` wait for it.
    """

    def __init__(self) -> None:
        self._waiting: deque[_Record] = deque()
        self._waiting_bytes = 0
        self._lost_count = 0
        """Events that were lost since the last one that was accepted."""
        self._lost_total = 0
        self._arrived = asyncio.Event()
        self._stored = asyncio.Event()
        self._stored.set()
        self._is_flushing = asyncio.Event()
        self._flush_seconds = _FLUSH_MS / 1_000
        self._fault: type[SbpError] | None = None
        """The kind of the last failure, which is logged once."""
        self._client: AsyncClient | None = None
        self._stream_id: int | None = None
        self._writer = Writer()
        self._task: asyncio.Task[None] | None = None

    def start(self, placement_drivers: str, tls: Tls | None) -> None:
        """Begin to append, as a client of these placement drivers ("host:port,...")."""
        self._client = AsyncClient(placement_drivers, connecting=Connecting(tls=tls))
        self._task = asyncio.create_task(self._run(self._client))

    def add(self, event: Mapping[str, object], time_ms: int) -> None:
        """Let an event of that time wait for the stream; it is lost if too many do."""
        if self._lost_count:
            event = {**event, "events_lost": self._lost_count}
        value = json.dumps(event).encode()
        is_full = len(self._waiting) >= _QUEUED_MAX
        if is_full or self._waiting_bytes + len(value) > _QUEUED_BYTES_MAX:
            if not self._lost_count:
                _LOG.error(
                    "audit events lost stream=%s waiting=%d: make its range servers available; the"
                    " audit file has all events, if one is set",
                    *(AUDIT_STREAM, len(self._waiting)),
                )
            self._lost_count += 1
            self._lost_total += 1
            return
        if self._lost_count:
            _LOG.warning("audit events accepted again lost=%d", self._lost_count)
            self._lost_count = 0
        self._waiting.append(_Record(str(event["operation"]).encode(), value, time_ms))
        self._waiting_bytes += len(value)
        self._stored.clear()
        self._arrived.set()

    def read_metrics(self, role: str) -> Iterator[Reading]:
        """Yield the metrics of the events of a server of this role."""
        yield _WAITING.of(len(self._waiting), role)
        yield _LOST.of(self._lost_total, role)

    async def flush(self) -> None:
        """Wait until all events are stored, FLUSH_MS at most in all calls together."""
        if self._task is None:
            return
        began = asyncio.get_running_loop().time()
        self._is_flushing.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._flush_seconds):
                await self._stored.wait()
        self._is_flushing.clear()
        self._flush_seconds -= min(asyncio.get_running_loop().time() - began, self._flush_seconds)

    async def stop(self) -> None:
        """Store what is left, as `flush` does, and close the connections. Idempotent."""
        await self.flush()
        if self._task is not None:
            await cancel_all([self._task])
            self._task = None
        if self._client is not None:
            await self._client.close()
        if self._waiting:
            _LOG.warning(
                "audit events not stored stream=%s count=%d: it was unavailable when the server"
                " stopped; the audit file has them, if one is set",
                *(AUDIT_STREAM, len(self._waiting)),
            )
            self._waiting.clear()

    async def _run(self, client: AsyncClient) -> None:
        while True:
            await self._arrived.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LINGER_MS / 1000):
                    await self._is_flushing.wait()
            records = _first_of(self._waiting)
            await self._store(client, records)
            for each in records:
                self._waiting.popleft()
                self._waiting_bytes -= len(each.value)
            if not self._waiting:
                self._arrived.clear()
                self._stored.set()

    async def _store(self, client: AsyncClient, records: Sequence[_Record]) -> None:
        """Append records as one batch, however long it takes."""
        item: AppendItem | None = None
        while True:
            try:
                if self._stream_id is None:
                    (found,) = await client.describe_streams([AUDIT_STREAM])
                    self._stream_id = found.stream_id
                if item is None:  # a repeat has to be the same batch
                    item = AppendItem(self._stream_id, _encode(records, self._stream_id))
                await client.append([item], writer=self._writer)
            except SbpError as error:
                self._note_failure(error)
                if isinstance(error, _OTHER_WRITER):
                    self._stream_id, self._writer, item = None, Writer(), None
                await asyncio.sleep(_RETRY_MS / 1000)
            else:
                if self._fault is not None:
                    _LOG.info("audit events stored again stream=%s", AUDIT_STREAM)
                    self._fault = None
                return

    def _note_failure(self, error: SbpError) -> None:
        """Log the first failure of several. In a new cluster the stream is still to be made."""
        if self._fault is type(error):
            return
        self._fault = type(error)
        if isinstance(error, NotFoundError):
            _LOG.info(
                "audit events wait stream=%s: the placement driver has not made it yet; it does so"
                " with stream = true in its section [audit], once it has a range server",
                AUDIT_STREAM,
            )
        else:
            _LOG.warning("audit events wait stream=%s: %s", AUDIT_STREAM, error)


def _first_of(waiting: Iterable[_Record]) -> list[_Record]:
    """Return the first events, as many as fit into a batch."""
    records: list[_Record] = []
    left_bytes = _BATCH_BYTES_MAX
    for each in islice(waiting, _BATCH_EVENTS_MAX):
        left_bytes -= len(each.value)
        if records and left_bytes < 0:
            break
        records.append(each)
    return records


def _encode(records: Sequence[_Record], stream_id: int) -> bytes:
    keys, values, times_ms = zip(*records, strict=True)
    rows = pa.record_batch(
        [
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            pa.nulls(len(records), ROWS_SCHEMA.field("headers").type),
            pa.array([1_000 * each for each in times_ms], ROWS_SCHEMA.field("timestamp").type),
        ],
        schema=ROWS_SCHEMA,
    )
    return encode_rows(rows, stream_id=stream_id, timestamp_ms=times_ms[0])
