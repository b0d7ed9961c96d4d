"""The pages of one stream: its facts and ranges, its schema."""

from __future__ import annotations

import time
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sbp_core.client import AsyncClient, Reach, StreamInfo
from sbp_core.quantities import is_offset
from sbp_core.web.console.charts import Series, draw
from sbp_core.web.console.ranges_view import draw_ranges
from sbp_core.web.console.ranges_view import make_rows as make_range_rows
from sbp_core.web.console.site import Site
from sbp_core.web.console.stream_view import (
    compare_versions,
    make_columns,
    make_facts,
    make_history,
    make_readers,
)
from sbp_core.web.console.tables import parse_count

REACH_MS: Final = 1_500
"""How long range servers that do not answer are waited for."""


async def show(request: Request) -> Response:
    """Show the facts and the ranges of a stream."""
    site = Site.of(request)
    client = await site.client(request)
    samples = await site.samples(request)
    info = await find_stream(client, request)
    stream_id = info.stream_id
    at = await find_reach(client, stream_id)
    ranges = (await client.list_ranges([stream_id]))[stream_id]
    sizes = await client.stored_bytes([stream_id], timeout_ms=REACH_MS)
    rates = [Series(info.label, samples.rates_over_time(stream_id))]
    return site.page(
        *(request, "stream.html", info.label),
        stream=info,
        facts=make_facts(info, at, samples),
        size_bytes=sizes.get(stream_id),
        unavailable=at.unavailable,
        picture=draw_ranges(ranges, at),
        ranges=make_range_rows(ranges, at),
        rates=draw("Records per second", rates, time.time_ns() / 1_000_000, "/s"),
        readers=make_readers(samples, stream_id),
        properties=(await client.describe_properties([stream_id]))[stream_id],
    )


async def show_schema(request: Request) -> Response:
    """Show the versions of a stream's schema, and how two of them differ."""
    site = Site.of(request)
    client = await site.client(request)
    info = await find_stream(client, request)
    versions = (await client.describe_schemas([info.stream_id]))[info.stream_id]
    numbered = {each.version: each for each in versions}
    numbers = [parse_count(request.query_params.get(each, "")) for each in ("before", "after")]
    before, after = (None if each is None else numbered.get(each) for each in numbers)
    return site.page(
        *(request, "schema.html", f"Schema of {info.label}"),
        stream=info,
        history=make_history(versions),
        newest=versions[-1].version if versions else None,
        columns=make_columns(versions[-1]) if versions else [],
        compared=None if after is None else (before, after, compare_versions(before, after)),
    )


async def find_stream(client: AsyncClient, request: Request) -> StreamInfo:
    """Return the stream that the path of a request names, by id or name. Raises NotFoundError."""
    text: str = request.path_params["stream"]
    (info,) = await client.describe_streams([int(text) if is_offset(text) else text])
    return info


async def find_reach(client: AsyncClient, stream_id: int) -> Reach:
    """Return what can be read of a stream now, after REACH_MS at most."""
    found = await client.reach({stream_id: None}, timeout_ms=REACH_MS, spared={})
    return found[stream_id]


ROUTES: Final = (
    Route("/streams/{stream}", show, methods=["GET"]),
    Route("/streams/{stream}/schema", show_schema, methods=["GET"]),
)
