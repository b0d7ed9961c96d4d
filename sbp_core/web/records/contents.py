"""Bodies of requests as rows of a stream: one function for each media type.

All work off the loop, and raise ProblemError and SbpError only. Arrow believes the metadata of a
stream in its IPC format: 224 bytes may declare 2**31 rows of nulls, and a compressed buffer the
size that it will have. So the types, rows and sizes of all messages of a body are checked before
Arrow decodes any.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import mul
from threading import Event
from typing import Final

import pyarrow as pa

from sbp_core import limits
from sbp_core.errors import RecordBatchError, SchemaError
from sbp_core.records import ROWS_SCHEMA, StreamSchema
from sbp_core.records.arrow_body import check_values
from sbp_core.records.arrow_message import check_sizes, decoded_sizes, read_outline, split_pairs
from sbp_core.records.evolution import map_columns
from sbp_core.records.json_lines import parse_json_lines
from sbp_core.records.json_parsing import RowFault
from sbp_core.records.schema_message import check_schema_message
from sbp_core.web.problems import Problem, ProblemError, bad_request, refusal

_DECODED_BYTES_MAX: Final = 2 * limits.BATCH_BYTES_MAX
"""Sum of the buffers of a body. Each has padding, and may have bytes that no row refers to."""
_ARRAYS_MAX: Final = 100_000
"""Columns with all that are in them, summed over the batches of a body; each is some objects."""
_VARYING_BITS: Final = 32
"""An offset, which a text, list or map has in each row."""


def read_arrow_stream(
    body: bytearray, target: pa.Schema, check_wanted: Callable[[], None]
) -> pa.RecordBatch:
    """Return the rows of a stream with the columns of `target`, found by name.

    Calls `check_wanted` between batches. Raises ProblemError, SchemaError, RecordBatchError, and
    what pyarrow raises for bytes that are no such stream.
    """
    data = pa.py_buffer(body)
    given = _judge(data, target, check_wanted)
    batches: list[pa.RecordBatch] = []
    options = pa.ipc.IpcReadOptions(use_threads=False)
    with pa.ipc.open_stream(data, options=options) as reader:
        for batch in reader:
            check_wanted()
            batch.validate(full=True)
            batches.append(batch)
    rows = pa.concat_batches(batches or [pa.RecordBatch.from_pylist([], schema=given)])
    return map_columns(rows, target, is_loss_allowed=False)


def check_rows(count: int, bits: int = 0) -> None:
    """Raise ProblemError, 413, for more rows than a batch has, or more than `bits` of it hold."""
    if count > limits.BATCH_RECORDS_MAX:
        raise refusal(
            *(413, "too-many-records"),
            f"{count} records in a request; at most {limits.BATCH_RECORDS_MAX} are allowed: send"
            " them in several requests",
        )
    if bits > 8 * limits.BATCH_BYTES_MAX:
        raise batch_too_large(f"at least {bits // 8}")


def batch_too_large(size_text: str) -> ProblemError:
    """Return the problem of records that do not fit into a record batch."""
    return refusal(
        *(413, "batch-too-large"),
        f"the records have {size_text} bytes as one record batch; at most"
        f" {limits.BATCH_BYTES_MAX} are allowed: send them in several requests",
    )


def row_bits(kinds: Iterable[pa.DataType]) -> int:
    """Return the bits that columns of a stream take at least in each row, also where it is null."""
    bits = 0
    for kind in kinds:
        if pa.types.is_struct(kind):
            bits += row_bits(field.type for field in kind)
        elif pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
            bits += kind.bit_width
        else:
            bits += _VARYING_BITS
    return bits


def _judge(data: pa.Buffer, target: pa.Schema, check_wanted: Callable[[], None]) -> pa.Schema:
    """Return the schema of a stream whose batches are safe to decode, and fit into `target`."""
    messages = iter(pa.ipc.MessageReader.open_stream(data))
    first = next(messages, None)
    if first is None:
        raise bad_request("the body is no stream of Arrow's IPC format: it has no schema")
    check_schema_message(memoryview(first.serialize()), is_metadata_allowed=True)
    given = pa.ipc.read_schema(first)
    map_columns(pa.RecordBatch.from_pylist([], schema=given), target, is_loss_allowed=False)
    node_bits = list(_node_bits(given, target))
    row_count = array_count = decoded_bytes = bits = 0
    for message in messages:
        check_wanted()
        encoded = memoryview(message.serialize())
        outline = read_outline(encoded, record_count=None)
        sizes = decoded_sizes(outline, encoded)
        decoded_bytes += sum(sizes)
        if decoded_bytes > _DECODED_BYTES_MAX:
            raise batch_too_large(f"{decoded_bytes}")
        check_sizes(outline, sizes)
        lengths = (outline.row_count, *split_pairs(outline.nodes)[0])
        if min(lengths) < 0 or len(lengths) != len(node_bits):
            raise bad_request("an Arrow batch that lacks columns, or has a negative length")
        array_count += len(lengths)
        row_count += outline.row_count
        bits += sum(map(mul, lengths, node_bits))
        if array_count > _ARRAYS_MAX:
            raise bad_request(f"Arrow batches of more than {_ARRAYS_MAX} columns: join them")
        check_rows(row_count, bits)
    return given


def _node_bits(given: Iterable[pa.Field], target: Iterable[pa.Field]) -> Iterator[int]:
    """Yield the bits of the target for each value of a node, in the order of the nodes.

    The first number is for the rows: columns that are not given take bits, too.
    """
    wanted = {field.name: field.type for field in target}
    nodes = [bits for field in given for bits in _array_bits(field.type, wanted.pop(field.name))]
    yield row_bits(wanted.values())
    yield from nodes


def _array_bits(given: pa.DataType, target: pa.DataType) -> Iterator[int]:
    if pa.types.is_struct(given):
        yield from _node_bits(given, target)
        return
    yield row_bits([target])
    if pa.types.is_list(given):
        yield from _array_bits(given.value_type, target.value_type)
    elif pa.types.is_map(given):
        yield 0  # the entries, each a key and a value
        yield from _array_bits(given.key_type, target.key_type)
        yield from _array_bits(given.item_type, target.item_type)


NDJSON: Final = "application/x-ndjson"
ARROW: Final = "application/vnd.apache.arrow.stream"
TEXT: Final = "text/plain"
BYTES: Final = "application/octet-stream"
_LINES_AT_ONCE: Final = 4096
"""Lines whose values are objects of Python at a time, which take several times their bytes."""
_GROUP_BYTES_MAX: Final = limits.MIB
"""Bytes of these lines, if there are several."""
_CONTAINERS_MAX: Final = 250_000
"""Objects and lists of a longer line: of 3 bytes each, and some 70 as an object of Python."""
_TEXTS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
"""Texts of JSON."""

_TEXT: Final = {"type": "string"}
_VALUE: Final = {
    "anyOf": [
        _TEXT,
        {"type": "object", "properties": {"base64": _TEXT}, "required": ["base64"]},
        {"type": "null"},
    ]
}
LINE: Final = {
    "description": "One object per line. Plain stream: the members below, all optional in a"
    " request. Stream with a schema: a member for each column, or these in `columns`.",
    "type": "object",
    "properties": {
        "value": _VALUE,
        "key": _VALUE,
        "headers": {"anyOf": [{"type": "array", "items": {"type": "array"}}, {"type": "null"}]},
        "timestamp": {
            "type": ["string", "integer", "null"],
            "description": "A time such as 2025-01-31T09:30:00Z, which is UTC without a zone. A"
            " number is refused in a request; in an answer it is a time that no calendar has, in"
            " microseconds since 1970.",
        },
        "columns": {"type": "object"},
        "stream": _TEXT,
        "offset": {"type": "integer", "minimum": 0},
    },
}
"""The schema of a line of JSON, for the description of the API."""
BINARY: Final = {"type": "string", "format": "binary"}
DESCRIBED: Final = {
    NDJSON: {"schema": LINE},
    ARROW: {"schema": BINARY},
    TEXT: {"schema": _TEXT},
    BYTES: {"schema": BINARY},
}
"""The contents of a request, for the description of the API."""


@dataclass(frozen=True, slots=True)
class Target:
    """The stream that rows are for: a plain one, or one with a schema.

    Plain records that bring no time get `timestamp_us`, microseconds since the epoch; None is none.
    """

    schema: StreamSchema | None
    timestamp_us: int | None
    has_left: Event = field(default_factory=Event)
    """Set when nobody waits for the rows any more."""

    @property
    def arrow(self) -> pa.Schema:
        """The columns of the stream."""
        return ROWS_SCHEMA if self.schema is None else self.schema.arrow

    def check_wanted(self) -> None:
        """Raise ProblemError if nobody waits for the rows."""
        if self.has_left.is_set():
            raise refusal(400, "incomplete-request", "the client has left: nothing was appended")


def parse_ndjson(body: bytearray, target: Target) -> pa.RecordBatch:
    """Return a row for each line of JSON; empty lines are left out."""
    bits = row_bits(target.arrow.types)
    batches: list[pa.RecordBatch] = []
    count = 0
    for lines in _groups(body):
        target.check_wanted()
        count += len(lines)
        check_rows(count, count * bits)
        batches.append(_rows_of_lines(lines, target))
    return _joined(batches, target.arrow)


def parse_text(body: bytearray, target: Target) -> pa.RecordBatch:
    """Return a record for each line: bytes up to each newline; the last one may have none."""
    _check_plain(target, TEXT)
    count = body.count(b"\n")
    check_rows(count, count * row_bits(ROWS_SCHEMA.types))
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

    For a plain stream the columns are those of ROWS_SCHEMA; a column that is missing is null.
    """
    try:
        rows = read_arrow_stream(body, target.arrow, target.check_wanted)
    except (pa.ArrowException, RecordBatchError, OSError, ValueError, NotImplementedError) as error:
        raise bad_request(f"the body is no stream of Arrow's IPC format: {error}") from error
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


def media_type(header: str) -> str:
    """Return a media type without its parameters."""
    return header.partition(";")[0].strip().lower()


def _groups(body: bytearray) -> Iterator[list[tuple[int, bytes]]]:
    """Yield the lines that are not empty, with their numbers, some at a time. Raises ProblemError.

    Empty lines count against the records of a request: each takes time.
    """
    check_rows(body.count(b"\n"))
    group: list[tuple[int, bytes]] = []
    size_bytes = 0
    for number, line in enumerate(io.BytesIO(body), 1):
        if not line.strip():
            continue
        size_bytes += len(line)
        if group and (size_bytes > _GROUP_BYTES_MAX or len(group) == _LINES_AT_ONCE):
            yield group
            group, size_bytes = [], len(line)
        if len(line) > _GROUP_BYTES_MAX and _container_count(line) > _CONTAINERS_MAX:
            raise _wrong_line(number, f"it has more than {_CONTAINERS_MAX} objects and lists")
        group.append((number, line.removesuffix(b"\n")))
    yield group


def _container_count(line: bytes) -> int:
    """Return the objects and lists of a line; brackets in its texts are none."""
    found = line.count(b"[") + line.count(b"{")
    if found <= _CONTAINERS_MAX:
        return found
    bare = _TEXTS.sub(b"", line)
    return bare.count(b"[") + bare.count(b"{")


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
