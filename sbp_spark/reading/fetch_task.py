"""What a task does to read one input partition: fetch, check, decode, join. Stateless."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from sbp_core import limits
from sbp_core.errors import ProtocolError
from sbp_core.records import (
    ROWS_SCHEMA,
    Envelope,
    decode_batch,
    offsets_array,
    split_envelopes,
)
from sbp_spark.client_pool import Patience, client_for
from sbp_spark.garbage import settle_once
from sbp_spark.options import Servers
from sbp_spark.options.partitions import FETCH_BUFFER_BYTES_DEFAULT
from sbp_spark.reading.planning import StreamSpan
from sbp_spark.reading.prefetch import (
    Chunk,
    Prefetcher,
    describe_span,
    fetch_chunks,
    fetch_round_bytes,
)
from sbp_spark.task_log import LOG

ROWS_PER_BATCH: Final = 10_000
BYTES_PER_BATCH: Final = limits.BATCH_TARGET_BYTES * 3 // 4
"""Less than what a full record batch decodes to, so that those are passed on as they are."""

_ROWS_INDEX: Final = {name: index for index, name in enumerate(ROWS_SCHEMA.names)}
_SPAN_COLUMNS: Final[Mapping[str, tuple[pa.DataType, Callable[[StreamSpan], str | int]]]] = {
    "stream": (pa.string(), attrgetter("stream_name")),
    "stream_id": (pa.int64(), attrgetter("stream_id")),
    "range_index": (pa.int32(), attrgetter("range_index")),
}


@dataclass(frozen=True)
class SpanPartition(InputPartition):
    """Spans that one task reads, from the cluster of `servers`.

    Offsets of them that are gone by then are an error, or passed over and logged. The task holds
    about `buffer_bytes` that are not decoded yet.
    """

    servers: Servers
    spans: tuple[StreamSpan, ...]
    is_loss_fatal: bool = True
    buffer_bytes: int = FETCH_BUFFER_BYTES_DEFAULT


class BrokenSequenceError(ProtocolError):
    """The offsets that came do not follow on one another: a gap or an overlap."""


def read_partition(partition: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition; `schema` has the columns that are asked for.

    Streams come one after the other or mixed, each in the order of its offsets. Raises SbpError.
    """
    assert isinstance(partition, SpanPartition)
    if not partition.spans:
        return
    settle_once()
    LOG.debug("reading %s", "; ".join(map(describe_span, partition.spans)))
    client = client_for(partition.servers, Patience.RUNNING)
    round_bytes = fetch_round_bytes(partition.buffer_bytes)
    fetched = fetch_chunks(
        client, partition.spans, round_bytes=round_bytes, is_loss_fatal=partition.is_loss_fatal
    )
    queue_bytes = partition.buffer_bytes - round_bytes
    with closing(Prefetcher(fetched, bytes_max=queue_bytes)) as chunks:
        yield from decode_chunks(chunks, partition.spans, schema)


def decode_chunks(
    chunks: Iterable[Chunk], spans: Sequence[StreamSpan], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all chunks, cut to their spans; small record batches are joined.

    Raises BrokenSequenceError unless the offsets are exactly those of the spans, once each, but
    for those that a chunk says were skipped.
    """
    joiner = _Joiner(schema)
    positions = [span.start_offset for span in spans]
    begins = list(positions)
    for chunk in chunks:
        span = spans[chunk.span_index]
        if chunk.maybe_skip_to is not None:
            positions[chunk.span_index] = begins[chunk.span_index] = chunk.maybe_skip_to
        for envelope in split_envelopes(chunk.payload):
            position = positions[chunk.span_index]
            if position >= span.end_offset:
                break
            is_inside_allowed = position == begins[chunk.span_index]
            _check_sequence(span, envelope, position, is_inside_allowed=is_inside_allowed)
            skip_count = position - envelope.base_offset
            take_count = min(span.end_offset - position, envelope.record_count - skip_count)
            rows = decode_batch(envelope)
            size_bytes = rows.get_total_buffer_size() * take_count // envelope.record_count
            if take_count < envelope.record_count:
                rows = rows.slice(skip_count, take_count)
            yield from joiner.add(_Piece(span, position, take_count, size_bytes, rows))
            positions[chunk.span_index] = position + take_count
    yield from joiner.flush()
    for span, position in zip(spans, positions, strict=True):
        if position != span.end_offset:
            raise BrokenSequenceError(
                f"{describe_span(span)}: expected offset {position} next, found the end; the"
                " server answered with fewer records than it said"
            )


def _check_sequence(
    span: StreamSpan, envelope: Envelope, position: int, *, is_inside_allowed: bool
) -> None:
    """Raise BrokenSequenceError unless the batch goes on at `position`.

    The first batch of a span may begin before it.
    """
    end_offset = envelope.base_offset + envelope.record_count
    is_following = envelope.base_offset == position or (
        is_inside_allowed and envelope.base_offset <= position < end_offset
    )
    if not is_following:
        raise BrokenSequenceError(
            f"{describe_span(span)}: expected offset {position} next, found a record batch of"
            f" offsets [{envelope.base_offset}, {end_offset}); records are missing or doubled on"
            " the range server"
        )


@dataclass(frozen=True, slots=True)
class _Piece:
    """Records of a span whose offsets begin at `start_offset`; their columns take `size_bytes`."""

    span: StreamSpan
    start_offset: int
    count: int
    size_bytes: int
    rows: pa.RecordBatch


class _Joiner:
    """Joins small pieces into batches of about ROWS_PER_BATCH rows or BYTES_PER_BATCH octets."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._pieces: list[_Piece] = []
        self._row_count = 0
        self._size_bytes = 0

    def add(self, piece: _Piece) -> Iterator[pa.RecordBatch]:
        """Take a piece; yield what is ready. A large piece is passed on without a copy."""
        if _is_enough(piece.count, piece.size_bytes):
            yield from self.flush()
        self._pieces.append(piece)
        self._row_count += piece.count
        self._size_bytes += piece.size_bytes
        if _is_enough(self._row_count, self._size_bytes):
            yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield what waits, as one batch."""
        if self._pieces:
            yield _join(self._pieces, self._schema)
        self._pieces = []
        self._row_count = self._size_bytes = 0


def _is_enough(row_count: int, size_bytes: int) -> bool:
    return row_count >= ROWS_PER_BATCH or size_bytes >= BYTES_PER_BATCH


def _join(pieces: Sequence[_Piece], schema: pa.Schema) -> pa.RecordBatch:
    """Return the pieces as one batch of `schema`; no other column is made."""
    columns = [_column(name, pieces) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(name: str, pieces: Sequence[_Piece]) -> pa.Array:
    if name in _ROWS_INDEX:
        parts = [piece.rows.column(_ROWS_INDEX[name]) for piece in pieces]
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
    return _offset_column(pieces) if name == "offset" else _span_column(name, pieces)


def _offset_column(pieces: Sequence[_Piece]) -> pa.Array:
    if len(pieces) == 1:
        return offsets_array(pieces[0].start_offset, pieces[0].count)
    counts = np.array([piece.count for piece in pieces])
    starts = np.array([piece.start_offset for piece in pieces], dtype=np.int64)
    rows_before = np.cumsum(counts) - counts
    offsets = np.arange(counts.sum(), dtype=np.int64) + np.repeat(starts - rows_before, counts)
    return pa.array(offsets)


def _span_column(name: str, pieces: Sequence[_Piece]) -> pa.Array:
    """Return a column that is the same in every row of a span."""
    kind, read = _SPAN_COLUMNS[name]
    counts = [piece.count for piece in pieces]
    values = [read(piece.span) for piece in pieces]
    if len(set(values)) == 1:
        row_count = sum(counts)
        rounded_count = 1 << (row_count - 1).bit_length()
        return _repeated(values[0], kind, rounded_count).slice(0, row_count)
    return pa.array(values, kind).take(pa.array(np.repeat(np.arange(len(pieces)), counts)))


@lru_cache(maxsize=256)
def _repeated(value: str | int, kind: pa.DataType, row_count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), row_count)
