"""`sbp http` and `sbp console`."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from sbp_core.cli.commands import Command
from sbp_core.cli.gateway_service import GatewayService, Listener, gateway_options
from sbp_core.cli.lake import catalog_options
from sbp_core.cli.options import ClientOptions
from sbp_core.lake.catalog import open_catalog
from sbp_core.settings.web_settings import ConsoleSettings, HttpSettings, WebSettings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from starlette.types import ASGIApp

    from sbp_core.client import AsyncClient, Connecting
    from sbp_core.web.callers import Callers


@click.command(cls=Command, example="sbp http --port 12381")
@gateway_options(HttpSettings)
def http(client: ClientOptions, **given: Any) -> int:
    """Serve records over HTTP, so that programs in any language append and read them.

    The paths are below /v1/streams, described by /v1/openapi.json. Each request is executed with
    the identity of its token. SIGHUP reads the files of TLS again, and opens the file of the log
    again.
    """
    return _HTTP.run(client, given)


def _http_listener(name: str, settings: WebSettings, callers: Callers, app: ASGIApp) -> Listener:
    from sbp_core.web.browsers import of_this_host
    from sbp_core.web.http_listener import CALLER_LIMITS, HttpListener

    host = settings.host if settings.is_local else None
    app = of_this_host(callers.counting(app), host)
    return HttpListener(
        app, CALLER_LIMITS, settings.tls_contexts(), name=f"sbp {name}", port_name="--port"
    )


def _make_records(settings: HttpSettings, callers: Callers, stopping: asyncio.Event) -> Listener:
    from sbp_core.web.records.api import records_app
    from sbp_core.web.records.record_answers import Tails
    from sbp_core.web.records.requests import Bodies

    app = records_app(callers, Bodies(settings.body_bytes_max), Tails(stopping))
    return _http_listener("http", settings, callers, app)


def _make_console(
    catalog: Catalog | None, settings: WebSettings, callers: Callers, stopping: asyncio.Event
) -> Listener:
    from sbp_core.web.console.app import make_app
    from sbp_core.web.console.histories import Sampler
    from sbp_core.web.console.site import Site
    from sbp_core.web.console.tables import Tables

    sampler = Sampler(stopping, hold=callers.holding)
    own = callers.maybe_own()
    if own is not None:  # so that charts begin before somebody looks
        sampler.look(own)
    app = make_app(Site(callers, sampler, settings.endpoint, Tables(catalog)))
    return _http_listener("console", settings, callers, app)


def _make_client(endpoint: str, connecting: Connecting) -> AsyncClient:
    from sbp_core.web.console.site import make_client

    return make_client(endpoint, connecting)


_HTTP: Final = GatewayService("http", HttpSettings, _make_records)


@click.command(cls=Command, example="sbp console --port 12380")
@gateway_options(ConsoleSettings)
@catalog_options
def console(
    client: ClientOptions, *, catalog: str | None, warehouse: str | None, **given: Any
) -> int:
    """Serve pages for a browser, about the cluster.

    The pages show rates, lag, streams and their records, groups, transactions, servers. The console
    is a client of the cluster, which decides what each user may see and do: by the token that the
    user signs in with, or else by the token or certificate of this command, on an address that only
    this machine reaches.
    """
    tables = open_catalog(catalog, warehouse) if catalog or warehouse else None
    make = partial(_make_console, tables)
    service = GatewayService(
        "console", ConsoleSettings, make, has_sessions=True, make_client=_make_client
    )
    return service.run(client, given)
