"""Records as values: a table of them, one in full, and as files to keep."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from sbp_core.web.console.records_reading import Found
from sbp_core.wording import escape

SHOWN_CHARACTERS: Final = 300
"""Characters of a value in the table; its own page has all."""
HEX_BYTES_MAX: Final = 4096
_HEX_ROW: Final = 16
_PLAIN: Final = ("timestamp", "key", "value", "headers")


@dataclass(frozen=True, slots=True)
class RecordRow:
    """A record in the table: its offset, and a text for each heading; None is null or not there."""

    offset: int
    cells: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class RecordTable:
    """Records of one page, of which some may be plain and others typed."""

    headings: tuple[str, ...]
    rows: tuple[RecordRow, ...]


@dataclass(frozen=True, slots=True)
class FieldText:
    """A value in full: as text, and its bytes in hexadecimal if it has some that are no text."""

    name: str
    kind: str
    text: str
    hexadecimal: str = ""


def make_table(found: Found, *, newest_first: bool = False) -> RecordTable:
    """Return the records as a table, whose headings are in the order in which they appear."""
    records = found.records
    headings = _headings(records)
    rows = [
        RecordRow(record["offset"], tuple(_maybe_short(fields.get(each)) for each in headings))
        for record in records
        for fields in (_fields(record),)
    ]
    return RecordTable(headings, tuple(rows[::-1] if newest_first else rows))


def describe_record(record: Mapping[str, Any]) -> list[FieldText]:
    """Return the fields of a record in full."""
    return [_full(name, value) for name, value in _fields(record).items()]


def _fields(record: Mapping[str, Any]) -> Mapping[str, Any]:
    columns: Mapping[str, Any] | None = record.get("columns")
    return {each: record[each] for each in _PLAIN} if columns is None else columns


def _headings(records: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for record in records for name in _fields(record)))


def _maybe_text(value: Any) -> str | None:
    """Return a value in one line: text as it is, bytes in hexadecimal, others as JSON."""
    if value is None:
        return None
    if isinstance(value, str):
        return value
    data = _maybe_bytes(value)
    return json.dumps(value, ensure_ascii=False) if data is None else f"0x{data.hex()}"


def _maybe_short(value: Any) -> str | None:
    text = _maybe_text(value)
    if text is None:
        return None
    rest = "..." if len(text) > SHOWN_CHARACTERS else ""
    return f"{escape(text[:SHOWN_CHARACTERS])}{rest}"


def _full(name: str, value: Any) -> FieldText:
    data = _maybe_bytes(value)
    if data is not None:
        return FieldText(name, f"{len(data)} bytes", "", _hex_dump(data))
    if value is None:
        return FieldText(name, "null", "")
    if not isinstance(value, str):
        return FieldText(name, "JSON", _laid_out(value))
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, dict | list):
        return FieldText(name, "text, JSON", _laid_out(parsed))
    return FieldText(name, f"text, {len(value.encode())} bytes", escape(value, spared="\t\n"))


def _laid_out(value: Any) -> str:
    return escape(json.dumps(value, ensure_ascii=False, indent=2), spared="\n")


def _maybe_bytes(value: Any) -> bytes | None:
    """Return bytes that are no text, which `describe_bytes` has described."""
    if isinstance(value, Mapping) and value.keys() == {"base64"}:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (ValueError, TypeError):
            return None
    return None


def _hex_dump(data: bytes) -> str:
    lines = []
    for start in range(0, min(len(data), HEX_BYTES_MAX), _HEX_ROW):
        row = data[start : start + _HEX_ROW]
        shown = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        lines.append(f"{start:08x}  {row.hex(' '):<{3 * _HEX_ROW - 1}}  {shown}")
    if len(data) > HEX_BYTES_MAX:
        lines.append(f"... and {len(data) - HEX_BYTES_MAX} more bytes")
    return "\n".join(lines)


def to_json_lines(found: Found) -> bytes:
    """Return the records as objects of JSON, one in a line, as `sbp consume --json` prints them."""
    return "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in found.records).encode()


def to_csv(found: Found) -> bytes:
    """Return the records as CSV with a heading; null is empty, bytes are in hexadecimal."""
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    headings = _headings(found.records)
    writer.writerow(["offset", *headings])
    for record in found.records:
        fields = _fields(record)
        writer.writerow([record["offset"], *(_maybe_text(fields.get(each)) for each in headings)])
    return file.getvalue().encode()


def to_arrow(found: Found) -> bytes:
    """Return the records as a stream of Arrow IPC, with their offsets in front.

    Raises ArrowInvalid if the versions of the columns have nothing in common.
    """
    tables = []
    for piece in found.pieces:
        offsets = pa.array([each["offset"] for each in piece.records], pa.int64())
        name = "offset" if "offset" not in piece.rows.schema.names else "_offset"
        tables.append(pa.Table.from_batches([piece.rows]).add_column(0, name, offsets))
    table = pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """A form of a file: its media type, and what writes it."""

    name: str
    media_type: str
    write: Callable[[Found], bytes]


FORMATS: Final[Mapping[str, ExportFormat]] = {
    "jsonl": ExportFormat("JSON lines", "application/x-ndjson", to_json_lines),
    "csv": ExportFormat("CSV", "text/csv; charset=utf-8", to_csv),
    "arrow": ExportFormat("Arrow", "application/vnd.apache.arrow.stream", to_arrow),
}
"""By the end of the file's name."""
