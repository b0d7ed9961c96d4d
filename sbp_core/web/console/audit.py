"""The audit trail: the events of the stream `_audit`, newest first."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sbp_core import limits
from sbp_core.access.rights import AUDIT_STREAM
from sbp_core.client import AsyncClient, FetchItem
from sbp_core.quantities import parse_timestamp
from sbp_core.records import decode_batch, split_envelopes
from sbp_core.web.console.audit_view import OUTCOMES, AuditPage, EventFilter, Search
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
    stream_id = found[0].stream_id
    first, end = await _find_bounds(client, stream_id, query.get("from", ""), query.get("to", ""))
    before = parse_count(query.get("before", ""))
    wanted = EventFilter(*(query.get(name, "").strip() for name in ("identity", "operation")))
    outcome = query.get("outcome", "")
    search = Search(
        EventFilter(wanted.identity, wanted.operation, outcome if outcome in OUTCOMES else ""),
        first,
        end if before is None else min(before, end),
    )
    page = await _search(client, stream_id, search)
    older = None if page.next_end is None else link_to(_PATH, query, before=str(page.next_end))
    newest = link_to(_PATH, query, before=None) if before is not None else None
    return site.page(
        *(request, "audit.html", "Audit"),
        found=page,
        outcomes=OUTCOMES,
        older=older,
        newest=newest,
        is_newest=before is None,
    )


async def _search(client: AsyncClient, stream_id: int, search: Search) -> AuditPage:
    while (block := search.maybe_block(_BLOCK_RECORDS)) is not None:
        search.add(block[0], await _read_values(client, stream_id, *block))
    return search.page()


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


async def _read_values(
    client: AsyncClient, stream_id: int, start: int, end: int
) -> list[bytes | None]:
    """Return the values of the records from `start` to `end`, exclusive. Raises SbpError."""
    values: list[bytes | None] = []
    at = start
    while at < end:
        item = FetchItem(stream_id, at, end, limits.BATCH_TARGET_BYTES)
        (outcome,) = [each async for each in client.fetch([item], max_wait_ms=_WAIT_MS)]
        if outcome.error is not None:
            raise outcome.error
        for envelope in split_envelopes(outcome.payload):
            column = decode_batch(envelope).column("value")
            values += column.slice(at - envelope.base_offset, end - at).to_pylist()
            at = min(envelope.base_offset + len(column), end)
    return values


ROUTES: Final = (Route(_PATH, show, methods=["GET"]),)
