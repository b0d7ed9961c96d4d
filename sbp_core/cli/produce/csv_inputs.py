"""Lines of CSV as rows: the first one names the columns.

A field that is empty is null, and one that is `""` is the empty text. A field in quotes may have
newlines: a record of CSV is as many lines as it takes until its quotes are paired.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.csv as pa_csv

from sbp_core.cli.produce.inputs import (
    PLACE_COLUMNS,
    Defaults,
    Opened,
    Parsing,
    Piece,
    parse_until_fault,
    read_lines,
)
from sbp_core.errors import RecordBatchError, SchemaError
from sbp_core.records import ROWS_SCHEMA, StreamSchema, map_columns
from sbp_core.records.json_parsing import RowFault, parse_time
from sbp_core.records.stream_schema import name_text, type_text
from sbp_core.wording import listed

HEADER_PREFIX: Final = "header."
"""Before the name of a header in the name of its column."""
_BYTE_ORDER_MARK: Final = "\ufeff"
_BYTES_PER_BYTE: Final = 2
"""A quote in quotes is two."""
_BYTES_AROUND: Final = 65_536
_PLACE: Final = re.compile(r"(?:CSV parse error: |In CSV column #(\d+): )(?:Row #\d+: )?")
"""How an error of Arrow begins; its rows are counted from the last call on."""

_Records = Sequence[tuple[int, bytes]]
"""Records of CSV, with the numbers of the lines at which they begin."""


def read_csv(source: Opened, parsing: Parsing) -> Iterator[Piece]:
    """Yield a record for each record of CSV.

    Raises SchemaError for columns that the stream does not have, RecordBatchError for the first
    record with a fault, by the number of its line, after those before it.
    """
    bytes_max = parsing.target.record_bytes_max * _BYTES_PER_BYTE + _BYTES_AROUND
    table: _Table | None = None
    for found in _read_records(source, bytes_max):
        records = found
        if not records:
            yield None
            continue
        if table is None:
            table, records = _Table(_names(records[0][1]), parsing), records[1:]
        rows, fault = parse_until_fault(records, table.parse)
        yield rows
        if fault is not None:
            raise fault


def _read_records(source: Opened, bytes_max: int) -> Iterator[_Records]:
    """Yield the records that are not empty, as `read_lines` yields lines."""
    line_count = open_bytes = 0
    open_lines: list[bytes] = []
    is_in_quotes = False
    for lines in read_lines(source, line_bytes_max=bytes_max):
        records = []
        for line in lines:
            line_count += 1
            open_lines.append(line)
            open_bytes += len(line)
            is_in_quotes ^= line.count(b'"') % 2 == 1
            begin = line_count - len(open_lines) + 1
            if is_in_quotes:
                if open_bytes > bytes_max:
                    raise _never_closed(begin)
                continue
            record = line if len(open_lines) == 1 else b"\n".join(open_lines)
            if record.strip():
                records.append((begin, record))
            open_lines, open_bytes = [], 0
        if records or not lines:
            yield records
    if is_in_quotes:
        raise _never_closed(line_count - len(open_lines) + 1)


class _Table:
    """The columns of an input, as they are mapped onto those of its stream."""

    def __init__(self, names: Sequence[str], parsing: Parsing) -> None:
        self._names = names
        self._schema = parsing.target.schema
        self._defaults = parsing.defaults
        types = _plain_types(names) if self._schema is None else _types(names, self._schema)
        self._converting = pa_csv.ConvertOptions(
            column_types=types,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            include_columns=[each for each in names if each in types],
        )

    def parse(self, records: Sequence[bytes]) -> pa.RecordBatch:
        """Return records as rows of the stream. Raises RowFault."""
        try:
            return self._rows(records)
        except (pa.ArrowException, SchemaError) as error:
            if len(records) == 1:
                raise RowFault(0, self._reason(error)) from error
        half = len(records) // 2
        first = self.parse(records[:half])
        try:
            return pa.concat_batches([first, self.parse(records[half:])])
        except RowFault as fault:
            raise RowFault(half + fault.index, fault.reason) from fault

    def _rows(self, records: Sequence[bytes]) -> pa.RecordBatch:
        if not records:  # Arrow would call it an empty file
            columns = ROWS_SCHEMA if self._schema is None else self._schema.arrow
            return pa.RecordBatch.from_pylist([], schema=columns)
        text = b"\n".join([*records, b""])  # without the last newline Arrow confuses null and ""
        table = pa_csv.read_csv(
            pa.py_buffer(text),
            read_options=pa_csv.ReadOptions(
                column_names=self._names, use_threads=False, block_size=len(text) + 1
            ),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True),
            convert_options=self._converting,
        ).combine_chunks()
        arrays = [pa.concat_arrays(column.chunks) for column in table.columns]
        rows = pa.RecordBatch.from_arrays(arrays, schema=table.schema)
        if self._schema is not None:
            return map_columns(rows, self._schema.arrow)
        return _plain(rows, self._defaults)

    def _reason(self, error: Exception) -> str:
        text = str(error)
        place = _PLACE.match(text)
        if place is None:
            return text
        column = "" if place[1] is None else f"column {name_text(self._names[int(place[1])])}: "
        return column + text[place.end() :]


def _plain(rows: pa.RecordBatch, defaults: Defaults) -> pa.RecordBatch:
    """Return columns of text as rows of ROWS_SCHEMA."""
    count = rows.num_rows
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    times_us = [defaults.time_us] * count
    for index, text in enumerate(columns.pop("timestamp", pa.nulls(0)).to_pylist()):
        if text is not None:
            try:
                times_us[index] = parse_time(text)
            except ValueError as error:
                raise RowFault(index, f"timestamp: {error}") from error
    nulls, value = pa.nulls(count, pa.binary()), columns.pop("value")
    key = columns.pop("key", nulls)
    headers: list[list[tuple[str, bytes]] | None] = [None] * count
    for name, column in columns.items():
        for index, content in enumerate(column.to_pylist()):
            if content is not None:
                headers[index] = [
                    *(headers[index] or ()),
                    (name.removeprefix(HEADER_PREFIX), content),
                ]
    arrays = [key, value, headers, times_us]
    plain = pa.RecordBatch.from_arrays(
        [pa.array(each, kind) for each, kind in zip(arrays, ROWS_SCHEMA.types, strict=True)],
        schema=ROWS_SCHEMA,
    )
    return defaults.filled(plain)


def _names(record: bytes) -> list[str]:
    try:
        text = record.decode("utf-8").removeprefix(_BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        raise SchemaError(f"the names of the columns are no UTF-8: {error}") from error
    names = next(csv.reader(io.StringIO(text, newline="")))
    for name in names:
        if names.count(name) > 1:
            raise SchemaError(f"column {name_text(name)} occurs twice; rename one of them")
    return names


def _types(names: Sequence[str], schema: StreamSchema) -> Mapping[str, pa.DataType]:
    types = {each.name: each.type for each in schema.arrow}
    for name in names:
        if name not in types:
            raise SchemaError(
                f"column {name_text(name)} is none of the stream, which has"
                f" {listed([*map(name_text, types)])}; the first line of CSV has the names"
            )
        if pa.types.is_nested(types[name]):
            raise SchemaError(
                f"column {name_text(name)} is {type_text(types[name])}, which CSV does not have:"
                " send JSON, Parquet or Arrow"
            )
    return types


def _plain_types(names: Sequence[str]) -> Mapping[str, pa.DataType]:
    wanted = [each for each in names if each not in PLACE_COLUMNS]
    for name in wanted:
        if name not in {"key", "value", "timestamp"} and not name.startswith(HEADER_PREFIX):
            raise SchemaError(
                f"column {name_text(name)} is no part of a record: a stream without a schema has"
                f" value, key, timestamp and {HEADER_PREFIX}NAME; the first line of CSV has the"
                " names"
            )
    if "value" not in names:
        raise SchemaError("there is no column value; the first line of CSV has the names")
    return {name: pa.string() if name == "timestamp" else pa.binary() for name in wanted}


def _never_closed(line_number: int) -> RecordBatchError:
    return RecordBatchError(f"line {line_number}: a quote is never closed")
