"""What a task does to read one input partition: fetch, check, decode, join. Stateless."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from sbp_core.client import Client
from sbp_core.errors import ProtocolError
from sbp_core.records import Envelope, split_envelopes
from sbp_spark.client_pool import Patience, client_for
from sbp_spark.options import Servers
from sbp_spark.options.source import FETCH_BUFFER_BYTES_DEFAULT
from sbp_spark.reading.columns_layout import ColumnsLayout
from sbp_spark.reading.damaged_batches import StoredRun, decode_run
from sbp_spark.reading.layout import Form, Layout, Piece, RenamedLayout, is_enough
from sbp_spark.reading.placed_chunks import read_placed_chunks
from sbp_spark.reading.planning import StreamSpan
from sbp_spark.reading.prefetch import (
    Chunk,
    Prefetcher,
    describe_span,
    fetch_chunks,
    fetch_round_bytes,
)
from sbp_spark.reading.rows_layout import RowsLayout
from sbp_spark.reading.schema_versions import SchemaVersions
from sbp_spark.task_log import LOG

ENVELOPES_AT_ONCE: Final = 1_000
"""Envelopes of so many batches are kept until these are decoded, which may be tiny."""


@dataclass(frozen=True)
class SpanPartition(InputPartition):
    """Spans that one task reads, from the cluster of `servers`.

    Offsets of them that are gone by then are an error, or passed over and logged. The task holds
    about `buffer_bytes` that are not decoded yet. `maybe_columns` are the columns as the streams
    name them, if the query names any of them otherwise.
    """

    servers: Servers
    spans: tuple[StreamSpan, ...]
    form: Form = Form.ROWS
    is_loss_fatal: bool = True
    buffer_bytes: int = FETCH_BUFFER_BYTES_DEFAULT
    maybe_columns: pa.Schema | None = None


class BrokenSequenceError(ProtocolError):
    """The offsets that came do not follow on one another: a gap or an overlap."""


def read_partition(partition: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition; `schema` has the columns that are asked for.

    Streams come one after the other or mixed, each in the order of its offsets. Raises SbpError.
    """
    assert isinstance(partition, SpanPartition)
    if not partition.spans:
        return
    LOG.debug("reading %s", "; ".join(map(describe_span, partition.spans)))
    client = client_for(partition.servers, Patience.RUNNING)
    layout = layout_for(partition, schema, client)
    round_bytes = fetch_round_bytes(partition.buffer_bytes)
    spans, is_loss_fatal = partition.spans, partition.is_loss_fatal
    fetched = fetch_chunks(
        client, spans, round_bytes=round_bytes, is_loss_fatal=is_loss_fatal, leaves_placed=True
    )
    queue_bytes = partition.buffer_bytes - round_bytes
    with closing(Prefetcher(fetched, bytes_max=queue_bytes)) as ahead:
        chunks = read_placed_chunks(
            client, ahead, spans, round_bytes=round_bytes, is_loss_fatal=is_loss_fatal
        )
        yield from decode_chunks(chunks, spans, layout, is_loss_fatal=is_loss_fatal)


def layout_for(partition: SpanPartition, schema: pa.Schema, client: Client) -> Layout:
    """Return what makes the columns of `schema` of a partition's record batches."""
    if partition.maybe_columns is not None:
        own = layout_for(replace(partition, maybe_columns=None), partition.maybe_columns, client)
        return RenamedLayout(own, schema)
    if not partition.form.is_typed:
        return RowsLayout(schema)
    versions = SchemaVersions(client, partition.servers)
    has_metadata = partition.form is Form.COLUMNS_WITH_METADATA
    return ColumnsLayout(schema, versions, has_metadata=has_metadata)


def decode_chunks(
    chunks: Iterable[Chunk],
    spans: Sequence[StreamSpan],
    layout: Layout,
    *,
    is_loss_fatal: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all chunks, cut to their spans; small record batches are joined.

    Raises BrokenSequenceError unless the offsets are exactly those of the spans, once each, but
    for those that a chunk says were skipped. A record batch that cannot be decoded raises
    DamagedRecordsError, or is logged and skipped.
    """
    joiner = _Joiner(layout)
    positions = [span.start_offset for span in spans]
    begins = list(positions)
    for chunk in chunks:
        span = spans[chunk.span_index]
        if chunk.maybe_skip_to is not None:
            positions[chunk.span_index] = begins[chunk.span_index] = chunk.maybe_skip_to
        position = positions[chunk.span_index]
        is_first = position == begins[chunk.span_index]
        for envelopes, end in _runs(chunk.payload, span, position, is_first=is_first):
            run = StoredRun(envelopes, span, position, end)
            for piece in decode_run(layout, run, is_loss_fatal=is_loss_fatal):
                yield from joiner.add(piece)
            position = positions[chunk.span_index] = end
    yield from joiner.flush()
    for span, position in zip(spans, positions, strict=True):
        if position != span.end_offset:
            raise BrokenSequenceError(
                f"{describe_span(span)}: expected offset {position} next, found the end; the"
                " server answered with fewer records than it said"
            )


def _runs(
    payload: memoryview, span: StreamSpan, position: int, *, is_first: bool
) -> Iterator[tuple[Sequence[Envelope], int]]:
    """Yield some batches at a time, which go on at `position`, and the offset up to which they go.

    What is behind the end of the span is left out. Raises BrokenSequenceError.
    """
    envelopes: list[Envelope] = []
    for envelope in split_envelopes(payload):
        if position >= span.end_offset:
            break
        _check_sequence(span, envelope, position, is_inside_allowed=is_first)
        is_first = False
        position = min(envelope.base_offset + envelope.record_count, span.end_offset)
        envelopes.append(envelope)
        if len(envelopes) == ENVELOPES_AT_ONCE:
            yield envelopes, position
            envelopes = []
    if envelopes:
        yield envelopes, position


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


class _Joiner:
    """Joins small pieces into batches of ROWS_PER_BATCH rows or BYTES_PER_BATCH octets.

    No batch has twice as much, but for a piece that is enough by itself.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._pieces: list[Piece] = []
        self._row_count = 0
        self._size_bytes = 0

    def add(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Take a piece; yield what is ready. A large piece is passed on without a copy."""
        if is_enough(piece.count, piece.size_bytes):
            yield from self.flush()
        self._pieces.append(piece)
        self._row_count += piece.count
        self._size_bytes += piece.size_bytes
        if is_enough(self._row_count, self._size_bytes):
            yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield what waits, as one batch."""
        if self._pieces:
            yield self._layout.join(self._pieces)
        self._pieces = []
        self._row_count = self._size_bytes = 0
