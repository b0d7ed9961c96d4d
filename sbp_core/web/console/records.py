"""The records of a stream: a list, as they come, as a file, one in full; appending one."""

from __future__ import annotations

import asyncio
import base64
import csv
import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
from starlette.responses import Response

from sbp_core.client import AppendItem, AsyncClient, Reach, StreamInfo
from sbp_core.errors import ConfigurationError, NotFoundError, OffsetOutOfRangeError, SbpError
from sbp_core.operating.stream_position import PositionKind, find_offset, parse_position
from sbp_core.quantities import quoted
from sbp_core.records import StreamSchema, encode_columns, encode_rows
from sbp_core.records.json_lines import parse_json_lines
from sbp_core.records.json_parsing import RowFault
from sbp_core.web.console.record_search import Found, Piece, RecordFilter, Search, check_column
from sbp_core.web.console.site import Done, Field, Question, Visit, get, post
from sbp_core.web.console.sorting import link_to, parse_count
from sbp_core.web.console.stream import REACH_MS, find_reach, find_stream
from sbp_core.web.console.streams import titled
from sbp_core.web.console.words import moment_element
from sbp_core.web.problems import status_of
from sbp_core.wording import escape, listed

_COUNT: Final = 50
_COUNT_MAX: Final = 1_000
_LIVE_SEARCHED: Final = 5_000
"""Records that a live page with a filter searches, at the end of the stream."""
SHOWN_CHARACTERS: Final = 300
"""Characters of a value in the list; its own page has all."""
HEX_BYTES_MAX: Final = 4096
_HEX_ROW: Final = 16
_PLAIN: Final = ("timestamp", "key", "value", "headers")


async def show_records(visit: Visit) -> Response:
    """Show records from a position on, or the newest ones as they come."""
    client, query, path = visit.client, visit.query, visit.path
    info = await find_stream(visit)
    at = await find_reach(client, info.stream_id)
    asked = _Asked.of(query)
    failure, found, status = "", Found(at.start_offset, at.start_offset), 200
    try:
        found = await asked.search(client, info, at)
    except SbpError as error:
        is_shown = isinstance(error, ConfigurationError | OffsetOutOfRangeError) or error.retriable
        if not is_shown:
            raise
        failure, status = str(error), status_of(error)
    before = max(found.start - asked.count, at.start_offset)
    headings, rows = make_table(found)
    turned = {"live": None, "order": "newest" if asked.is_newest_first else None}
    return visit.page(
        *("records.html", f"Records of {info.label}"),
        status=status,
        stream=info,
        asked=asked,
        asked_from=query.get("from", "").strip(),
        at=at,
        failure=failure,
        found=found,
        headings=headings,
        rows=rows[::-1] if asked.is_newest_first else rows,
        exports=[
            (each.name, link_to(f"{path}/export.{end}", query, live=None, **asked.frozen(found)))
            for end, each in FORMATS.items()
        ],
        earlier=link_to(path, query, **{"from": str(before)}, **turned)
        if found.start > at.start_offset
        else None,
        later=link_to(path, query, **{"from": str(found.end)}, **turned)
        if found.end < at.readable_end
        else None,
    )


async def export(visit: Visit) -> Response:
    """Return the records of a page as a file."""
    info, end = await find_stream(visit), visit.named("end")
    if end not in FORMATS:
        raise NotFoundError.of(f"there is no export {end!a}: ask for {', '.join(FORMATS)}")
    at, asked = await find_reach(visit.client, info.stream_id), _Asked.of(visit.query)
    found = await asked.search(visit.client, info, at)
    while asked.finds_more(found, at):  # a search is short, and the page has joined several
        further = await replace(asked, start=str(found.end)).search(visit.client, info, at)
        if further.end == found.end:
            break
        found.add(further)
    try:
        content = await asyncio.to_thread(FORMATS[end].write, found)
    except ValueError as error:  # of Arrow
        raise ConfigurationError(
            f"the records do not fit into one table: {error}; export them as JSON lines"
        ) from error
    name = quote(f"{info.label}-{found.start}-{found.end}.{end}", safe="")
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
    return Response(content, headers=headers, media_type=FORMATS[end].media_type)


async def show_record(visit: Visit) -> Response:
    """Show one record in full."""
    info, offset = await find_stream(visit), visit.named("offset")
    at = await find_reach(visit.client, info.stream_id)
    asked = _Asked(str(offset), 1, RecordFilter(), is_live=False)
    found = await asked.search(visit.client, info, at)
    if not found.records:
        raise NotFoundError.of(
            f"stream {info.label} has no record at offset {offset}"
            f"{': ' if found.faults else ''}{listed(found.faults, '; ')}"
        )
    return visit.page(
        *("record.html", f"Record {offset} of {info.label}"),
        stream=info,
        offset=offset,
        fields=[
            describe_field(name, value, is_time=name in _times(found.pieces[0]))
            for name, value in _fields(found.records[0]).items()
        ],
        previous=offset - 1 if offset > at.start_offset else None,
        next=offset + 1 if offset + 1 < at.readable_end else None,
    )


async def ask_record(visit: Visit) -> Response:
    """Show the form of a record to append; with one, what it will be."""
    info, query = await find_stream(visit), visit.query
    schema = await _maybe_schema(visit.client, info)
    form = {each: query.get(each, "") for each in ("key", "value", "headers", "columns")}
    if not form.keys() & query.keys():
        fields = [
            Field("key", "Key", is_required=False),
            Field("value", "Value", is_required=False, is_long=True),
            Field("headers", "Headers, name=value, one a line", is_required=False, is_long=True),
        ]
        if schema is not None:
            example = json.dumps({each.name: None for each in schema.arrow}, ensure_ascii=False)
            fields = [Field("columns", "Columns, as JSON", example, is_long=True)]
        title = f"Produce a record to {info.label}"
        return visit.form(title, fields, f"/streams/{info.stream_id}/records")
    make_batch(info, schema, form)
    text = form["columns"] if schema is not None else form["value"]
    question = Question(
        title=f"Produce a record to {titled(info)}?",
        facts=[
            f"Its {'columns are' if schema is not None else 'value is'}: {_short(text)}",
            "It gets the next offset and the time of now. A record cannot be taken back.",
        ],
        button="Produce it",
        back=f"/streams/{info.stream_id}/records",
        carried=form,
    )
    return visit.ask(question)


async def append_record(visit: Visit, fields: Mapping[str, str]) -> Done:
    """Append the record of a form."""
    info = await find_stream(visit)
    batch = make_batch(info, await _maybe_schema(visit.client, info), fields)
    (outcome,) = await visit.client.append([AppendItem(info.stream_id, batch)])
    path = f"/streams/{info.stream_id}/records"
    return Done(path, (f"appended to {titled(info)} at offset {outcome.base_offset}",))


def make_batch(info: StreamInfo, schema: StreamSchema | None, fields: Mapping[str, str]) -> bytes:
    """Return the record batch of a form. Raises ConfigurationError for what does not fit."""
    now_ms = time.time_ns() // 1_000_000
    headers = [each.split("=", 1) for each in fields.get("headers", "").splitlines() if each]
    if any(len(each) < 2 for each in headers):
        raise ConfigurationError("headers: write each as name=value, in a line of its own")
    plain = {
        "key": fields.get("key") or None,
        "value": fields.get("value", ""),
        "headers": headers or None,
    }
    line = json.dumps(plain) if schema is None else fields.get("columns", "")
    try:
        rows = parse_json_lines([line.encode()], schema, default_timestamp_us=now_ms * 1000)
    except RowFault as fault:
        raise ConfigurationError(f"the record: {fault.reason}") from fault
    if schema is None:
        return encode_rows(rows, stream_id=info.stream_id, timestamp_ms=now_ms)
    return encode_columns(rows, schema, stream_id=info.stream_id, timestamp_ms=now_ms)


async def _maybe_schema(client: AsyncClient, info: StreamInfo) -> StreamSchema | None:
    versions = (await client.describe_schemas([info.stream_id], newest_only=True))[info.stream_id]
    return versions[-1].schema if versions else None


@dataclass(frozen=True, slots=True)
class _Asked:
    """The records that an address asks for: a position, their number, and a filter."""

    start: str
    count: int
    wanted: RecordFilter
    is_live: bool
    fault: str = ""
    """Why `count` is not the number that the address has."""
    is_turned: bool = False
    """Whether the newest records are first although `start` is an offset."""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> _Asked:
        """Read the query of an address."""
        text, fault = query.get("count", "").strip(), ""
        count = parse_count(text) if text else _COUNT
        if count is None or not 1 <= count <= _COUNT_MAX:
            fault = f"records: {quoted(text)} is not a number from 1 to {_COUNT_MAX}"
            count = _COUNT
        wanted = RecordFilter(
            *(query.get(each, "").strip() for each in ("text", "key", "header", "column"))
        )
        is_live = "live" in query
        start = "" if is_live else query.get("from", "").strip()
        if not start:  # the newest records, or all that fit
            start = f"-{count}" if is_live or wanted.is_empty else "earliest"
        return cls(start, count, wanted, is_live, fault, query.get("order") == "newest")

    async def search(self, client: AsyncClient, info: StreamInfo, at: Reach) -> Found:
        """Return the records.

        Raises ConfigurationError for a position, number or column that cannot be.
        """
        if self.fault:
            raise ConfigurationError(self.fault)
        if self.wanted.column:
            versions = await client.describe_schemas([info.stream_id])
            check_column(self.wanted.column, versions[info.stream_id])
        end = at.readable_end
        if self.is_live and not self.wanted.is_empty:
            start = max(end - _LIVE_SEARCHED, at.start_offset)
        else:
            start = await self._find_start(client, at)
        stop = min(start + self.count, end) if self.wanted.is_empty else end
        for each in at.unavailable:
            behind = end if each.end_offset is None else each.end_offset
            if each.start_offset <= start < behind:
                fault = f"offsets {start} to {behind}, exclusive, were passed over: {each.error}"
                return Found(start, behind, faults=[fault])
            if start < each.start_offset:
                stop = min(stop, each.start_offset)
        count_max = _LIVE_SEARCHED if self.is_live else self.count
        found = await Search(info, (start, stop), self.wanted, count_max).run(client)
        return found.newest(self.count) if self.is_live else found

    @property
    def is_newest_first(self) -> bool:
        """Whether the page begins at its end; a search shows records in the order it finds them."""
        is_at_end = self.start.startswith("-") or self.is_turned
        return self.is_live or (is_at_end and self.wanted.is_empty)

    def finds_more(self, found: Found, at: Reach) -> bool:
        """Whether a search that goes on may find records that are asked for."""
        return (
            not self.wanted.is_empty
            and not self.is_live
            and len(found.records) < self.count
            and found.end < at.readable_end
        )

    def frozen(self, found: Found) -> dict[str, str]:
        """Return the part of an address that asks for these again, whatever is appended then."""
        count = found.end - found.start if self.wanted.is_empty else len(found.records)
        return {"from": str(found.start), "count": str(min(max(count, 1), _COUNT_MAX))}

    async def _find_start(self, client: AsyncClient, at: Reach) -> int:
        position = parse_position(self.start)
        by_time = None
        if position.kind is PositionKind.TIME:
            found = await client.lookup_offsets(
                {at.stream_id: position.number}, timeout_ms=REACH_MS
            )
            by_time = found.get(at.stream_id)
        # A stream whose end is not known is shown up to where that is.
        known = replace(at, next_offset=at.readable_end)
        return find_offset(position, known, by_time)


def make_table(
    found: Found,
) -> tuple[list[str], list[tuple[int, list[str | None]]]]:
    """Return the headings, and the offset and cells of each record; None is null or not there.

    Some records may be plain and others typed: the headings are in the order of their appearance.
    """
    headings = _headings(found.records)
    rows = []
    for piece in found.pieces:
        times = _times(piece)
        for record in piece.records:
            fields = _fields(record)
            cells = [_maybe_cell(fields.get(each), is_time=each in times) for each in headings]
            rows.append((record["offset"], cells))
    return headings, rows


def _times(piece: Piece) -> set[str]:
    """Return the names of columns that are points in time: timestamps with a zone."""
    return {each.name for each in piece.rows.schema if getattr(each.type, "tz", None)}


def _fields(record: Mapping[str, Any]) -> Mapping[str, Any]:
    columns: Mapping[str, Any] | None = record.get("columns")
    return {each: record[each] for each in _PLAIN} if columns is None else columns


def _headings(records: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for record in records for name in _fields(record)))


def _maybe_text(value: Any) -> str | None:
    """Return a value in one line: text as it is, bytes in hexadecimal, others as JSON."""
    if value is None or isinstance(value, str):
        return value
    data = _maybe_bytes(value)
    return json.dumps(value, ensure_ascii=False) if data is None else f"0x{data.hex()}"


def _maybe_cell(value: Any, *, is_time: bool) -> str | None:
    text = _maybe_text(value)
    if text is None:
        return None
    return moment_element(text) if is_time else _short(text)


def _short(text: str) -> str:
    rest = "..." if len(text) > SHOWN_CHARACTERS else ""
    return f"{escape(text[:SHOWN_CHARACTERS])}{rest}"


def describe_field(name: str, value: Any, *, is_time: bool = False) -> tuple[str, str, str]:
    """Return the name, the kind and the whole text of a value; bytes are a hexadecimal dump."""
    if is_time and isinstance(value, str):
        return name, "time", moment_element(value)
    data = _maybe_bytes(value)
    if data is not None:
        return name, f"{len(data)} bytes", _hex_dump(data)
    if value is None:
        return name, "null", ""
    if not isinstance(value, str):
        return name, "JSON", _laid_out(value)
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, dict | list):
        return name, "text, JSON", _laid_out(parsed)
    return name, f"text, {len(value.encode())} bytes", escape(value, spared="\t\n")


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


_RECORDS: Final = "/streams/{stream}/records"
ROUTES: Final = (
    get(_RECORDS, show_records),
    get(_RECORDS + "/new", ask_record),
    post(_RECORDS + "/new", append_record),
    get(_RECORDS + "/export.{end}", export),
    get(_RECORDS + "/{offset:int}", show_record),
)
