"""Rows that cannot be written: which they are, and what becomes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sbp_core import limits
from sbp_core.errors import RecordBatchError, SbpError
from sbp_core.records import ROWS_SCHEMA, TEXTS_BYTES_SAFE, record_sizes, texts_bytes
from sbp_spark.spark_internals.task_log import LOG

ERROR_HEADER: Final = "sbp.error"
"""Header of a dead letter that says what was wrong with the row."""
STREAM_HEADER: Final = "sbp.stream"
"""Header of a dead letter with the stream that the row named, its beginning if that is long."""
_HEADER_BYTES_MAX: Final = 4 * limits.KIB
KEPT_BYTES_MAX: Final = limits.RECORD_BYTES_MAX - 64 * limits.KIB
"""What a dead letter keeps of a row, so that there is room for its headers."""


@dataclass(frozen=True, slots=True)
class BadRows:
    """Rows of a batch, by their index, and what is wrong with them; the stream that they name."""

    indexes: npt.NDArray[np.int64]
    error: SbpError
    stream: str | None = None


class BadRecordError(SbpError):
    """Rows that cannot be written, and are not to be passed over."""


def find_bad_rows(rows: pa.RecordBatch) -> list[BadRows]:
    """Return which of some rows of ROWS_SCHEMA no server takes, whatever their stream is."""
    is_large = rows.nbytes > limits.RECORD_BYTES_MAX // 2
    found = too_large(record_sizes(rows)) if is_large else []
    wrong = _wrong_headers(rows.column("headers"))
    if wrong.size:
        error = RecordBatchError("a header whose name is no UTF-8; correct it")
        found.append(BadRows(wrong, error))
    return found


def too_large(sizes: npt.NDArray[np.int64]) -> list[BadRows]:
    """Return which rows have more bytes than a record may."""
    indexes = np.flatnonzero(sizes > limits.RECORD_BYTES_MAX)
    if not indexes.size:
        return []
    error = RecordBatchError(
        f"a record of {sizes.max()} octets; at most {limits.RECORD_BYTES_MAX} are allowed. Split"
        " its value into several records, or store it elsewhere and write a reference to it"
    )
    return [BadRows(indexes, error)]


def distinct(bad: Sequence[BadRows]) -> list[BadRows]:
    """Return the same with each row in the first of those that name it only."""
    found: list[BadRows] = []
    claimed = np.zeros(0, dtype=np.int64)
    for each in bad:
        indexes = np.setdiff1d(each.indexes, claimed)
        claimed = np.union1d(claimed, indexes)
        if indexes.size:
            found.append(BadRows(indexes, each.error, each.stream))
    return found


def bad_record_error(bad: Sequence[BadRows], row_count: int) -> BadRecordError:
    """Return the error of a task that fails because of some of so many rows."""
    count = sum(len(each.indexes) for each in bad)
    return BadRecordError(
        f"{bad[0].error} (row {bad[0].indexes[0]} of {row_count} in a batch; {count} of them cannot"
        " be written; onBadRecord=skip leaves such rows out, onBadRecord=deadletter:STREAM keeps"
        " them there)"
    )


def without(
    rows: pa.RecordBatch, bad: Sequence[BadRows]
) -> tuple[pa.RecordBatch, npt.NDArray[np.bool_]]:
    """Return the other rows, and which of all rows they are."""
    is_good = np.ones(rows.num_rows, dtype=np.bool_)
    for each in bad:
        is_good[each.indexes] = False
    return rows.filter(pa.array(is_good)), is_good


def to_dead_letters(
    rows: pa.RecordBatch, bad: Sequence[BadRows], *, is_sequence: bool = False
) -> pa.RecordBatch:
    """Return bad rows as they are kept, in their order, with headers that say what was wrong.

    Of one that is too large only the headers are, if there is room; the times are as they were.
    With `is_sequence` they fit into record sequences: null values are empty, bytes of a key or
    header that are not UTF-8 are escaped, and key and headers are left out if they are too large.
    """
    described = {int(index): each for each in bad for index in each.indexes}
    letters = []
    for index, each in sorted(described.items()):
        row = rows.slice(index, 1)
        size = int(record_sizes(row)[0])
        is_kept = size <= KEPT_BYTES_MAX
        has_texts = is_kept and not (is_sequence and texts_bytes(row)[0] > TEXTS_BYTES_SAFE // 2)
        key = row.column("key")[0].as_py() if has_texts else None
        value = row.column("value")[0].as_py() if is_kept else None
        headers = _headers_of(row, each, is_kept=has_texts)
        if is_sequence:
            key, value = None if key is None else _as_text(key), value or b""
            headers = [(name, _as_text(content or b"")) for name, content in headers]
        time = row.column("timestamp")[0]
        letters.append({"key": key, "value": value, "headers": headers, "timestamp": time})
    columns = [
        pa.array([letter[field.name] for letter in letters], field.type) for field in ROWS_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS_SCHEMA)


def fault_headers(bad: BadRows) -> list[tuple[str, bytes | None]]:
    """Return the headers that say what is wrong with a row."""
    headers: list[tuple[str, bytes | None]] = [(ERROR_HEADER, _cut(str(bad.error)))]
    if bad.stream is not None:
        headers.append((STREAM_HEADER, _cut(bad.stream)))
    return headers


def log_bad_rows(bad: Sequence[BadRows], action: str) -> None:
    """Write to the log what became of bad rows."""
    for each in bad:
        LOG.warning("%s %d rows: %s", action, len(each.indexes), each.error)


def _headers_of(
    row: pa.RecordBatch, bad: BadRows, *, is_kept: bool
) -> list[tuple[str, bytes | None]]:
    headers: list[tuple[str, bytes | None]] = []
    column = row.column("headers")
    if is_kept and not _wrong_headers(column).size:
        headers += column[0].as_py() or []
    return [*headers, *fault_headers(bad)]


def _as_text(octets: bytes) -> bytes:
    return octets.decode(errors="backslashreplace").encode()


def _cut(text: str) -> bytes:
    """Return the text as the value of a header, so that there is room for it."""
    return text.encode()[:_HEADER_BYTES_MAX].decode(errors="ignore").encode()


def _wrong_headers(headers: pa.Array) -> npt.NDArray[np.int64]:
    """Return the indexes of rows with a header whose name is no UTF-8."""
    if headers.null_count == len(headers):
        return np.zeros(0, dtype=np.int64)
    try:
        headers.validate(full=True)
    except pa.ArrowInvalid:
        wrong = [index for index in range(len(headers)) if not _is_valid(headers.slice(index, 1))]
        return np.array(wrong, dtype=np.int64)
    return np.zeros(0, dtype=np.int64)


def _is_valid(headers: pa.Array) -> bool:
    try:
        pa.concat_arrays([headers]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
