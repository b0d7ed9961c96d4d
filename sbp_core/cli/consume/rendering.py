"""Records as text: lines of values, lines of JSON, CSV."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from sbp_core.cli.consume.joining import join
from sbp_core.cli.consume.json_text import (
    header_texts,
    json_texts,
    maybe_time_texts,
    object_texts,
)
from sbp_core.cli.consume.rows import Choice, Rows
from sbp_core.cli.output import to_json, value_text
from sbp_core.errors import RecordBatchError, SchemaError
from sbp_core.records.json_values import describe_values
from sbp_core.wording import escape

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

    It has the stream, the offset and either the columns of a typed stream or time, key, value and
    headers. With a choice it has the chosen columns instead of these.
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
