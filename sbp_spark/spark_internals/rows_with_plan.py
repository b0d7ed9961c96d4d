"""Giving Spark the rows of a small micro-batch with its plan, so that no task starts Python.

The module depends on the class of Spark's own reader that brings rows with a plan, and on when
Spark looks for it: between `partitions` and the next call. Where there is no such class, tasks read
the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, Final

import pyarrow as pa
import pyspark

from sbp_core import limits
from sbp_core.client import Client, FetchItem
from sbp_core.errors import SbpError
from sbp_spark.client_pool import Connect, Patience, client_for
from sbp_spark.reading.input_partitions import SpanPartition, decode_chunks, layout_for
from sbp_spark.reading.layout import ROWS_PER_BATCH
from sbp_spark.reading.partition_planning import StreamSpan
from sbp_spark.reading.prefetch import SPANS_PER_FETCH, Chunk
from sbp_spark.reporting import LOG
from sbp_spark.spark_internals import SEEN_IN


def maybe_own_reader(version: str = pyspark.__version__) -> type | None:
    """Return the class of Spark's own reader that brings rows with a plan.

    None in a release with which that was not tested, or that has no such class.
    """
    if version not in SEEN_IN:
        return None
    try:
        module = import_module("pyspark.sql.datasource_internal")
    except ImportError:
        return None
    found = getattr(module, "_SimpleStreamReaderWrapper", None)
    return found if isinstance(found, type) and hasattr(found, "getCache") else None


OWN_READER: Final = maybe_own_reader()


class RowsWithPlan:
    """A part of a reader whose `partitions` may have read the only partition that it returns.

    Spark keeps such rows as a block, and the task reads that instead of starting Python. If the
    block is lost, it reads the partition as it always does.
    """

    _rows: list[pa.RecordBatch] | None = None
    _rows_are_of: tuple[dict[str, Any], dict[str, Any]] | None = None
    """The start and the end of the micro-batch whose rows they are."""
    own_reader: type | None = OWN_READER

    def getCache(  # noqa: N802 - Spark's name
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Iterator[pa.RecordBatch] | None:
        """Return the rows of the micro-batch that was just planned, once; None for another one."""
        rows, self._rows = self._rows, None
        return iter(rows) if rows is not None and self._rows_are_of == (start, end) else None

    @property  # type: ignore[misc]  # it cannot be set
    def __class__(self) -> type:
        """The class for `isinstance`: Spark's own reader as long as there are rows to return."""
        return type(self) if self._rows is None or self.own_reader is None else self.own_reader


RECORDS_MAX: Final = ROWS_PER_BATCH
"""A task reads more records in less time than it takes to return them with the plan."""
BYTES_MAX: Final = limits.MIB
"""Limit of the record batches as they are stored."""
ROW_BYTES_MAX: Final = 4 * BYTES_MAX
"""Limit of the decoded rows, which may be far larger than the compressed batches."""


class SmallBatches:
    """Reads micro-batches that one FETCH brings, and leaves all others to tasks.

    Micro-batches are not tried if records lately were too large.
    """

    def __init__(self, connect: Connect = client_for) -> None:
        self._connect = connect
        self._record_bytes = 0

    def maybe_read(
        self, partitions: Sequence[SpanPartition], schema: pa.Schema
    ) -> list[pa.RecordBatch] | None:
        """Return all rows of a plan; None if tasks are to read them.

        After any error tasks read them, too: they retry for longer, and handle lost records.
        """
        if len(partitions) != 1 or not self._is_small(partitions[0].spans):
            return None
        (partition,) = partitions
        client = self._connect(partition.servers, Patience.STARTING)
        try:
            chunks = self._fetch(client, partition.spans)
            if chunks is None:
                return None
            layout = layout_for(partition, schema, client)
            return self._decoded(decode_chunks(chunks, partition.spans, layout))
        except SbpError as error:
            LOG.debug("a small micro-batch is left to a task: %s", error)
            return None

    def _is_small(self, spans: Sequence[StreamSpan]) -> bool:
        count = sum(span.end_offset - span.start_offset for span in spans)
        is_short = len(spans) <= SPANS_PER_FETCH and count <= RECORDS_MAX
        return is_short and count * self._record_bytes <= BYTES_MAX

    def _fetch(self, client: Client, spans: Sequence[StreamSpan]) -> list[Chunk] | None:
        """Return all record batches, span by span, if one FETCH brings them. Raises SbpError."""
        bytes_max = BYTES_MAX // len(spans)
        items = [
            FetchItem(span.stream_id, span.start_offset, span.end_offset, bytes_max)
            for span in spans
        ]
        chunks, size_bytes, count, is_whole = [], 0, 0, True
        for outcome in client.fetch(items):
            if outcome.error is not None:
                raise outcome.error
            span = spans[outcome.item_index]
            size_bytes += outcome.size_bytes
            count += max(0, outcome.next_offset - span.start_offset)
            is_whole = is_whole and outcome.next_offset >= span.end_offset
            chunks.append(Chunk(outcome.item_index, outcome.batches))
        self._record_bytes = size_bytes // max(1, count)
        chunks.sort(key=lambda chunk: chunk.span_index)  # answers of several servers come mixed
        return chunks if is_whole else None

    def _decoded(self, batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch] | None:
        """Return all rows, unless Spark cannot copy them or they grew far beyond their batches."""
        found: list[pa.RecordBatch] = []
        count, size_bytes = 0, 0
        for batch in batches:
            if not can_be_copied(batch):
                return None
            found.append(batch)
            count += batch.num_rows
            size_bytes += batch.nbytes
            if size_bytes > ROW_BYTES_MAX:
                self._record_bytes = size_bytes // count
                return None
        return found


def can_be_copied(rows: pa.RecordBatch) -> bool:
    """Whether Spark can keep these rows as a block, for which it copies them.

    Spark copies the elements of an array of numbers, booleans or times before it looks for nulls
    among them, and so the values of a map. Arrow refuses to read such a null, unless options of the
    JVM forbid it to check. A task never copies arrays as a whole.
    """
    return not any(map(_has_null_element, rows.columns))


def _has_null_element(array: pa.Array) -> bool:
    """Whether a list or a map in a column may have a null of a type of fixed width inside."""
    kind = array.type
    if pa.types.is_struct(kind):
        return any(_has_null_element(array.field(index)) for index in range(kind.num_fields))
    if pa.types.is_map(kind):
        return any(map(_is_or_has_null, (array.keys, array.items)))
    return pa.types.is_list(kind) and _is_or_has_null(array.values)


def _is_or_has_null(elements: pa.Array) -> bool:
    is_null = elements.null_count > 0 and pa.types.is_primitive(elements.type)
    return is_null or _has_null_element(elements)
