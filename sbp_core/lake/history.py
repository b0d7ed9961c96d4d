"""The records of a stream in the files of its table, as record batches for a reader of the log.

A file has the records of one day, so the offsets of files overlap where times are not in order. A
reader gets a cut: the offsets [start, end) of as many row groups as overlap, sorted. If the
statistics of these groups exclude a filter of the reader, the cut comes as a head alone, as batches
of a server do.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from sbp_core import limits
from sbp_core.errors import ConfigurationError, OffsetOutOfRangeError, SbpError
from sbp_core.lake.columns import HEADERS, KEY, OFFSET, PLAIN, TIMESTAMP, table_schema
from sbp_core.lake.files import as_columns, file_system
from sbp_core.lake.table import LakeTable
from sbp_core.records import (
    ROWS_SCHEMA,
    BatchFilter,
    Envelope,
    Projection,
    StreamSchema,
    decode_envelope,
    encode_statistics,
)
from sbp_core.records.batch_meta import BatchMeta
from sbp_core.records.encodings.columns_encoding import COLUMNS_ENCODING
from sbp_core.records.encodings.rows_encoding import ROWS_ENCODING
from sbp_core.records.envelope import encode_head
from sbp_core.records.skipping import maybe_skipped
from sbp_core.status_code import StatusCode

_FOOTERS_KEPT: Final = 1_024
_CUTS_KEPT: Final = 4
_TIME: Final = ROWS_SCHEMA.field("timestamp").type
_PLAIN: Final = {"key": KEY, "value": "value", "headers": HEADERS, "timestamp": TIMESTAMP}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The columns and rows that a reader wants of the batches of a stream: see `FetchItem`."""

    projections: tuple[Projection, ...] = ()
    filters: tuple[BatchFilter, ...] = ()


class _Group(NamedTuple):
    """A row group with records of the offsets [start, end), perhaps not of all of them."""

    start: int
    end: int
    path: str
    number: int
    statistics: pq.RowGroupMetaData


class _File(NamedTuple):
    """A file whose footer has been read: it is not read again for each part."""

    footer: pq.FileMetaData
    groups: list[_Group]


class TableHistory:
    """The records of a stream that a table has. For one thread at a time."""

    def __init__(self, table: LakeTable, stream_id: int, schema: StreamSchema | None) -> None:
        landed = table.landed()
        self._io = table.io
        self._files = table.files()
        self._stream_id = stream_id
        self._schema = schema
        self._cuts: OrderedDict[tuple[int, Wanted], deque[Envelope]] = OrderedDict()
        self._opened: dict[str, _File] = {}
        self.end = 0 if landed is None else landed.end_offset
        self.start = min((each.start for each in self._files), default=self.end)
        self.gaps = () if landed is None else landed.gaps
        self.bytes = sum(each.bytes for each in self._files)
        if schema is not None and table.has_column(KEY):
            raise ConfigurationError(
                f"table {table.name} has records from before the stream had a schema, which cannot"
                " be read as its columns: set history=off, and read the table itself"
            )

    def parts(self, log_start: int) -> Iterator[tuple[int, int]]:
        """Yield the intervals of offsets before the start of the log that the table has."""
        position, end = self.start, min(self.end, log_start)
        for gap_start, gap_end in (*self.gaps, (end, end)):
            if position < min(gap_start, end):
                yield position, min(gap_start, end)
            position = max(position, gap_end)

    def read(
        self, start: int, end: int, bytes_max: int, wanted: Wanted
    ) -> tuple[tuple[Envelope, ...], int]:
        """Return record batches from `start` on, and where they end: one at least.

        Raises OffsetOutOfRangeError if the table does not have the record at `start`.
        """
        batches = self._cuts.pop((start, wanted), None) or deque(self._cut(start, end, wanted))
        taken = [batches.popleft()]
        size = taken[0].length_bytes
        while batches and size + batches[0].length_bytes <= bytes_max:
            size += batches[0].length_bytes
            taken.append(batches.popleft())
        position = taken[-1].end_offset
        if batches:
            self._cuts[position, wanted] = batches
            if len(self._cuts) > _CUTS_KEPT:
                self._cuts.popitem(last=False)
        return tuple(taken), position

    def find_time(self, time_us: int, start: int, end: int) -> int | None:
        """Return the first offset in [start, end) whose record is of a time or later."""
        time = pa.scalar(time_us, pa.int64()).cast(_TIME)
        found: int | None = None
        for file in self._files:
            is_outside = file.end <= start or file.start >= (end if found is None else found)
            if is_outside or file.newest_us < time_us:
                continue
            condition = _between(start, end) & (pc.field(TIMESTAMP) >= time)
            filesystem, location = file_system(self._io, file.path)
            fragment = ds.ParquetFileFormat().make_fragment(location, filesystem)
            rows = fragment.to_table(columns=[OFFSET], filter=condition)
            if rows.num_rows:
                first = pc.min(rows[OFFSET]).as_py()
                found = first if found is None else min(found, first)
        return found

    def _cut(self, start: int, end: int, wanted: Wanted) -> Iterator[Envelope]:
        groups = self._overlapping(start)
        last = min(end, max(each.end for each in groups))
        head = self._maybe_skipped(groups, start, last, wanted)
        if head is not None:
            yield decode_envelope(head)
            return
        names = self._names(wanted)
        by_path: defaultdict[str, list[int]] = defaultdict(list)
        for each in groups:
            by_path[each.path].append(each.number)
        is_whole = all(start <= each.start and each.end <= last for each in groups)
        rows = pa.concat_tables(self._scan(path, names, at) for path, at in by_path.items())
        if not is_whole:
            rows = rows.filter(_between(start, last))
        offsets = rows[OFFSET].to_numpy()
        if (np.diff(offsets) < 0).any():
            rows = rows.sort_by(OFFSET)
            offsets = rows[OFFSET].to_numpy()
        wrong = np.flatnonzero(offsets != np.arange(start, start + len(offsets)))
        count = int(wrong[0]) if len(wrong) else len(offsets)
        if count < len(offsets) and offsets[count] < start + count:
            raise SbpError(f"a table has the record at offset {offsets[count]} twice")
        if not count:
            raise _missing(start, int(offsets[0]) if len(offsets) else last, self.end)
        yield from self._batches(rows.slice(0, count), start)

    def _overlapping(self, start: int) -> list[_Group]:
        """Return the row groups that may have the record at `start`, and all that overlap them."""
        groups: list[_Group] = []
        upto = start + 1
        while not groups or upto < (end := max(each.end for each in groups)):
            upto = end if groups else upto
            files = [each for each in self._files if each.start < upto and each.end > start]
            opened = [self._open(file.path) for file in files]
            every = [each for file in opened for each in file.groups if each.end > start]
            groups = [each for each in every if each.start < upto]
            if not groups:
                starts = [*(each.start for each in every), *(each.start for each in self._files)]
                later = [each for each in starts if each > start]
                raise _missing(start, min(later, default=self.end), self.end)
        return groups

    def _open(self, path: str) -> _File:
        if path not in self._opened:
            if len(self._opened) >= _FOOTERS_KEPT:
                self._opened.clear()
            with self._file(path) as file:
                footer = file.metadata
            numbers = range(footer.num_row_groups)
            groups = [_group(path, each, footer.row_group(each)) for each in numbers]
            self._opened[path] = _File(footer, groups)
        return self._opened[path]

    def _file(self, path: str, footer: pq.FileMetaData | None = None) -> pq.ParquetFile:
        filesystem, location = file_system(self._io, path)
        return pq.ParquetFile(location, metadata=footer, pre_buffer=True, filesystem=filesystem)

    def _scan(self, path: str, names: Sequence[str], row_groups: Sequence[int]) -> pa.Table:
        with self._file(path, self._open(path).footer) as file:
            there = [each for each in file.schema_arrow.names if each in names]
            rows = file.read_row_groups(row_groups, there, use_threads=False)
        schema = PLAIN if self._schema is None else table_schema(self._schema.arrow)
        return as_columns(rows, pa.schema([each for each in schema if each.name in names]))

    def _names(self, wanted: Wanted) -> list[str]:
        """Return the columns of the table to read: unwanted ones are null, as nobody looks."""
        if self._schema is None:
            return [OFFSET, *_PLAIN.values()]
        fields = list(self._schema.arrow)
        projections = [
            each for each in wanted.projections if each.schema == self._schema.fingerprint
        ]
        if projections:
            nodes = np.unpackbits(np.frombuffer(projections[0].nodes, np.uint8), bitorder="little")
            starts = np.cumsum([0, *(_node_count(each.type) for each in fields)])
            fields = [
                each
                for each, at in zip(fields, starts[:-1], strict=True)
                if nodes[at] or not each.nullable
            ]
        return [OFFSET, TIMESTAMP, *(each.name for each in fields)]

    def _maybe_skipped(
        self, groups: Sequence[_Group], start: int, end: int, wanted: Wanted
    ) -> bytes | None:
        """Return the head that stands for all groups if no row of them is wanted."""
        schema = self._schema
        if schema is None:
            return None
        filters = [each for each in wanted.filters if each.schema == schema.fingerprint]
        names = [bounds.column or "" for each in filters for bounds in each.bounds]
        if not names or end - start > limits.BATCH_RECORDS_MAX:
            return None
        size_bytes = sum(each.statistics.total_byte_size for each in groups)
        for group in groups:
            text = _statistics_text(group.statistics, schema.arrow, names)
            meta = BatchMeta(
                *(self._stream_id, end - start, 0, COLUMNS_ENCODING, str(size_bytes)),
                schema_fingerprint=schema.fingerprint,
                statistics=text,
            )
            head = encode_head(meta, start)
            skipped = maybe_skipped(memoryview(head), len(head) + size_bytes, filters, start)
            if skipped is None:
                return None
        return skipped

    def _batches(self, rows: pa.Table, start: int) -> Iterator[Envelope]:
        step = max(1, rows.num_rows * limits.BATCH_TARGET_BYTES // max(1, rows.nbytes))
        for at in range(0, rows.num_rows, step):
            part = rows.slice(at, step).combine_chunks()
            times = part[TIMESTAMP].cast(pa.int64()).to_numpy()
            if self._schema is None:
                columns = [part[_PLAIN[each.name]].cast(each.type) for each in ROWS_SCHEMA]
                (batch,) = pa.Table.from_arrays(columns, schema=ROWS_SCHEMA).to_batches()
                yield self._batch(batch, start + at, times[0])
                continue
            column, batch = _with_times(_stream_rows(part, self._schema.arrow), part)
            edges = [0, len(times)]
            if column is None:  # a batch has one time
                edges[1:1] = (np.flatnonzero(np.diff(times)) + 1).tolist()
            for first, last in pairwise(edges):
                piece = batch.slice(first, last - first)
                yield self._batch(piece, start + at + first, times[first], column)

    def _batch(
        self, rows: pa.RecordBatch, start: int, time_us: int, timestamp_column: str | None = None
    ) -> Envelope:
        schema = self._schema
        return Envelope(
            self._stream_id,
            start,
            rows.num_rows,
            base_timestamp_ms=int(time_us) // 1000,
            encoding=ROWS_ENCODING if schema is None else COLUMNS_ENCODING,
            body=memoryview(b""),
            length_bytes=max(1, rows.nbytes),
            schema_fingerprint=None if schema is None else schema.fingerprint,
            timestamp_column=timestamp_column,
            rows=rows,
        )


def _stream_rows(rows: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of a table in the types of the stream; columns that were not read are null."""
    there = set(rows.column_names)
    columns = [
        rows[each.name].combine_chunks().cast(each.type)
        if each.name in there
        else pa.nulls(rows.num_rows, each.type)
        for each in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _with_times(batch: pa.RecordBatch, rows: pa.Table) -> tuple[str | None, pa.RecordBatch]:
    """Return the column that has the times of the records, None if they need to be told by batch.

    It is the stream's own, or one that was not read, which nobody looks at: it gets the times.
    """
    times = rows[TIMESTAMP].combine_chunks()
    for at, field in enumerate(batch.schema):
        if field.type != _TIME:
            continue
        if field.name not in rows.column_names:
            return field.name, batch.set_column(at, field, times)
        if batch.column(at).equals(times):
            return field.name, batch
    return None, batch


def _group(path: str, number: int, metadata: pq.RowGroupMetaData) -> _Group:
    offsets = _statistics(metadata, OFFSET)
    return _Group(offsets.min, offsets.max + 1, path, number, metadata)


def _statistics(group: pq.RowGroupMetaData, path: str) -> Any:
    """Return the statistics of a column, None if there are none."""
    for at in range(group.num_columns):
        column = group.column(at)
        if column.path_in_schema == path:
            return column.statistics
    return None


def _statistics_text(
    group: pq.RowGroupMetaData, schema: pa.Schema, names: Sequence[str]
) -> str | None:
    """Return the statistics of a row group as record batches have them: those of its extremes."""
    columns = {}
    for name in names:
        field = schema.field(name) if name in schema.names else None
        found = _statistics(group, name)
        if field is None or found is None or not found.has_null_count:
            continue
        values: list[Any] = [None] * min(1, found.null_count)
        if found.has_min_max:
            values += [found.min, found.max]
        elif found.null_count < group.num_rows:
            continue
        if pa.types.is_floating(field.type):
            values.append(float("nan"))  # Parquet passes over NaN
        try:
            stored = table_schema(pa.schema([field])).field(name).type
            columns[name] = pa.array(values, stored).cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            continue
    if not columns:
        return None
    longest = max(map(len, columns.values()))
    padded = {
        name: pa.concat_arrays([each, pa.repeat(each[-1], longest - len(each))])
        for name, each in columns.items()
    }
    return encode_statistics(pa.RecordBatch.from_pydict(padded), list(padded))


def _node_count(kind: pa.DataType) -> int:
    """Return how many field nodes a column has in a message: see `records.projection`."""
    if pa.types.is_map(kind):
        return 2 + _node_count(kind.key_type) + _node_count(kind.item_type)
    return 1 + sum(_node_count(kind.field(at).type) for at in range(kind.num_fields))


def _between(start: int, end: int) -> pc.Expression:
    return (pc.field(OFFSET) >= start) & (pc.field(OFFSET) < end)


def _missing(start: int, found: int, end: int) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(
        StatusCode.OFFSET_OUT_OF_RANGE,
        f"the table has no records of the offsets {start} to {found - 1}",
        OffsetOutOfRangeError.encode_bounds(found, end),
    )
