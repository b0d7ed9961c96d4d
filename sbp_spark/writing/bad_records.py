"""Rows that cannot be written: finding them, and dead letters.

`find_bad_rows` and `find_bad_columns` find them in plain records and in columns. Such rows fail the
task, are skipped, or become dead letters, as onBadRecord says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sbp_core import limits
from sbp_core.errors import RecordBatchError, SbpError
from sbp_core.records import ROWS_SCHEMA, map_columns, record_sizes, record_too_large
from sbp_core.records.json_values import describe_columns
from sbp_core.wording import listed
from sbp_spark.spark_internals.task_log import LOG
from sbp_spark.writing.directory import TypedStream

StreamIds = int | npt.NDArray[np.int64]
"""The stream of all rows, or of each."""
RecordBytesMax = Callable[[Collection[int]], Mapping[int, int]]
"""Returns how many bytes a record of each stream may have, as `Client.record_bytes_max` does."""

ERROR_HEADER: Final = "sbp.error"
"""Header of a dead letter with the fault of the row."""
STREAM_HEADER: Final = "sbp.stream"
"""Header of a dead letter with the stream that the row named, its beginning if that is long."""
_HEADER_BYTES_MAX: Final = 4 * limits.KIB
KEPT_BYTES_MAX: Final = limits.RECORD_BYTES_MAX - 64 * limits.KIB
"""The largest row that a dead letter keeps, so that there is room for its headers."""


@dataclass(frozen=True, slots=True)
class BadRows:
    """Rows of a batch, by their index, with their fault and the stream that they name."""

    indexes: npt.NDArray[np.int64]
    error: SbpError
    stream: str | None = None


class BadRecordError(SbpError):
    """Rows that cannot be written, and are not to be passed over."""


def default_record_bytes_max(stream_ids: Collection[int]) -> Mapping[int, int]:
    """Return what every server accepts."""
    return dict.fromkeys(stream_ids, limits.RECORD_BYTES_MAX)


def find_bad_rows(
    rows: pa.RecordBatch,
    stream_ids: StreamIds = 0,
    record_bytes_max: RecordBytesMax = default_record_bytes_max,
) -> list[BadRows]:
    """Return the rows of ROWS_SCHEMA that the servers of their streams do not accept."""
    is_large = rows.nbytes > limits.RECORD_BYTES_MAX // 2
    found = too_large(record_sizes(rows), stream_ids, record_bytes_max) if is_large else []
    wrong = _wrong_headers(rows.column("headers"))
    if wrong.size:
        error = RecordBatchError("the name of a header is not UTF-8; correct it")
        found.append(BadRows(wrong, error))
    return found


def too_large(
    sizes: npt.NDArray[np.int64],
    stream_ids: StreamIds,
    record_bytes_max: RecordBytesMax = default_record_bytes_max,
) -> list[BadRows]:
    """Return which rows have more bytes than a record of their stream may.

    The servers are asked only if a row is larger than the default, which each of them accepts.
    Raises SbpError.
    """
    indexes = np.flatnonzero(sizes > limits.RECORD_BYTES_MAX)
    if not indexes.size:
        return []
    ids = np.full(len(sizes), stream_ids)[indexes]
    known = np.unique(ids[ids >= 0]).tolist()  # a row without a stream is bad for another reason
    found = []
    for stream_id, bytes_max in sorted(record_bytes_max(known).items()):
        large = indexes[(ids == stream_id) & (sizes[indexes] > bytes_max)]
        if large.size:
            fault = record_too_large(int(sizes[large].max()), bytes_max)
            found.append(BadRows(large, RecordBatchError(f"a record of {fault}")))
    return found


def distinct(bad: Sequence[BadRows]) -> list[BadRows]:
    """Return the bad rows with each row once, in the first entry that names it."""
    found: list[BadRows] = []
    claimed = np.zeros(0, dtype=np.int64)
    for each in bad:
        indexes = np.setdiff1d(each.indexes, claimed)
        claimed = np.union1d(claimed, indexes)
        if indexes.size:
            found.append(BadRows(indexes, each.error, each.stream))
    return found


def bad_record_error(bad: Sequence[BadRows], row_count: int) -> BadRecordError:
    """Return the error of a task that fails because of some of `row_count` rows."""
    count = sum(len(each.indexes) for each in bad)
    return BadRecordError(
        f"{bad[0].error} (row {bad[0].indexes[0]} of {row_count} in a batch; {count} of them cannot"
        " be written; onBadRecord=skip leaves such rows out, onBadRecord=deadletter:STREAM writes"
        " them to that stream)"
    )


def without(
    rows: pa.RecordBatch, bad: Sequence[BadRows]
) -> tuple[pa.RecordBatch, npt.NDArray[np.bool_]]:
    """Return the other rows, and which of all rows they are."""
    is_good = np.ones(rows.num_rows, dtype=np.bool_)
    for each in bad:
        is_good[each.indexes] = False
    return rows.filter(pa.array(is_good)), is_good


def to_dead_letters(rows: pa.RecordBatch, bad: Sequence[BadRows]) -> pa.RecordBatch:
    """Return bad rows as dead letters, in their order, with headers that describe the fault.

    A row that is too large keeps only its headers, if there is room, and its time.
    """
    letters = []
    for row, each in _one_by_one(rows, bad):
        is_kept = int(record_sizes(row)[0]) <= KEPT_BYTES_MAX
        key = row.column("key")[0].as_py() if is_kept else None
        value = row.column("value")[0].as_py() if is_kept else None
        has_headers = is_kept and not _wrong_headers(row.column("headers")).size
        headers = (row.column("headers")[0].as_py() if has_headers else None) or []
        headers += fault_headers(each)
        time = row.column("timestamp")[0]
        letters.append({"key": key, "value": value, "headers": headers, "timestamp": time})
    return _plain_rows(letters)


def _one_by_one(
    rows: pa.RecordBatch, bad: Sequence[BadRows]
) -> Iterator[tuple[pa.RecordBatch, BadRows]]:
    described = {int(index): each for each in bad for index in each.indexes}
    for index in sorted(described):
        yield rows.slice(index, 1), described[index]


def _plain_rows(records: Sequence[Mapping[str, object]]) -> pa.RecordBatch:
    columns = [
        pa.array([each.get(field.name) for each in records], field.type) for field in ROWS_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS_SCHEMA)


def fault_headers(bad: BadRows) -> list[tuple[str, bytes | None]]:
    """Return the headers that describe the fault of a row."""
    headers: list[tuple[str, bytes | None]] = [(ERROR_HEADER, _cut(str(bad.error)))]
    if bad.stream is not None:
        headers.append((STREAM_HEADER, _cut(bad.stream)))
    return headers


def log_bad_rows(bad: Sequence[BadRows], action: str) -> None:
    """Log how bad rows were handled."""
    for each in bad:
        LOG.warning("bad rows %s count=%d error=%s", action, len(each.indexes), each.error)


def _cut(text: str) -> bytes:
    """Return the text as the value of a header, so that there is room for it."""
    return text.encode()[:_HEADER_BYTES_MAX].decode(errors="ignore").encode()


def _wrong_headers(headers: pa.Array) -> npt.NDArray[np.int64]:
    """Return the indexes of rows with a header whose name is not UTF-8."""
    if headers.null_count == len(headers):
        return np.zeros(0, dtype=np.int64)
    return _find_invalid(headers)[0]


def _find_invalid(column: pa.Array) -> tuple[npt.NDArray[np.int64], str]:
    """Return the indexes of values that readers refuse, such as strings that are not UTF-8."""
    fault = _maybe_fault(column)
    if fault is None:
        return np.zeros(0, dtype=np.int64), ""
    singles = (pa.concat_arrays([column.slice(index, 1)]) for index in range(len(column)))
    wrong = [index for index, single in enumerate(singles) if _maybe_fault(single)]
    return np.array(wrong, dtype=np.int64), fault


_GROWTH_MAX: Final = 32
"""Upper bound of the size of nested values in a record, as a multiple of their size in Arrow."""
_FIXED_BYTES_MAX: Final = 17 * limits.SCHEMA_FIELDS_MAX
"""Upper bound of the size of all values of fixed width in a row."""


def find_bad_columns(
    rows: pa.RecordBatch,
    stream_ids: StreamIds,
    streams: Mapping[int, TypedStream],
    record_bytes_max: RecordBytesMax = default_record_bytes_max,
) -> list[BadRows]:
    """Return which rows their streams do not accept."""
    ids = np.full(rows.num_rows, stream_ids)
    return [
        *_missing(rows, ids, streams),
        *_invalid(rows),
        *_too_large(rows, ids, streams, record_bytes_max),
    ]


def columns_to_dead_letters(rows: pa.RecordBatch, bad: Sequence[BadRows]) -> pa.RecordBatch:
    """Return bad rows as plain records of ROWS_SCHEMA, in their order: the value is JSON.

    Only the headers of a row that is too large are kept.
    """
    letters = []
    for row, each in _one_by_one(rows, bad):
        text = _json(row) if int(record_sizes(row)[0]) <= KEPT_BYTES_MAX else b""
        value = text if 0 < len(text) <= KEPT_BYTES_MAX else None
        letters.append({"value": value, "headers": fault_headers(each)})
    return _plain_rows(letters)


def _json(row: pa.RecordBatch) -> bytes:
    try:
        (values,) = describe_columns(row)
    except UnicodeDecodeError:
        fields = [field.with_type(_as_bytes(field.type)) for field in row.schema]
        (values,) = describe_columns(row.cast(pa.schema(fields)))
    return json.dumps(values, ensure_ascii=False).encode()


def _as_bytes(kind: pa.DataType) -> pa.DataType:
    """Return the type with bytes for texts, which may be any."""
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_list(kind):
        return pa.list_(_as_bytes(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_as_bytes(kind.key_type), _as_bytes(kind.item_type))
    if pa.types.is_struct(kind):
        # Required fields may be null where the struct itself is, which a cast would refuse.
        return pa.struct([pa.field(each.name, _as_bytes(each.type)) for each in kind])
    return kind


def _missing(
    rows: pa.RecordBatch, ids: npt.NDArray[np.int64], streams: Mapping[int, TypedStream]
) -> list[BadRows]:
    """Return the rows without a value that their stream requires."""
    found = []
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if not column.null_count:
            continue
        requiring = {
            stream_id: stream.name
            for stream_id, stream in streams.items()
            if name in stream.schema.arrow.names and not stream.schema.arrow.field(name).nullable
        }
        if not requiring:
            continue
        is_bad = np.asarray(column.is_null()) & np.isin(ids, list(requiring))
        if is_bad.any():
            error = RecordBatchError(
                f"column {name} is null, and {listed(list(map(repr, requiring.values())))} requires"
                " a value: fill it, filter these rows out, or let it be null with mergeSchema=true"
            )
            found.append(BadRows(np.flatnonzero(is_bad), error))
    return found


def _invalid(rows: pa.RecordBatch) -> list[BadRows]:
    """Return the rows with values that readers refuse, such as a string that is not UTF-8."""
    found = []
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        wrong, fault = _find_invalid(column)
        if wrong.size:
            error = RecordBatchError(
                f"column {name} has a value that readers would refuse ({fault}); correct it, or, if"
                " it is not text, make the column binary"
            )
            found.append(BadRows(wrong, error))
    return found


def _maybe_fault(column: pa.Array) -> str | None:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        return str(error)
    return None


def _too_large(
    rows: pa.RecordBatch,
    ids: npt.NDArray[np.int64],
    streams: Mapping[int, TypedStream],
    record_bytes_max: RecordBytesMax,
) -> list[BadRows]:
    ids_by_schema: dict[pa.Schema, list[int]] = {}
    for stream_id in np.unique(ids).tolist():
        ids_by_schema.setdefault(streams[stream_id].schema.arrow, []).append(stream_id)
    is_bounded = all(_is_nested_alike(rows.schema, schema) for schema in ids_by_schema)
    largest = _FIXED_BYTES_MAX + sum(map(_largest, rows.columns))
    if is_bounded and largest <= limits.RECORD_BYTES_MAX:
        return []
    sizes = np.zeros(rows.num_rows, dtype=np.int64)
    for schema, stream_ids in ids_by_schema.items():
        nullable = pa.schema([field.with_nullable(True) for field in schema])
        mapped = map_columns(rows, nullable)
        sizes = np.where(np.isin(ids, stream_ids), record_sizes(mapped), sizes)
    return too_large(sizes, ids, record_bytes_max)


def _is_nested_alike(given: pa.Schema, there: pa.Schema) -> bool:
    """Whether nested values stay as they are; in other types they may grow by any factor."""
    return all(
        there.field(field.name).type == field.type
        for field in given
        if pa.types.is_nested(field.type)
    )


def _largest(column: pa.Array) -> int:
    """Return the most bytes of a value of the column, unless its type has a fixed width."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return int(column.nbytes)
    return int(column.nbytes) * _GROWTH_MAX if pa.types.is_nested(kind) else 0
