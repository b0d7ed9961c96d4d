"""`sbp console`: the web console of a cluster."""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser
from typing import TYPE_CHECKING

from sbp_core.cli.web import CONSOLE_PORT, WebService, add_web_options

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from sbp_core.client import AsyncClient, Connecting
    from sbp_core.web.callers import Callers
    from sbp_core.web.settings import WebSettings


def add_console(parser: ArgumentParser) -> None:
    """Declare `sbp console`."""
    parser.description = (
        "Serve pages for a browser, about the cluster: rates, lag, streams and their records,"
        " groups, transactions, servers. It is a client of the cluster, which decides what each"
        " user may see and do: by the token that the user signs in with, or else by the token or"
        " certificate of this command, on an address that only this machine reaches."
    )
    add_web_options(parser, CONSOLE_PORT)
    parser.set_defaults(run=_CONSOLE.run)


def _make(settings: WebSettings, callers: Callers, stopping: asyncio.Event) -> ASGIApp:
    from sbp_core.web.console.app import make_app
    from sbp_core.web.console.sampling import Sampler
    from sbp_core.web.console.site import Site

    return make_app(Site(callers, Sampler(stopping), settings.endpoint))


def _make_client(endpoint: str, connecting: Connecting) -> AsyncClient:
    from sbp_core.web.console.site import make_client

    return make_client(endpoint, connecting)


_CONSOLE = WebService("console", _make, has_sessions=True, make_client=_make_client)
