"""The servers of the cluster: who leads, what each has, and draining one."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sbp_core.client import AsyncClient, RangeServerInfo
from sbp_core.errors import NotFoundError
from sbp_core.web.console.actions import Question, act, ask
from sbp_core.web.console.problems_view import cluster_problems, driver_problems
from sbp_core.web.console.servers_view import drain_consequences, driver_rows, server_rows
from sbp_core.web.console.site import Site
from sbp_core.web.console.submissions import Done

_PATH: Final = "/servers"
_PROBE_MS: Final = 1_000
"""A placement driver that does not answer a PING for this long is down."""


async def show(request: Request) -> Response:
    """Show the placement drivers and the range servers."""
    site = Site.of(request)
    client = await site.client(request)
    cluster = await client.describe_cluster()
    drivers = await client.placement_drivers()
    endpoints = [each.endpoint for each in drivers]
    down = await client.probe(endpoints, timeout_ms=_PROBE_MS)
    return site.page(
        *(request, "servers.html", "Servers"),
        drivers=driver_rows(drivers, down),
        servers=server_rows(cluster, shows_retired="all" in request.query_params),
        problems=cluster_problems(cluster) + driver_problems(drivers, down),
    )


async def ask_drain(request: Request) -> Response:
    """Show what a drain will do."""
    client = await Site.of(request).client(request)
    server = await _find(client, request)
    others = [each for each in await client.range_servers() if each.server_id != server.server_id]
    question = Question(
        title=f"Drain range server {server.server_id} at {server.endpoint}?",
        facts=drain_consequences(server, sum(each.is_usable for each in others)),
        button="Drain it",
        back=_PATH,
    )
    return ask(request, question)


async def ask_cancel(request: Request) -> Response:
    """Show what it means to cancel a drain."""
    client = await Site.of(request).client(request)
    server = await _find(client, request)
    question = Question(
        title=f"Cancel the drain of range server {server.server_id} at {server.endpoint}?",
        facts=["It can be given ranges again.", "Ranges that have moved do not come back."],
        button="Cancel the drain",
        back=_PATH,
    )
    return ask(request, question)


async def drain(request: Request) -> Response:
    """Let a range server get no ranges any more."""
    return await _change(request, is_cancelled=False)


async def cancel(request: Request) -> Response:
    """Let a range server be given ranges again."""
    return await _change(request, is_cancelled=True)


async def _change(request: Request, *, is_cancelled: bool) -> Response:
    site, server_id = Site.of(request), request.path_params["server"]
    fields = await site.form(request)
    client = await site.client(request)

    async def action() -> Done:
        await client.drain_servers([server_id], is_cancelled=is_cancelled)
        said = "can be given ranges again" if is_cancelled else "is draining"
        return Done(_PATH, (f"range server {server_id} {said}",))

    return await act(request, fields, action)


async def _find(client: AsyncClient, request: Request) -> RangeServerInfo:
    """Return the range server of a request. Raises NotFoundError."""
    server_id = request.path_params["server"]
    for each in await client.range_servers():
        if each.server_id == server_id:
            return each
    raise NotFoundError.of(f"there is no range server {server_id}")


ROUTES: Final = (
    Route(_PATH, show, methods=["GET"]),
    Route(_PATH + "/{server:int}/drain", ask_drain, methods=["GET"]),
    Route(_PATH + "/{server:int}/drain", drain, methods=["POST"]),
    Route(_PATH + "/{server:int}/cancel-drain", ask_cancel, methods=["GET"]),
    Route(_PATH + "/{server:int}/cancel-drain", cancel, methods=["POST"]),
)
