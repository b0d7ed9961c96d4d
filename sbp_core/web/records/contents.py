"""Bodies of requests as rows of a stream: one function for each media type.

All work off the loop, and none raises anything but ProblemError and SbpError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from sbp_core.errors import SchemaError
from sbp_core.records import ROWS_SCHEMA, StreamSchema
from sbp_core.records.arrow_body import check_values
from sbp_core.records.evolution import map_columns
from sbp_core.records.json_lines import parse_json_lines
from sbp_core.records.json_parsing import RowFault
from sbp_core.web.problems import Problem, ProblemError
from sbp_core.web.records.declaring import bad_request, refusal

NDJSON: Final = "application/x-ndjson"
ARROW: Final = "application/vnd.apache.arrow.stream"
TEXT: Final = "text/plain"
BYTES: Final = "application/octet-stream"
_LINES_AT_ONCE: Final = 4096
"""Lines whose values are objects of Python at a time, which take several times their bytes."""
_ARROW_BATCHES_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Target:
    """The stream that rows are for: a plain one, or one with a schema.

    Plain records that bring no time get `timestamp_us`, microseconds since the epoch; None is none.
    """

    schema: StreamSchema | None
    timestamp_us: int | None


def parse_ndjson(body: bytearray, target: Target) -> pa.RecordBatch:
    """Return a row for each line of JSON; empty lines are left out."""
    batches = [_rows_of_lines(lines, target) for lines in _groups(body)]
    return _joined(batches, ROWS_SCHEMA if target.schema is None else target.schema.arrow)


def parse_text(body: bytearray, target: Target) -> pa.RecordBatch:
    """Return a record for each line: bytes up to each newline; the last one may have none."""
    _check_plain(target, TEXT)
    lines = bytes(body).split(b"\n")
    if not lines[-1]:
        lines.pop()
    return _values(lines, target)


def parse_bytes(body: bytearray, target: Target) -> pa.RecordBatch:
    """Return one record, whose value is the body."""
    _check_plain(target, BYTES)
    return _values([bytes(body)], target)


def parse_arrow(body: bytearray, target: Target) -> pa.RecordBatch:
    """Return the rows of a stream in Arrow's IPC format, with the columns found by name.

    For a plain stream the columns are those of ROWS_SCHEMA; one that is missing is null.
    """
    schema = ROWS_SCHEMA if target.schema is None else target.schema.arrow
    batches: list[pa.RecordBatch] = []
    try:
        with pa.ipc.open_stream(pa.py_buffer(bytes(body))) as reader:
            for batch in reader:
                if len(batches) == _ARROW_BATCHES_MAX:
                    raise bad_request(f"more than {_ARROW_BATCHES_MAX} Arrow batches: join them")
                batch.validate(full=True)
                batches.append(map_columns(batch, schema, is_loss_allowed=False))
    except (pa.ArrowException, OSError, ValueError, NotImplementedError) as error:
        raise bad_request(f"the body is no stream of Arrow's IPC format: {error}") from error
    rows = _joined(batches, schema)
    if target.schema is None:
        rows = _with_times(rows, target)
    check_values(rows)
    return rows


PARSERS: Final[Mapping[str, Callable[[bytearray, Target], pa.RecordBatch]]] = {
    NDJSON: parse_ndjson,
    ARROW: parse_arrow,
    TEXT: parse_text,
    BYTES: parse_bytes,
}
"""By media type."""


def _groups(body: bytearray) -> Iterator[list[tuple[int, bytes]]]:
    """Yield the lines that are not empty, with their numbers, some at a time."""
    group: list[tuple[int, bytes]] = []
    for number, line in enumerate(body.split(b"\n"), 1):
        if line.strip():
            group.append((number, bytes(line)))
        if len(group) == _LINES_AT_ONCE:
            yield group
            group = []
    yield group


def _rows_of_lines(lines: list[tuple[int, bytes]], target: Target) -> pa.RecordBatch:
    try:
        return parse_json_lines(
            [line for _, line in lines], target.schema, default_timestamp_us=target.timestamp_us
        )
    except RowFault as fault:
        raise _wrong_line(lines[fault.index][0], fault.reason) from fault


def _wrong_line(number: int, reason: str) -> ProblemError:
    detail = f"line {number}: {reason}; nothing of this request was appended"
    return ProblemError(Problem(422, "wrong-line", detail, more={"line": number}))


def _check_plain(target: Target, given: str) -> None:
    if target.schema is not None:
        raise refusal(
            *(415, "typed-stream"),
            f"the stream has a schema, and {given} has no columns: send {NDJSON} or {ARROW}",
        )


def _values(values: list[bytes], target: Target) -> pa.RecordBatch:
    count = len(values)
    nulls = [pa.nulls(count, field.type) for field in ROWS_SCHEMA]
    columns = dict(zip(ROWS_SCHEMA.names, nulls, strict=True))
    columns["value"] = pa.array(values, pa.binary())
    rows = pa.RecordBatch.from_arrays(list(columns.values()), schema=ROWS_SCHEMA)
    return _with_times(rows, target)


def _with_times(rows: pa.RecordBatch, target: Target) -> pa.RecordBatch:
    """Return plain rows with the default time where they have none."""
    if target.timestamp_us is None:
        return rows
    index = ROWS_SCHEMA.get_field_index("timestamp")
    field = ROWS_SCHEMA.field(index)
    times = rows.column(index).fill_null(pa.scalar(target.timestamp_us, field.type))
    return rows.set_column(index, field, times)


def _joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if not batches:
        return pa.RecordBatch.from_pylist([], schema=schema)
    try:
        return pa.concat_batches(batches)
    except pa.ArrowException as error:  # more than 2 GiB of text
        raise SchemaError(f"the rows cannot be joined: {error}") from error
