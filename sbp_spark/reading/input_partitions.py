"""Input partitions: intervals of streams are planned into them, and a task reads each of them.

A read goes forward through this package. The driver finds streams and columns (`source_streams`),
offsets (`locating`) and spans (`partition_planning`). A task fetches (`prefetch`) and decodes
(`layout`). This module puts them together. `SbpBatchReader` is the whole of a batch read. A
micro-batch joins at `plan_read`.

A task fetches, checks, decodes and joins; it keeps no state. The option failOnDataLoss decides
about record batches that cannot be decoded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from sbp_core.client import Client, RangeInfo, StreamInfo
from sbp_core.errors import DamagedBatchError
from sbp_core.limits import MIB
from sbp_core.records import Envelope
from sbp_spark.client_pool import Connect, Patience, client_for
from sbp_spark.logical_types import logical_arrow_schema
from sbp_spark.options.endpoints import Servers
from sbp_spark.options.source import FETCH_BUFFER_BYTES_DEFAULT, OnDataLoss, SourceOptions
from sbp_spark.reading.filtered_layout import FilteredLayout
from sbp_spark.reading.layout import (
    ColumnsLayout,
    Form,
    Layout,
    Piece,
    QueryColumns,
    RenamedLayout,
    RowsLayout,
    is_enough,
)
from sbp_spark.reading.locating import check_ends, ending_offsets, starting_offsets
from sbp_spark.reading.losses import (
    DOUBT_WAITS_S,
    DamagedRecordsError,
    DataLossError,
    Loss,
    log_losses,
)
from sbp_spark.reading.offsets import Interval, nonempty
from sbp_spark.reading.partition_planning import (
    Cover,
    RecordSizeEstimates,
    StreamSpan,
    cover,
    plan_partitions,
)
from sbp_spark.reading.prefetch import (
    Chunk,
    Prefetcher,
    describe_span,
    fetch_chunks,
    fetch_round_bytes,
)
from sbp_spark.reading.schema_versions import SchemaVersions
from sbp_spark.reading.source_streams import find_columns, select_streams
from sbp_spark.reading.stored_runs import BrokenSequenceError, Skipped, runs_of
from sbp_spark.reporting import plain_errors
from sbp_spark.spark_internals.task_log import LOG


@dataclass(frozen=True, slots=True)
class StoredRun:
    """Batches of a span that follow on one another, and the wanted records in them.

    The records at offsets [start_offset, end_offset) are wanted: at least one of each batch.
    """

    envelopes: Sequence[Envelope]
    span: StreamSpan
    start_offset: int
    end_offset: int

    def between(self, start_offset: int, end_offset: int) -> StoredRun:
        """Return the batches that have records at these offsets."""
        start, end = max(start_offset, self.start_offset), min(end_offset, self.end_offset)
        inside = [
            each for each in self.envelopes if each.end_offset > start and each.base_offset < end
        ]
        return StoredRun(inside if start < end else (), self.span, start, end)


def decode_run(layout: Layout, run: StoredRun, *, is_loss_fatal: bool) -> Iterator[Piece]:
    """Yield the records of a run as `layout` decodes them, in the order of offsets.

    A batch that cannot be decoded raises DamagedRecordsError. If losses are not fatal, the batch is
    logged, and the records before and after it are yielded. Raises SbpError.
    """
    waiting = [run]  # the next one last
    while waiting:
        part = waiting.pop()
        if not part.envelopes:
            continue
        position = part.start_offset
        try:
            for piece in layout.decode(part.envelopes, part.span, position, part.end_offset):
                position = piece.start_offset + piece.count
                yield piece
        except DamagedBatchError as error:
            damage = _damage_of(part, position, error)
            if is_loss_fatal:
                raise damage from error
            (loss,) = damage.losses
            assert loss.end_offset is not None
            # Batches before it may not be decoded yet: small ones wait for more to join them.
            waiting.append(part.between(loss.end_offset, part.end_offset))
            waiting.append(part.between(position, loss.start_offset))
            LOG.warning("data loss: %s; reading continues after them", damage.describe())


def _damage_of(run: StoredRun, position: int, error: DamagedBatchError) -> DamagedRecordsError:
    """Return which of the wanted offsets from `position` on a damaged batch has."""
    span = run.span
    start_offset = max(error.start_offset, position)
    end_offset = min(error.end_offset, run.end_offset)
    loss = Loss(span.stream_id, start_offset, end_offset)
    return DamagedRecordsError(loss, {span.stream_id: span.stream_name}, error.cause)


_ALL_ROWS: Final = QueryColumns()


@dataclass(frozen=True)
class SpanPartition(InputPartition):
    """Spans that one task reads, from the cluster of `servers`.

    Offsets that are lost by then are an error, or skipped and logged. The task holds
    about `buffer_bytes` that are not decoded yet.
    """

    servers: Servers
    spans: tuple[StreamSpan, ...]
    columns: QueryColumns = _ALL_ROWS
    is_loss_fatal: bool = True
    buffer_bytes: int = FETCH_BUFFER_BYTES_DEFAULT


def read_partition(
    partition: InputPartition, schema: pa.Schema, connect: Connect = client_for
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition; `schema` has the columns that are asked for.

    Streams come one after the other or mixed, each in the order of its offsets. Raises SbpError.
    """
    assert isinstance(partition, SpanPartition)
    if not partition.spans:
        return
    LOG.debug("reading %s", "; ".join(map(describe_span, partition.spans)))
    client = connect(partition.servers, Patience.RUNNING)
    layout = layout_for(partition, schema, client)
    round_bytes = fetch_round_bytes(partition.buffer_bytes)
    spans, is_loss_fatal = partition.spans, partition.is_loss_fatal
    fetched = fetch_chunks(
        client,
        spans,
        round_bytes=round_bytes,
        is_loss_fatal=is_loss_fatal,
        projections_of=layout.projections,
        filters_of=layout.filters,
    )
    queue_bytes = partition.buffer_bytes - round_bytes
    with closing(Prefetcher(fetched, bytes_max=queue_bytes)) as ahead:
        yield from decode_chunks(ahead, spans, layout, is_loss_fatal=is_loss_fatal)


def layout_for(partition: SpanPartition, schema: pa.Schema, client: Client) -> Layout:
    """Return the layout that makes the columns of `schema` from a partition's record batches.

    The schemas of all its streams are asked for in one go. Raises SbpError.
    """
    versions = None
    if partition.columns.form.is_typed:
        versions = SchemaVersions(client, partition.servers)
        versions.prepare({span.stream_id for span in partition.spans})
    return _layout(partition.columns, schema, versions)


def _layout(columns: QueryColumns, schema: pa.Schema, versions: SchemaVersions | None) -> Layout:
    if columns.renamed is not None:
        own = _layout(replace(columns, renamed=None), columns.renamed, versions)
        return RenamedLayout(own, schema)
    if columns.row_filter is not None:
        wanted = columns.row_filter
        own = _layout(replace(columns, row_filter=None), wanted.columns, versions)
        return FilteredLayout(own, wanted, schema, versions)
    if versions is None:
        return RowsLayout(schema)
    has_metadata = columns.form is Form.COLUMNS_WITH_METADATA
    return ColumnsLayout(schema, versions, has_metadata=has_metadata)


def decode_chunks(
    chunks: Iterable[Chunk],
    spans: Sequence[StreamSpan],
    layout: Layout,
    *,
    is_loss_fatal: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all chunks, cut to their spans; small record batches are joined.

    No batch of rows is empty, even if the layout filters the rows.

    Raises BrokenSequenceError unless each offset of the spans comes exactly once, or a chunk says
    that it was skipped. A record batch that cannot be decoded raises DamagedRecordsError, or is
    logged and skipped.
    """
    joiner = _Joiner(layout)
    positions = [span.start_offset for span in spans]
    skipped = Skipped()
    for chunk in chunks:
        span = spans[chunk.span_index]
        if chunk.skip_to is not None:
            positions[chunk.span_index] = chunk.skip_to
        position = positions[chunk.span_index]
        for envelopes, end in runs_of(chunk.batches, span, position, skipped):
            run = StoredRun(envelopes, span, position, end)
            for piece in decode_run(layout, run, is_loss_fatal=is_loss_fatal):
                yield from joiner.add(piece)
            position = positions[chunk.span_index] = end
    yield from joiner.flush()
    skipped.log()
    for span, position in zip(spans, positions, strict=True):
        if position != span.end_offset:
            raise BrokenSequenceError(
                f"{describe_span(span)}: expected offset {position} next, found the end: the"
                " range server returned fewer records than it had announced; run `sbp log check`"
                " there"
            )


class _Joiner:
    """Joins small pieces into batches of ROWS_PER_BATCH rows or BYTES_PER_BATCH bytes.

    No batch has twice as much, but for a piece that is enough by itself.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._pieces: list[Piece] = []
        self._row_count = 0
        self._size_bytes = 0

    def add(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Take a piece; yield batches that are ready. A large piece is not copied."""
        if is_enough(piece.count, piece.size_bytes):
            yield from self.flush()
        self._pieces.append(piece)
        self._row_count += piece.count
        self._size_bytes += piece.size_bytes
        if is_enough(self._row_count, self._size_bytes):
            yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the waiting pieces as one batch."""
        if self._pieces:
            rows = self._layout.join(self._pieces)
            if rows.num_rows:
                yield rows
        self._pieces = []
        self._row_count = self._size_bytes = 0


SPANS_PER_PARTITION_MAX: Final = 1_000
_TASK_BYTES_MAX: Final = 128 * MIB
_TASK_BYTES_MIN: Final = 4 * MIB
"""Reading fewer bytes takes less time than it takes to start another task."""


class Planned(NamedTuple):
    """Partitions, none for nothing to read, and what they leave out because it is lost."""

    partitions: list[SpanPartition]
    losses: tuple[Loss, ...]


def plan_read(
    client: Client,
    options: SourceOptions,
    intervals: Iterable[Interval],
    streams: Mapping[int, StreamInfo],
    columns: QueryColumns,
    *,
    known_ranges: Mapping[int, Sequence[RangeInfo]] | None = None,
    sizes: RecordSizeEstimates | None = None,
    is_repeatable: bool = False,
) -> Planned:
    """Return the partitions that read the intervals.

    `known_ranges` are the ranges of the streams if the caller has just asked for them; `sizes` are
    the estimates that the caller keeps.

    If the plan `is_repeatable`, the same intervals are cut in the same way at each call, as
    long as the ranges of the streams are the same and no option is about bytes. Otherwise there are
    as many tasks as the bytes and the cores are worth. Raises DataLossError if some offsets are no
    longer stored, unless failOnDataLoss says to continue.
    """
    wanted = nonempty(intervals)
    if not wanted:
        return Planned([], ())
    names = {each.stream_id: streams[each.stream_id].label for each in wanted}
    spans, losses = _cover(client, wanted, names, known_ranges)
    is_loss_fatal = options.on_data_loss is OnDataLoss.FAIL
    if losses and is_loss_fatal:
        raise DataLossError(losses, names)
    log_losses(losses, names)
    limits = options.partitions
    starts = {each.stream_id: each.start_offset for each in wanted}
    ends = {each.stream_id: each.end_offset for each in wanted}
    bytes_max, count_min, record_bytes = limits.bytes_max, limits.count_min or 1, None
    if bytes_max is not None or not is_repeatable:
        record_bytes = (sizes or RecordSizeEstimates(client)).estimate(starts, ends)
        if not is_repeatable:
            size_bytes = sum(record_bytes[span.stream_id] * span.record_count for span in spans)
            count_min = limits.count_min or _worthwhile(size_bytes)
            a_record = max(record_bytes.values())
            bytes_max = bytes_max or _task_bytes(size_bytes, count_min) + a_record
    planned = plan_partitions(
        spans,
        records_per_partition_max=limits.records_max,
        bytes_per_partition_max=bytes_max,
        record_bytes=record_bytes,
        partitions_min=count_min,
        spans_per_partition_max=SPANS_PER_PARTITION_MAX,
    )
    partitions = [
        SpanPartition(
            options.servers,
            each,
            columns,
            is_loss_fatal=is_loss_fatal,
            buffer_bytes=limits.buffer_bytes,
        )
        for each in planned
    ]
    return Planned(partitions, losses)


def _worthwhile(size_bytes: int) -> int:
    """Return how many tasks to have at least: one for each core, if each has enough to read."""
    return max(1, min(os.cpu_count() or 1, size_bytes // _TASK_BYTES_MIN))


def _task_bytes(size_bytes: int, count_min: int) -> int:
    """Return the size of tasks that are a multiple of `count_min`, so that no core is idle."""
    rounds = max(1, -(-size_bytes // (_TASK_BYTES_MAX * count_min)))
    return -(-size_bytes // (rounds * count_min))


def _cover(
    client: Client,
    wanted: Sequence[Interval],
    names: Mapping[int, str],
    known: Mapping[int, Sequence[RangeInfo]] | None,
) -> Cover:
    """Return the spans of the intervals. A loss counts only if several answers show it."""
    stream_ids = [each.stream_id for each in wanted]
    for wait_s in (*DOUBT_WAITS_S, 0):
        ranges = client.list_ranges(stream_ids) if known is None else known
        found = cover(wanted, chain.from_iterable(ranges.values()), names=names)
        if not found.losses:
            break
        known = None
        time.sleep(wait_s)
    return found


class SbpBatchReader(DataSourceReader):
    """Reads each stream from its starting offset up to its ending offset; Spark filters the rows.

    It has no `pushFilters`: Spark 4.3 keeps the plan of the last filtered query of a `load()` and
    uses it for all others, with other filters or none, which would lack rows. And Spark refuses a
    reader that has the method while `spark.sql.python.filterPushdown.enabled` is off.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions as a list, because Spark takes nothing else. Raises SbpError."""
        options = self._options
        with plain_errors():
            streams = select_streams(options)
            client = client_for(options.servers, Patience.RUNNING)
            columns = find_columns(client, options, streams).for_query(self._schema)
            bounds = {bound.stream_id: bound for bound in client.stream_bounds(list(streams))}
            starts = starting_offsets(client, options, bounds, streams)
            ends = ending_offsets(client, options, bounds, streams)
            if options.ending is not None:
                check_ends(options.ending.option, starts, ends, streams)
            intervals = [Interval(each, starts[each], ends[each]) for each in streams]
            planned = plan_read(client, options, intervals, streams, columns)
        # Spark makes a partition of its own where there is none.
        return planned.partitions or [SpanPartition(options.servers, ())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        with plain_errors():
            yield from read_partition(partition, logical_arrow_schema(self._schema))
