"""The servers of the cluster: who leads, the load of each, and draining one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from sbp_core.client import RangeServerInfo
from sbp_core.errors import NotFoundError
from sbp_core.web.console.health import PROBE_MS, cluster_problems, driver_problems
from sbp_core.web.console.site import Done, Question, Visit, get, post
from sbp_core.web.console.words import counted

_PATH: Final = "/servers"


async def show(visit: Visit) -> Response:
    """Show the placement drivers and the range servers; retired ones on demand."""
    cluster = await visit.client.describe_cluster()
    drivers = await visit.client.placement_drivers()
    down = await visit.client.probe([each.endpoint for each in drivers], timeout_ms=PROBE_MS)
    shows_retired = "all" in visit.query
    return visit.page(
        *("servers.html", "Servers"),
        drivers=sorted(drivers, key=lambda each: (not each.is_leader, each.endpoint)),
        down=down,
        servers=[each for each in cluster.range_servers if shows_retired or not each.is_retired],
        problems=cluster_problems(cluster) + driver_problems(drivers, down),
    )


async def ask_drain(visit: Visit) -> Response:
    """Show what a drain will do."""
    server = await _find(visit)
    others = await visit.client.range_servers()
    usable = sum(each.is_usable for each in others if each.server_id != server.server_id)
    question = Question(
        title=f"Drain range server {server.server_id} at {server.endpoint}?",
        facts=drain_facts(server, usable),
        button="Drain it",
        back=_PATH,
    )
    return visit.ask(question)


async def ask_cancel(visit: Visit) -> Response:
    """Show what it means to cancel a drain."""
    server = await _find(visit)
    question = Question(
        title=f"Cancel the drain of range server {server.server_id} at {server.endpoint}?",
        facts=["It can be given ranges again.", "Ranges that have moved do not come back."],
        button="Cancel the drain",
        back=_PATH,
    )
    return visit.ask(question)


async def drain(visit: Visit, fields: Mapping[str, str]) -> Done:
    """Give a range server no ranges any more."""
    del fields
    await visit.client.drain_servers([visit.named("server")])
    return Done(_PATH, (f"range server {visit.named('server')} is draining",))


async def cancel(visit: Visit, fields: Mapping[str, str]) -> Done:
    """Let a range server be given ranges again."""
    del fields
    await visit.client.drain_servers([visit.named("server")], is_cancelled=True)
    return Done(_PATH, (f"range server {visit.named('server')} can be given ranges again",))


def drain_facts(server: RangeServerInfo, other_count: int) -> list[str]:
    """Return what a drain will do, a sentence each; ranges can go to `other_count` servers."""
    moved = counted(server.open_ranges, "open range")
    copied = counted(server.copied_by_drain, "sealed range")
    said = [
        "It gets no new ranges.",
        f"{moved} there: sealed, and continued on other servers. Appends wait for less than 1 s.",
        f"{copied} with other replicas: copied to other servers.",
    ]
    if server.unreplicated_ranges:
        single = counted(server.unreplicated_ranges, "sealed range")
        said.append(
            f"{single} with one replica: not copied. Keep the server until they are trimmed."
        )
    if not other_count:
        said.append(
            "No other server can be given ranges now: until there is one, the drain waits, and no"
            " stream can be created. Start another range server first."
        )
    return [*said, "The drain goes on by itself until it is done or cancelled."]


async def _find(visit: Visit) -> RangeServerInfo:
    """Return the range server of a request. Raises NotFoundError."""
    for each in await visit.client.range_servers():
        if each.server_id == visit.named("server"):
            return each
    raise NotFoundError.of(f"there is no range server {visit.named('server')}")


ROUTES: Final = (
    get(_PATH, show),
    get(_PATH + "/{server:int}/drain", ask_drain),
    post(_PATH + "/{server:int}/drain", drain),
    get(_PATH + "/{server:int}/cancel-drain", ask_cancel),
    post(_PATH + "/{server:int}/cancel-drain", cancel),
)
