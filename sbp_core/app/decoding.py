"""Fetched bytes in, batches of rows and records out.

Records are made column by column: a loop over Arrow's scalars would take most of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import pairwise, repeat
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sbp_core import limits
from sbp_core.app import defaults
from sbp_core.app.record import NO_HEADERS, Batch, Record
from sbp_core.errors import RecordBatchError
from sbp_core.records import (
    ROWS_SCHEMA,
    Envelope,
    Run,
    StreamSchema,
    decode_batch,
    decode_columns,
    encoding_of,
    maybe_columns_together,
    small_runs,
)

_ROWS_MESSAGE: Final = bytes(ROWS_SCHEMA.serialize())
_TIME: Final = ROWS_SCHEMA.field("timestamp").type
_ROWS_ENOUGH: Final = 16_384
"""Rows of small batches that are decoded together."""


def fingerprints_of(envelopes: Iterable[Envelope]) -> set[str]:
    """Return the fingerprints of the schemas that typed batches need to be decoded."""
    return {each.schema_fingerprint or "" for each in envelopes if encoding_of(each).is_typed}


def decode_fetched(
    stream: str,
    envelopes: Iterable[Envelope],
    start_offset: int,
    end_offset: int | None,
    schemas: Mapping[str, StreamSchema],
) -> Iterator[Batch]:
    """Yield the records in [start_offset, end_offset) of batches without a gap between them.

    `schemas` has the schemas of typed batches by fingerprint. Raises RecordBatchError for a gap,
    and DamagedBatchError for a batch that cannot be decoded.
    """
    offset = start_offset
    for run in small_runs(
        envelopes, rows_enough=_ROWS_ENOUGH, bytes_enough=limits.BATCH_TARGET_BYTES
    ):
        for base_offset, rows, times, is_typed in _decoded(run, schemas):
            run_end = base_offset + rows.num_rows
            if not base_offset <= offset < run_end:
                raise RecordBatchError(
                    f"stream {stream}: expected offset {offset}, found records {base_offset} to"
                    f" {run_end - 1}; run `sbp log check` on the range server"
                )
            wanted_end = run_end if end_offset is None else min(run_end, end_offset)
            skipped, count = offset - base_offset, wanted_end - offset
            if count <= 0:
                return
            wanted = slice(skipped, skipped + count)
            yield Batch(stream, offset, rows[wanted], times[wanted], is_typed)
            offset = wanted_end


_new_record: Final[Callable[[Iterable[Any]], Record]] = partial(tuple.__new__, Record)
"""Makes a record of its fields, without the function of Python that `Record(...)` is."""


def pieces_of(batch: Batch) -> Iterator[Batch]:
    """Return a batch in pieces of CUT_ROWS: to make the records of a piece takes some ms."""
    for start in range(0, len(batch), defaults.CUT_ROWS):
        rows = batch.rows.slice(start, defaults.CUT_ROWS)
        times = batch.times.slice(start, defaults.CUT_ROWS)
        yield Batch(batch.stream, batch.base_offset + start, rows, times, batch.is_typed)


def records_of(batch: Batch) -> Iterator[Record]:
    """Return the records of a batch one by one."""
    stream, count = repeat(batch.stream), len(batch)
    offsets = range(batch.base_offset, batch.end_offset)
    times = batch.times.cast(pa.int64()).to_numpy(zero_copy_only=False).tolist()
    nothing = repeat(None)
    parts: tuple[Iterable[Any], ...]
    if batch.is_typed:
        columns = batch.rows.to_pylist()
        parts = (stream, offsets, times, nothing, nothing, repeat(NO_HEADERS), columns)
    else:
        key, value, headers, _ = batch.rows.columns
        keys = _values(key) if key.null_count < count else nothing
        found = map(_headers, headers) if headers.null_count < count else repeat(NO_HEADERS)
        parts = (stream, offsets, times, keys, _values(value), found, nothing)
    return map(_new_record, zip(*parts, strict=False))


def _decoded(
    run: Run, schemas: Mapping[str, StreamSchema]
) -> Iterator[tuple[int, pa.RecordBatch, pa.TimestampArray, bool]]:
    """Yield first offset, rows, times and whether typed: of the whole run, or of each batch."""
    first = run.envelopes[0]
    is_typed = encoding_of(first).is_typed
    if is_typed:
        schema = _schema_of(first, schemas)
        together = maybe_columns_together(run, schema, schema.arrow.names)
    else:
        together = run.maybe_joined(ROWS_SCHEMA, _ROWS_MESSAGE)
    if together is not None and (times := _maybe_joint_times(run, together)) is not None:
        yield first.base_offset, together, times, is_typed
        return
    for envelope in run.envelopes:
        if is_typed:
            rows = decode_columns(envelope, _schema_of(envelope, schemas))
        else:
            rows = decode_batch(envelope)
        yield envelope.base_offset, rows, _times(envelope, rows), is_typed


def _schema_of(envelope: Envelope, schemas: Mapping[str, StreamSchema]) -> StreamSchema:
    schema = schemas.get(envelope.schema_fingerprint or "")
    if schema is None:
        raise envelope.damage(
            f"it has schema {envelope.schema_fingerprint!r}, which the placement driver does not"
            " know for its stream"
        )
    return schema


def _maybe_joint_times(run: Run, rows: pa.RecordBatch) -> pa.TimestampArray | None:
    """Return the times of a run of batches, None if some records have the time of their batch."""
    name = _time_column(run.envelopes[0])
    if name is not None and rows.column(name).null_count == 0:
        return _micros(rows.column(name))
    parts = [pa.repeat(_base_time(each), each.record_count) for each in run.envelopes]
    return pa.concat_arrays(parts) if name is None else None


def _times(envelope: Envelope, rows: pa.RecordBatch) -> pa.TimestampArray:
    """Return the time of each record: its own, or else the time of the batch."""
    name = _time_column(envelope)
    if name is None:
        return pa.repeat(_base_time(envelope), rows.num_rows)
    times = _micros(rows.column(name))
    return pc.fill_null(times, _base_time(envelope)) if times.null_count else times


def _time_column(envelope: Envelope) -> str | None:
    return envelope.timestamp_column if encoding_of(envelope).is_typed else "timestamp"


def _base_time(envelope: Envelope) -> pa.Scalar:
    """Return the time of a batch. Raises DamagedBatchError."""
    if abs(envelope.base_timestamp_ms) > limits.RECORD_TIME_MS_MAX:
        raise envelope.damage(
            f"its time is {envelope.base_timestamp_ms} ms, beyond"
            f" {limits.RECORD_TIME_MS_MAX} ms, the last that a record can have"
        )
    return pa.scalar(envelope.base_timestamp_ms * 1000, _TIME)


def _micros(times: pa.TimestampArray) -> pa.TimestampArray:
    return times if times.type.equals(_TIME) else times.cast(_TIME, safe=False)


def _values(column: pa.BinaryArray) -> list[bytes | None]:
    """Return the values of a column of bytes."""
    _, ends, data = column.buffers()
    count, at = len(column), column.offset
    if column.null_count == count:
        return [None] * count
    bounds = np.frombuffer(ends, np.int32, count + 1, 4 * at).tolist()
    first = bounds[0]
    whole = b"" if data is None else data.slice(first, bounds[-1] - first).to_pybytes()
    if first:
        bounds = [bound - first for bound in bounds]
    values: list[bytes | None] = [whole[a:b] for a, b in pairwise(bounds)]
    if column.null_count:
        for index in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[index] = None
    return values


def _headers(pairs: Any) -> Mapping[str, bytes | None]:
    found = pairs.as_py()
    return dict(found) if found else NO_HEADERS
