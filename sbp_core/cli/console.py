"""`sbp console`: the web console of a cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from sbp_core.cli.client_options import ClientOptions
from sbp_core.cli.web import CONSOLE_PORT, WebService, web_options

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from sbp_core.client import AsyncClient, Connecting
    from sbp_core.web.callers import Callers
    from sbp_core.web.web_settings import WebSettings


def _make(settings: WebSettings, callers: Callers, stopping: asyncio.Event) -> ASGIApp:
    from sbp_core.web.console.app import make_app
    from sbp_core.web.console.histories import Sampler
    from sbp_core.web.console.site import Site

    sampler = Sampler(stopping, hold=callers.holding)
    own = callers.maybe_own()
    if own is not None:  # so that charts begin before somebody looks
        sampler.look(own)
    return make_app(Site(callers, sampler, settings.endpoint))


def _make_client(endpoint: str, connecting: Connecting) -> AsyncClient:
    from sbp_core.web.console.site import make_client

    return make_client(endpoint, connecting)


_CONSOLE = WebService("console", _make, has_sessions=True, make_client=_make_client)


@click.command()
@web_options(CONSOLE_PORT)
def console(client: ClientOptions, **given: Any) -> int:
    """Serve pages for a browser, about the cluster.

    They show rates, lag, streams and their records, groups, transactions, servers. The console is a
    client of the cluster, which decides what each user may see and do: by the token that the user
    signs in with, or else by the token or certificate of this command, on an address that only this
    machine reaches.
    """
    return _CONSOLE.run(client, given)
