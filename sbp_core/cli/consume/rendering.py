"""Records as text: lines of values, lines of JSON, CSV.

Arrow writes text, numbers and times for all rows together, which is 20 times as fast as `to_json`
for each value; values of other types are written one by one.
"""

from __future__ import annotations

import io
from binascii import b2a_base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from sbp_core.cli.consume.selected_rows import Choice, Rows
from sbp_core.cli.output import to_json, value_text
from sbp_core.errors import RecordBatchError, SchemaError
from sbp_core.records.json_values import describe_bytes, describe_values
from sbp_core.wording import escape

Part: TypeAlias = pa.StringArray | pa.BinaryArray | str | bytes
"""A column, or a constant that stands in every row."""

_NOTHING: Final = pa.scalar(b"")


def join(parts: Sequence[Part], row_count: int) -> memoryview:
    """Return the bytes of all rows, in each of which the parts follow one another.

    Columns have `row_count` rows and no nulls.
    """
    columns = [_binary(part) for part in parts]
    columns.append(pa.repeat(_NOTHING, row_count))  # if all parts are constants
    return content(pc.binary_join_element_wise(*columns, _NOTHING))


def join_text(parts: Sequence[pa.StringArray | str]) -> pa.StringArray:
    """Return a column of the parts of each row in a row; one of them is a column."""
    return pc.binary_join_element_wise(*parts, "")


def content(column: pa.StringArray | pa.BinaryArray) -> memoryview:
    """Return the bytes of a column's values, one behind the other."""
    _, ends, data = column.buffers()
    if not len(column) or data is None:
        return memoryview(b"")
    bounds = np.frombuffer(ends, np.int32, len(column) + 1, 4 * column.offset)
    return memoryview(data)[int(bounds[0]) : int(bounds[-1])]


def _binary(part: Part) -> pa.Array | pa.Scalar:
    if isinstance(part, str):
        return pa.scalar(part.encode())
    if isinstance(part, bytes):
        return pa.scalar(part)
    return part.cast(pa.binary())


_ESCAPES: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
"""The backslash is first: the others bring backslashes of their own."""
_WITHOUT_BREAKS: Final = str.maketrans("", "", "\n\t\r")
_FIRST_US: Final = -62_135_596_800_000_000
_LAST_US: Final = 253_402_300_799_999_999
"""The years 1 to 9999, which ISO 8601 has."""


def json_texts(column: pa.Array) -> pa.StringArray:
    """Return the values of a column as JSON; `null` where there is none."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        texts = _strings(column)
    elif pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        texts = column.cast(pa.string())
    elif (times := maybe_time_texts(column)) is not None:
        texts = join_text(['"', times, '"'])
    else:
        texts = _one_by_one(describe_values(column))
    return pc.fill_null(texts, "null")


def maybe_time_texts(column: pa.Array) -> pa.StringArray | None:
    """Return the times of a column in ISO 8601, None if it has others than that can express."""
    if not (pa.types.is_timestamp(column.type) and column.type.unit == "us"):
        return None
    micros = column.cast(pa.int64())
    first, last = (each.as_py() for each in pc.min_max(micros).values())
    if first is None or first < _FIRST_US or last > _LAST_US:
        return None
    texts = micros.cast(pa.timestamp("us")).cast(pa.string())
    texts = pc.binary_replace_slice(texts, 10, 11, "T")
    return texts if column.type.tz is None else join_text([texts, "+00:00"])


def header_texts(headers: pa.MapArray) -> pa.StringArray:
    """Return headers as lists of pairs: a name may occur several times."""
    if headers.null_count == len(headers):
        return pa.repeat("null", len(headers))
    return pc.fill_null(_one_by_one([_pairs(each) for each in headers.to_pylist()]), "null")


def object_texts(fields: Mapping[str, pa.StringArray]) -> pa.StringArray:
    """Return objects with these fields, at least one, whose values are texts of JSON."""
    parts: list[pa.StringArray | str] = []
    for name, texts in fields.items():
        parts += [("{" if not parts else ", ") + to_json(name) + ": ", texts]
    return join_text([*parts, "}"])


def _strings(column: pa.Array) -> pa.StringArray:
    escaped = _maybe_escaped(column)
    if escaped is not None:
        return join_text(['"', escaped, '"'])
    return pa.array(map(_maybe_string, column.to_pylist()), pa.string())


def _maybe_escaped(column: pa.Array) -> pa.StringArray | None:
    """Return texts with the usual escapes, None if one needs others or is not UTF-8."""
    try:
        texts = column.cast(pa.string())
        whole = str(content(texts), "utf-8")
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    if not whole.isprintable() and not whole.translate(_WITHOUT_BREAKS).isprintable():
        return None
    for char, replacement in _ESCAPES.items():
        if char in whole:
            texts = pc.replace_substring(texts, char, replacement)
    return texts


def _maybe_string(value: str | bytes | None) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return to_json(value)
    try:
        return to_json(value.decode())
    except UnicodeDecodeError:
        return f'{{"base64": "{b2a_base64(value, newline=False).decode()}"}}'


def _one_by_one(values: list[Any]) -> pa.StringArray:
    return pa.array([None if each is None else to_json(each) for each in values], pa.string())


def _pairs(headers: list[tuple[str, bytes | None]] | None) -> list[list[Any]] | None:
    if headers is None:
        return None
    return [[name, None if value is None else describe_bytes(value)] for name, value in headers]


Render = Callable[[Rows], memoryview | bytes]
"""Returns the text of records."""


def value_lines(*, is_terminal: bool) -> Render:
    """Return what renders values, a newline behind each: as they are, or safe on a terminal."""

    def render(rows: Rows) -> memoryview:
        values = _values(rows)
        if is_terminal:
            shown = [value_text(each).encode() for each in values.to_pylist()]
            values = pa.array(shown, pa.binary())
        return join([values, b"\n"], len(rows))

    return render


def _values(rows: Rows) -> pa.BinaryArray:
    """Return the value of each record; of a typed stream its columns, as an object of JSON."""
    if rows.is_typed:
        columns = rows.columns
        return object_texts(
            {name: json_texts(columns.column(name)) for name in columns.schema.names}
        ).cast(pa.binary())
    return pc.fill_null(rows.columns.column("value"), b"")


def json_lines(choice: Choice | None) -> Render:
    """Return what renders each record as an object of JSON.

    An object has the stream, the offset and either the columns of a typed stream or time, key,
    value and headers. With a choice it has the chosen columns instead of these.
    """

    def render(rows: Rows) -> memoryview:
        heads: list[pa.StringArray | str] = [
            f'{{"stream": {to_json(rows.stream)}, "offset": ',
            rows.offsets.cast(pa.string()),
        ]
        if rows.is_typed:
            columns = rows.columns if choice is None else choice.of(rows)
            return join([*heads, ', "columns": ', _objects(columns), "}\n"], len(rows))
        if choice is not None:
            return join([_objects(choice.of(rows)), "\n"], len(rows))
        for name in ("timestamp", "key", "value", "headers"):
            column = rows.columns.column(name)
            texts = header_texts(column) if name == "headers" else json_texts(column)
            heads += [f', "{name}": ', texts]
        return join([*heads, "}\n"], len(rows))

    return render


def column_lines(choice: Choice) -> Render:
    """Return what renders the chosen columns of each record as an object of JSON."""
    return lambda rows: join([_objects(choice.of(rows)), "\n"], len(rows))


def csv_lines(choice: Choice, *, is_terminal: bool) -> Render:
    """Return what renders records as CSV, with the names of the columns first.

    A null is an empty field, an empty text is `""`. Raises RecordBatchError for bytes that are no
    text, SchemaError for columns that are not those before.
    """
    names: list[str] = []

    def render(rows: Rows) -> bytes:
        columns = choice.of(rows)
        is_first = not names
        if is_first:
            names.extend(columns.schema.names)
        elif names != columns.schema.names:
            raise other_columns(rows.stream)
        fields = [_csv_column(rows, name, columns.column(name)) for name in names]
        sink = io.BytesIO()
        options = pyarrow.csv.WriteOptions(include_header=is_first)
        pyarrow.csv.write_csv(pa.RecordBatch.from_arrays(fields, names), sink, options)
        data = sink.getvalue()
        return escape(data.decode(), spared="\n\t").encode() if is_terminal else data

    return render


def other_columns(stream: str) -> SchemaError:
    """Return the error of a stream that does not fit into the table of those before."""
    return SchemaError(
        f"stream {stream} has other columns than the records before: consume one stream at a time,"
        " or choose columns that all have with --columns"
    )


def _objects(columns: pa.RecordBatch) -> pa.StringArray:
    return object_texts(
        {
            name: header_texts(column) if _is_headers(column) else json_texts(column)
            for name, column in zip(columns.schema.names, columns.columns, strict=True)
        }
    )


def _is_headers(column: pa.Array) -> bool:
    kind = column.type
    return bool(pa.types.is_map(kind) and kind.equals(_HEADERS))


_HEADERS = pa.map_(pa.string(), pa.binary())


def _csv_column(rows: Rows, name: str, column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_binary(kind):
        try:
            return column.cast(pa.string())
        except pa.ArrowInvalid as error:
            raise RecordBatchError(
                f"stream {rows.stream}: a {name} of records {rows.offsets[0]} to"
                f" {rows.end_offset - 1} is not UTF-8, which CSV needs; use --format json or"
                " parquet, or leave the column out with --columns"
            ) from error
    if (
        pa.types.is_string(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
    ):
        return column
    times = maybe_time_texts(column)
    if times is not None:
        return times
    if _is_headers(column):
        return pa.array(
            [None if text == "null" else text for text in header_texts(column).to_pylist()],
            pa.string(),
        )
    return pa.array(map(_maybe_text, describe_values(column)), pa.string())


def _maybe_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else to_json(value)
