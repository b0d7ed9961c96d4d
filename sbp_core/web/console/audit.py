"""The audit trail: the events of the stream `_audit`, newest first."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sbp_core.access.rights import AUDIT_STREAM
from sbp_core.client import AsyncClient, StreamInfo
from sbp_core.errors import DeadlineExceededError
from sbp_core.quantities import parse_timestamp
from sbp_core.web.console.audit_view import OUTCOMES, AuditPage, EventFilter, EventSearch
from sbp_core.web.console.records_reading import RecordFilter, Search
from sbp_core.web.console.site import Site
from sbp_core.web.console.tables import link_to, parse_count

_PATH: Final = "/audit"
_BLOCK_RECORDS: Final = 500
_WAIT_MS: Final = 3_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


async def show(request: Request) -> Response:
    """Show the events that fit the filter."""
    site, query = Site.of(request), request.query_params
    client = await site.client(request)
    found = await client.find_streams([AUDIT_STREAM])
    if not found:
        return site.page(request, "audit_off.html", "Audit")
    info = found[0]
    first, end = await _find_bounds(
        client, info.stream_id, query.get("from", ""), query.get("to", "")
    )
    before = parse_count(query.get("before", ""))
    wanted = EventFilter(
        *(query.get(name, "").strip() for name in ("identity", "operation", "outcome"))
    )
    search = EventSearch(wanted, first, end if before is None else min(before, end))
    page, faults = await _read(client, info, search)
    older = None if page.next_end is None else link_to(_PATH, query, before=str(page.next_end))
    newest = link_to(_PATH, query, before=None) if before is not None else None
    return site.page(
        *(request, "audit.html", "Audit"),
        found=page,
        faults=faults,
        outcomes=OUTCOMES,
        older=older,
        newest=newest,
        is_newest=before is None,
    )


async def _read(
    client: AsyncClient, info: StreamInfo, search: EventSearch
) -> tuple[AuditPage, list[str]]:
    """Return the page of a search, and which records cannot be decoded. Raises SbpError."""
    faults: list[str] = []
    while (block := search.maybe_block(_BLOCK_RECORDS)) is not None:
        start, end = block
        found = await Search(info, block, RecordFilter(), end - start).run(client)
        if found.end < end:
            raise DeadlineExceededError(
                f"the events from offset {found.end} to {end} cannot be read now"
            )
        faults += found.faults
        search.add(start, [(each["offset"], each.get("value")) for each in found.records])
    return search.page(), faults


async def _find_bounds(
    client: AsyncClient, stream_id: int, since: str, until: str
) -> tuple[int, int]:
    """Return the offsets of the events stored between two times, as far as they can be read.

    Raises ConfigurationError for what is no time.
    """
    reach = (await client.reach({stream_id: None}, timeout_ms=_WAIT_MS, spared={}))[stream_id]

    async def offset_at(text: str, default: int) -> int:
        if not text.strip():
            return default
        time_us = (parse_timestamp(text.strip()) - _EPOCH) // timedelta(microseconds=1)
        return (await client.lookup_offsets({stream_id: time_us}))[stream_id]

    first = await offset_at(since, reach.start_offset)
    return first, min(await offset_at(until, reach.readable_end), reach.readable_end)


ROUTES: Final = (Route(_PATH, show, methods=["GET"]),)
