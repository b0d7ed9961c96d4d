"""Lines as rows: each line a value, or an object of JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from sbp_core.cli.produce.lines import Opened, read_lines
from sbp_core.cli.produce.parsing import Parsing, Piece, parse_until_fault
from sbp_core.records import ROWS_SCHEMA
from sbp_core.records.json_lines import parse_json_lines

JSON_BYTES_PER_BYTE: Final = 6
"""Bytes that JSON may need for one byte of a record: an escape such as \\u0000."""
JSON_BYTES_AROUND: Final = 65_536
"""Bytes of a line that are no content: names of columns, punctuation, white space."""


def read_values(source: Opened, parsing: Parsing) -> Iterator[Piece]:
    """Yield a record for each line, without its newline; the key stands before the separator."""
    bytes_max = parsing.target.record_bytes_max
    for lines in read_lines(source, line_bytes_max=bytes_max):
        if not lines:
            yield None
            continue
        rows = rows_of_lines(lines, parsing.key_separator, timestamp_us=parsing.defaults.time_us)
        yield parsing.defaults.filled(rows)


def read_json(source: Opened, parsing: Parsing) -> Iterator[Piece]:
    """Yield a record for each line of JSON that is not empty, as `sbp consume --json` prints it.

    Raises RecordBatchError for the first line with a fault, by its number, after those before it.
    """
    schema, defaults = parsing.target.schema, parsing.defaults

    def parse(lines: Sequence[bytes]) -> pa.RecordBatch:
        rows = parse_json_lines(lines, schema, default_timestamp_us=defaults.time_us)
        return defaults.filled(rows) if schema is None else rows

    bytes_max = parsing.target.record_bytes_max * JSON_BYTES_PER_BYTE + JSON_BYTES_AROUND
    line_count = 0
    for lines in read_lines(source, line_bytes_max=bytes_max):
        if not lines:
            yield None
            continue
        numbered = [(at, line) for at, line in enumerate(lines, line_count + 1) if line.strip()]
        line_count += len(lines)
        rows, fault = parse_until_fault(numbered, parse)
        yield rows
        if fault is not None:
            raise fault


def rows_of_lines(
    lines: Sequence[bytes], separator: bytes | None, *, timestamp_us: int
) -> pa.RecordBatch:
    """Return one row per line; `timestamp_us` is microseconds since the epoch.

    The text before the first `separator` is the key; a line without a separator has a null key.
    """
    count = len(lines)
    keys = pa.nulls(count, pa.binary())
    values = lines
    if separator is not None:
        parts = [line.partition(separator) for line in lines]
        keys = pa.array([before if found else None for before, found, _ in parts], pa.binary())
        values = [after if found else before for before, found, after in parts]
    _, _, headers, timestamp = ROWS_SCHEMA.types
    return pa.RecordBatch.from_arrays(
        [
            keys,
            pa.array(values, pa.binary()),
            pa.nulls(count, headers),
            pa.repeat(pa.scalar(timestamp_us, timestamp), count),
        ],
        schema=ROWS_SCHEMA,
    )
