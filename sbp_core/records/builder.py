"""Rows in batches of any size in, record batches of about one size out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sbp_core import limits
from sbp_core.errors import RecordBatchError
from sbp_core.records.arrow_body import Compression, check_values, row_ends
from sbp_core.records.encodings.columns_encoding import (
    check_columns_schema,
    check_timestamp_column,
    encode_columns,
)
from sbp_core.records.encodings.rows_encoding import check_rows_schema, encode_rows
from sbp_core.records.stream_schema import StreamSchema, check_required

_SLICES_MAX: Final = 256
"""Waiting slices after which they are joined: a slice of one row costs kilobytes around it."""
_SPARE_BYTES_MAX: Final = 64 * limits.KIB
"""Bytes beside its own that a waiting slice may keep alive, on top of its own size once more."""


class BatchBuilder(ABC):
    """Joins small batches of rows and splits large ones, in order, into encoded record batches.

    A record batch has about `target_bytes` of rows before compression: at least three quarters,
    unless it was flushed or has `records_max`, and at most half as much again, unless a single
    record is larger, up to `record_bytes_max`. Rows that come in batches of that size are so passed
    on as they came. Between calls a small multiple of `target_bytes` is held, whatever was added.
    """

    def __init__(self, *, target_bytes: int, records_max: int, record_bytes_max: int) -> None:
        assert 0 < target_bytes <= limits.RECORD_BYTES_MAX
        assert 0 < records_max <= limits.BATCH_RECORDS_MAX
        assert 0 < record_bytes_max <= limits.RECORD_BYTES_LARGEST
        self._target_bytes = target_bytes
        self._full_bytes = target_bytes - target_bytes // 4
        self._bytes_max = min(target_bytes + target_bytes // 2, limits.RECORD_BYTES_MAX)
        self._records_max = records_max
        self._record_bytes_max = record_bytes_max
        self._waiting: list[pa.RecordBatch] = []
        self.waiting_bytes = 0
        self.waiting_count = 0
        """Records that were added and are in no record batch yet, and their bytes."""
        self._timestamp_ms = 0

    @property
    def _is_full(self) -> bool:
        return self.waiting_bytes >= self._full_bytes or self.waiting_count >= self._records_max

    def add(self, rows: pa.RecordBatch, *, timestamp_ms: int) -> list[bytes]:
        """Add rows of the schema and return the record batches that are full now.

        A record batch gets the `timestamp_ms` (milliseconds since the epoch) that came with its
        first record. Raises RecordBatchError or SchemaError, and adds nothing, when the rows have
        another schema, are invalid, or hold a record larger than `record_bytes_max`.
        """
        self._check(rows)
        ends = row_ends(rows)
        _check_record_sizes(ends, self._record_bytes_max)
        full: list[bytes] = []
        start = 0
        while start < rows.num_rows:
            stop = self._fitting_stop(ends, start)
            if stop > start:
                self._wait(rows.slice(start, stop - start), ends[stop] - ends[start], timestamp_ms)
            if stop < rows.num_rows or self._is_full:
                full += self.flush()
            start = stop
        if self._waiting:
            self._waiting[-1] = _compact(self._waiting[-1])
        return full

    def flush(self) -> list[bytes]:
        """Return the waiting rows as one record batch; no batch if there are none."""
        if not self._waiting:
            return []
        encoded = self._encode(
            self._waiting[0] if len(self._waiting) == 1 else _joined(self._waiting),
            self._timestamp_ms,
        )
        self._waiting = []
        self.waiting_bytes = 0
        self.waiting_count = 0
        return [encoded]

    @abstractmethod
    def _check(self, rows: pa.RecordBatch) -> None:
        """Raise RecordBatchError or SchemaError for rows that are invalid, or of another schema."""

    @abstractmethod
    def _encode(self, rows: pa.RecordBatch, timestamp_ms: int) -> bytes:
        """Return a record batch of rows that were checked when they were added."""

    def _fitting_stop(self, ends: npt.NDArray[np.int64], start: int) -> int:
        """Return the end of the rows from `start` that still fit beside the waiting ones.

        The last rows may fill a batch beyond its target, so that they are not left over. Into an
        empty batch one record always fits.
        """
        is_rest_fitting = self.waiting_bytes + ends[-1] - ends[start] <= self._bytes_max
        room_bytes = self._bytes_max if is_rest_fitting else self._target_bytes
        room_bytes -= self.waiting_bytes
        stop = int(np.searchsorted(ends, ends[start] + room_bytes, side="right")) - 1
        stop = min(stop, start + self._records_max - self.waiting_count)
        return max(stop, start if self._waiting else start + 1)

    def _wait(self, rows: pa.RecordBatch, size_bytes: int, timestamp_ms: int) -> None:
        if not self._waiting:
            self._timestamp_ms = timestamp_ms
        self._waiting.append(rows)
        self.waiting_bytes += int(size_bytes)
        self.waiting_count += rows.num_rows
        if len(self._waiting) >= _SLICES_MAX:
            self._waiting = [_joined(self._waiting)]


class RowsBuilder(BatchBuilder):
    """Builds record batches of rows of ROWS_SCHEMA.

    `Client.record_bytes_max` returns how many bytes the server of a stream accepts.
    """

    def __init__(
        self,
        stream_id: int,
        *,
        target_bytes: int = limits.BATCH_TARGET_BYTES,
        records_max: int = limits.BATCH_RECORDS_MAX,
        record_bytes_max: int = limits.RECORD_BYTES_MAX,
        compression: Compression = "none",
    ) -> None:
        super().__init__(
            target_bytes=target_bytes, records_max=records_max, record_bytes_max=record_bytes_max
        )
        self._stream_id = stream_id
        self._compression: Compression = compression

    def _check(self, rows: pa.RecordBatch) -> None:
        check_rows_schema(rows)
        check_values(rows)

    def _encode(self, rows: pa.RecordBatch, timestamp_ms: int) -> bytes:
        return encode_rows(
            rows,
            stream_id=self._stream_id,
            timestamp_ms=timestamp_ms,
            compression=self._compression,
            is_checked=True,
        )


class ColumnsBuilder(BatchBuilder):
    """Builds record batches of a typed stream, whose `timestamp_column` has the records' times.

    They have statistics of `stats_columns`, paths of columns, as far as these can have any. Raises
    SchemaError if `timestamp_column` is no timestamp of the schema.
    """

    def __init__(
        self,
        stream_id: int,
        schema: StreamSchema,
        *,
        timestamp_column: str | None = None,
        target_bytes: int = limits.BATCH_TARGET_BYTES,
        records_max: int = limits.BATCH_RECORDS_MAX,
        record_bytes_max: int = limits.RECORD_BYTES_MAX,
        compression: Compression = "none",
        stats_columns: Sequence[str] = (),
    ) -> None:
        super().__init__(
            target_bytes=target_bytes, records_max=records_max, record_bytes_max=record_bytes_max
        )
        self._stream_id = stream_id
        self._stats_columns = tuple(stats_columns)
        check_timestamp_column(timestamp_column, schema)
        self._schema = schema
        self._timestamp_column = timestamp_column
        self._compression: Compression = compression

    def _check(self, rows: pa.RecordBatch) -> None:
        check_columns_schema(rows, self._schema)
        check_values(rows)
        check_required(rows)

    def _encode(self, rows: pa.RecordBatch, timestamp_ms: int) -> bytes:
        return encode_columns(
            rows,
            self._schema,
            stream_id=self._stream_id,
            timestamp_ms=timestamp_ms,
            timestamp_column=self._timestamp_column,
            compression=self._compression,
            stats_columns=self._stats_columns,
            is_checked=True,
        )


def _compact(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows, copied if they keep much more memory alive than they fill."""
    is_compact = rows.get_total_buffer_size() <= 2 * rows.nbytes + _SPARE_BYTES_MAX
    return rows if is_compact else _joined([rows])


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the batches joined, in memory of their own: they may be slices of larger batches."""
    columns = zip(*(batch.columns for batch in batches), strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.concat_arrays(parts) for parts in columns], schema=batches[0].schema
    )


def _check_record_sizes(ends: npt.NDArray[np.int64], bytes_max: int) -> None:
    sizes = np.diff(ends)
    if sizes.size and sizes.max() > bytes_max:
        index = int(sizes.argmax())
        which = "the record" if sizes.size == 1 else f"record {index} of the batch"
        raise RecordBatchError(f"{which} has {record_too_large(int(sizes[index]), bytes_max)}")


def record_too_large(size_bytes: int, bytes_max: int) -> str:
    """Return the fault of a record that is larger than its server accepts, and the remedy."""
    remedy = (
        "split its value into several records, or store it elsewhere and write a reference to it"
    )
    if bytes_max < limits.RECORD_BYTES_LARGEST:
        remedy += (
            ", or set record_bytes_max of the range servers higher, which is --record-bytes-max of"
            f" sbp serve, {limits.RECORD_BYTES_LARGEST} at most"
        )
    return f"{size_bytes} bytes; at most {bytes_max} are allowed: {remedy}"
