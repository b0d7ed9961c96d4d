"""The list of streams: searched, sorted and cut into pages by the server."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sbp_core.web.console.site import Site
from sbp_core.web.console.streams_view import COLUMNS, make_rows
from sbp_core.web.console.tables import make_table

_SAMPLED_MIN: Final = 1_000
"""From this many streams on, a page shows those of the last sample, which is seconds old."""


async def show(request: Request) -> Response:
    """Show the streams that the caller sees."""
    site = Site.of(request)
    client = await site.client(request)
    samples = await site.samples(request)
    query = request.query_params
    streams = samples.streams
    if len(streams) < _SAMPLED_MIN:
        streams = await client.list_streams()
    rows = make_rows(streams, samples, query.get("search", ""))
    table = make_table(rows, COLUMNS, query, request.url.path)
    return site.page(request, "streams.html", "Streams", table=table)


ROUTES: Final = (Route("/streams", show, methods=["GET"]),)
