"""Fetching ahead: a thread asks for the spans of a partition while the task decodes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from sbp_core import limits
from sbp_core.client import Client, FetchItem, FetchOutcome, ReceivedBatches
from sbp_core.errors import DeadlineExceededError, OffsetOutOfRangeError, SbpError
from sbp_core.records import BatchFilter, Projection
from sbp_spark.reading.losses import DataLossError, Loss, log_losses
from sbp_spark.reading.partition_planning import StreamSpan

SPANS_PER_FETCH: Final = 16
FETCH_ROUND_BYTES_MAX: Final = 8 * limits.MIB
"""Bytes asked for in one FETCH, shared by its spans. A round trip costs as much time as a few of
them, so less would be slower."""
FETCH_WAIT_MS: Final = 1_000
_PAUSE_S: Final = 0.05
Projections = Callable[[int], tuple[Projection, ...]]
Filters = Callable[[int], tuple[BatchFilter, ...]]
"""Functions that return the columns, or the filters, to ask for in a stream, by its id."""


def _everything(_: int) -> tuple[()]:
    return ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """Record batches of the span at `span_index`, as they came.

    `skip_to` is the offset at which reading continues where those before it are lost. If
    `is_more`, not all that follows was asked for yet.
    """

    span_index: int
    batches: ReceivedBatches
    skip_to: int | None = None
    is_more: bool = False


@dataclass(slots=True)
class _SpanProgress:
    """A span being read; nothing came since `silent_since_s` (monotonic)."""

    span_index: int
    span: StreamSpan
    offset: int
    silent_since_s: float | None = None

    @property
    def is_done(self) -> bool:
        return self.offset >= self.span.end_offset


def fetch_round_bytes(buffer_bytes: int) -> int:
    """Return the bytes of one FETCH of a task that may hold `buffer_bytes`."""
    return min(FETCH_ROUND_BYTES_MAX, max(1, buffer_bytes // 2))


def fetch_chunks(
    client: Client,
    spans: Sequence[StreamSpan],
    *,
    round_bytes: int = FETCH_ROUND_BYTES_MAX,
    is_loss_fatal: bool = True,
    projections_of: Projections = _everything,
    filters_of: Filters = _everything,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Generator[Chunk, None, None]:
    """Yield the bytes of all spans. The bytes of one stream come in the order of offsets.

    One FETCH asks for several streams at once, `round_bytes` in all. Columns that `projections_of`
    leaves out need not come, nor the records of batches that `filters_of` rules out. Offsets that
    were trimmed raise DataLossError, or are logged and skipped. Raises DeadlineExceededError when a
    server does not send offsets that it had announced, and the errors of the client. Each error has
    a note that names the span.
    """
    lanes: dict[int, deque[_SpanProgress]] = {}
    for index, span in enumerate(spans):
        lanes.setdefault(span.stream_id, deque()).append(
            _SpanProgress(index, span, span.start_offset)
        )
    waiting = deque(lanes.values())
    reading: list[deque[_SpanProgress]] = []
    while waiting or reading:
        while waiting and len(reading) < SPANS_PER_FETCH:
            reading.append(waiting.popleft())
        has_progress = False
        bytes_max = max(1, round_bytes // len(reading))
        items = [
            FetchItem(
                *(at.span.stream_id, at.offset, at.span.end_offset, bytes_max),
                projections=projections_of(at.span.stream_id),
                filters=filters_of(at.span.stream_id),
            )
            for at in (lane[0] for lane in reading)
        ]
        with closing(client.fetch(items, max_wait_ms=FETCH_WAIT_MS)) as outcomes:
            for outcome in outcomes:
                lane = reading[outcome.item_index]
                cursor = lane[0]
                if not is_loss_fatal and _skip_loss(cursor, outcome.error):
                    has_progress = True
                    nothing = ReceivedBatches(memoryview(b""), cursor.offset)
                    yield Chunk(cursor.span_index, nothing, cursor.offset, is_more=True)
                    continue
                _check_outcome(cursor, outcome, clock())
                if outcome.size_bytes:
                    has_progress = True
                    is_more = bool(waiting) or not cursor.is_done or len(lane) > 1
                    yield Chunk(cursor.span_index, outcome.batches, is_more=is_more)
        for lane in reading:
            while lane and lane[0].is_done:
                lane.popleft()
        reading = [lane for lane in reading if lane]
        if not has_progress:
            sleep(_PAUSE_S)


def _check_outcome(cursor: _SpanProgress, outcome: FetchOutcome, now_s: float) -> None:
    """Move the cursor, or raise what went wrong."""
    span = cursor.span
    if outcome.error is not None:
        error = outcome.error
        if isinstance(error, OffsetOutOfRangeError):
            error = _loss(cursor, error)
        error.add_note(f"while reading {describe_span(span)}, at offset {cursor.offset}")
        raise error from outcome.error if error is not outcome.error else None
    if outcome.size_bytes:
        cursor.offset = outcome.next_offset
        cursor.silent_since_s = None
    elif cursor.silent_since_s is None:
        cursor.silent_since_s = now_s
    elif (now_s - cursor.silent_since_s) * 1000 >= limits.RETRY_BUDGET_MS:
        raise DeadlineExceededError(
            f"{describe_span(span)}: no server returned anything at offset {cursor.offset} for"
            f" {limits.RETRY_BUDGET_MS // 1000} s, and the stream ended at {span.end_offset}"
            " when the read was planned. A replica that lags catches up: read again. If not,"
            " `sbp streams describe` shows which server has the range: run `sbp log check` there"
        )


def _loss(cursor: _SpanProgress, error: OffsetOutOfRangeError) -> DataLossError:
    span, bounds = cursor.span, error.bounds
    end_offset = span.end_offset
    if bounds is not None and cursor.offset < bounds[0]:
        end_offset = min(end_offset, bounds[0])
    lost = Loss(span.stream_id, cursor.offset, end_offset)
    return DataLossError((lost,), {span.stream_id: span.stream_name})


def _skip_loss(cursor: _SpanProgress, error: SbpError | None) -> bool:
    """Move the cursor behind trimmed records and log the loss; False if none were trimmed."""
    bounds = error.bounds if isinstance(error, OffsetOutOfRangeError) else None
    if bounds is None or cursor.offset >= bounds[0]:
        return False
    lost = Loss(cursor.span.stream_id, cursor.offset, min(bounds[0], cursor.span.end_offset))
    log_losses([lost], {cursor.span.stream_id: cursor.span.stream_name})
    cursor.offset = min(bounds[0], cursor.span.end_offset)
    cursor.silent_since_s = None
    return True


def describe_span(span: StreamSpan) -> str:
    """Return how messages name a span."""
    return (
        f"stream {span.stream_name} (id {span.stream_id}), range {span.range_index},"
        f" offsets [{span.start_offset}, {span.end_offset})"
    )


class Prefetcher:
    """Draws chunks ahead of the consumer, in a thread of its own.

    The result of a single request is not worth a thread: the thread starts at the first chunk that
    is followed by another. At most `bytes_max` are queued or being decoded, and one more chunk has
    been drawn. A chunk that is larger than `bytes_max` is alone. Errors of the thread are raised
    where the chunks are taken. After `close` the thread ends before its next chunk.
    """

    def __init__(self, chunks: Generator[Chunk, None, None], *, bytes_max: int) -> None:
        self._chunks = chunks
        self._bytes_max = bytes_max
        self._queue: deque[Chunk] = deque()
        self._held_bytes = 0
        self._is_closed = False
        self._is_over = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def __iter__(self) -> Iterator[Chunk]:
        for chunk in self._chunks:
            if chunk.is_more:
                yield from self._prefetched(chunk)
                return
            yield chunk

    def close(self) -> None:
        """Let the thread end, and drop its chunks."""
        if self._thread is None:
            self._chunks.close()
        with self._changed:
            self._is_closed = True
            self._queue.clear()
            self._changed.notify_all()

    def _prefetched(self, first: Chunk) -> Iterator[Chunk]:
        """Yield a chunk, and all that follow, which a thread draws ahead."""
        self._held_bytes = first.batches.size_bytes
        self._thread = threading.Thread(target=self._run, name="sbp-prefetch", daemon=True)
        self._thread.start()
        chunk: Chunk | None = first
        while chunk is not None:
            yield chunk
            chunk = self._next(chunk)
        if self._error is not None:
            raise self._error

    def _next(self, done: Chunk) -> Chunk | None:
        """Return the chunk after `done`, which is decoded; None if there is no other."""
        with self._changed:
            self._held_bytes -= done.batches.size_bytes
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._queue or self._is_over)
            return self._queue.popleft() if self._queue else None

    def _run(self) -> None:
        try:
            with closing(self._chunks):
                for chunk in self._chunks:
                    if not self._put(chunk):
                        return
        except BaseException as error:  # noqa: BLE001 - raised again in the task's thread
            self._error = error
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def _put(self, chunk: Chunk) -> bool:
        """Queue a chunk when there is room; False when the prefetcher was closed."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._is_closed
                    or not self._held_bytes
                    or self._held_bytes + chunk.batches.size_bytes <= self._bytes_max
                )
            )
            if self._is_closed:
                return False
            self._queue.append(chunk)
            self._held_bytes += chunk.batches.size_bytes
            self._changed.notify_all()
            return True
