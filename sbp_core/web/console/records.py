"""The records of a stream: a table of them, as they come, as a file, and one in full."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sbp_core.client import AsyncClient, Reach, StreamInfo
from sbp_core.client.stream_position import PositionKind, find_offset, parse_position
from sbp_core.errors import ConfigurationError, NotFoundError, OffsetOutOfRangeError, SbpError
from sbp_core.quantities import quoted
from sbp_core.web.console.records_reading import Found, RecordFilter, Search, check_column
from sbp_core.web.console.records_view import FORMATS, describe_record, make_table
from sbp_core.web.console.site import Site
from sbp_core.web.console.stream import REACH_MS, find_reach, find_stream
from sbp_core.web.console.tables import link_to, parse_count
from sbp_core.web.problems import status_of
from sbp_core.wording import listed

_COUNT: Final = 50
_COUNT_MAX: Final = 1_000
_LIVE_SEARCHED: Final = 5_000
"""Records that a live page with a filter searches, at the end of the stream."""


async def show_records(request: Request) -> Response:
    """Show records from a position on, or the newest ones as they come."""
    site = Site.of(request)
    client = await site.client(request)
    info = await find_stream(client, request)
    at = await find_reach(client, info.stream_id)
    asked = _Asked.of(request.query_params)
    failure, found, status = "", Found(at.start_offset, at.start_offset), 200
    try:
        found = await asked.search(client, info, at)
    except SbpError as error:
        is_shown = isinstance(error, ConfigurationError | OffsetOutOfRangeError) or error.retriable
        if not is_shown:
            raise
        failure, status = str(error), status_of(error)
    query, path = request.query_params, request.url.path
    before = max(found.start - asked.count, at.start_offset)
    return site.page(
        *(request, "records.html", f"Records of {info.label}"),
        status=status,
        stream=info,
        asked=asked,
        at=at,
        failure=failure,
        found=found,
        table=make_table(found, newest_first=asked.is_live),
        exports=[
            (each.name, link_to(f"{path}/export.{end}", query, live=None, **asked.frozen(found)))
            for end, each in FORMATS.items()
        ],
        earlier=link_to(path, query, **{"from": str(before)}, live=None)
        if found.start > at.start_offset
        else None,
        later=link_to(path, query, **{"from": str(found.end)}, live=None)
        if found.end < at.readable_end
        else None,
    )


async def export(request: Request) -> Response:
    """Return the records of a page as a file."""
    client = await Site.of(request).client(request)
    info = await find_stream(client, request)
    end = request.path_params["end"]
    if end not in FORMATS:
        raise NotFoundError.of(f"there is no export {end!a}: ask for {', '.join(FORMATS)}")
    at = await find_reach(client, info.stream_id)
    found = await _Asked.of(request.query_params).search(client, info, at)
    try:
        content = await asyncio.to_thread(FORMATS[end].write, found)
    except ValueError as error:  # of Arrow
        raise ConfigurationError(
            f"the records do not fit into one table: {error}; export them as JSON lines"
        ) from error
    name = quote(f"{info.label}-{found.start}-{found.end}.{end}", safe="")
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
    return Response(content, headers=headers, media_type=FORMATS[end].media_type)


async def show_record(request: Request) -> Response:
    """Show one record in full."""
    site = Site.of(request)
    client = await site.client(request)
    info = await find_stream(client, request)
    offset: int = request.path_params["offset"]
    at = await find_reach(client, info.stream_id)
    asked = _Asked(str(offset), 1, RecordFilter(), is_live=False)
    found = await asked.search(client, info, at)
    if not found.records:
        raise NotFoundError.of(
            f"stream {info.label} has no record at offset {offset}"
            f"{': ' if found.faults else ''}{listed(found.faults, '; ')}"
        )
    return site.page(
        *(request, "record.html", f"Record {offset} of {info.label}"),
        stream=info,
        offset=offset,
        fields=describe_record(found.records[0]),
        previous=offset - 1 if offset > at.start_offset else None,
        next=offset + 1 if offset + 1 < at.readable_end else None,
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    """The records that an address asks for: a position, their number, and a filter."""

    start: str
    count: int
    wanted: RecordFilter
    is_live: bool
    fault: str = ""
    """Why `count` is not the number that the address has."""

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
        start = query.get("from", "").strip()
        return cls(start if start and not is_live else f"-{count}", count, wanted, is_live, fault)

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


ROUTES: Final = (
    Route("/streams/{stream}/records", show_records, methods=["GET"]),
    Route("/streams/{stream}/records/export.{end}", export, methods=["GET"]),
    Route("/streams/{stream}/records/{offset:int}", show_record, methods=["GET"]),
)
