"""`sbp serve`, `sbp pd` and `sbp range-server`: the servers of a cluster, or one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from itertools import count, repeat
from typing import TYPE_CHECKING, Any, Final

import click

from sbp_core.cli.commands import Command, CommandWithActions
from sbp_core.cli.options import json_option
from sbp_core.cli.server_options import HANG_UP_HELP, server_options
from sbp_core.cli.serving import LOG_OPTIONS, Service
from sbp_core.settings import configuration
from sbp_core.settings.configuration import ServeSettings
from sbp_core.settings.server_settings import (
    ClusterSettings,
    PlacementDriverSettings,
    RangeServerSettings,
)

if TYPE_CHECKING:
    from sbp_core.cluster import Cluster
    from sbp_core.pd import PlacementDriver
    from sbp_core.rangeserver.server import RangeServer


def _make(settings: ServeSettings[ClusterSettings], stop: Callable[[], None]) -> Cluster:
    from sbp_core.cluster import Cluster
    from sbp_core.processes import RangeServerProcess

    if settings.servers.range_servers == 1:
        return Cluster(settings.servers)
    port = settings.admin_port
    admin_ports = count(port + 1) if port > 0 else repeat(port)

    def make_process(server: RangeServerSettings) -> RangeServerProcess:
        return RangeServerProcess(
            server,
            log_options={name: getattr(settings, name) for name in LOG_OPTIONS},
            admin_port=next(admin_ports),
            on_stopped=stop,
        )

    return Cluster(settings.servers, make_process=make_process)


def _describe(cluster: Cluster, found: list[list[str]]) -> tuple[dict[str, Any], list[str]]:
    endpoints = cluster.endpoints
    lines = [f"placement driver  {endpoints.pd}"]
    for index, (endpoint, notes) in enumerate(zip(endpoints.range_servers, found, strict=True)):
        lines += [f"range server {index}    {each}" for each in (endpoint, *notes)]
    content = {name: each for name, each in asdict(endpoints).items() if each is not None}
    if endpoints.kafka is not None:
        lines.append(f"kafka             {endpoints.kafka}")
    if cluster.admin_endpoints:
        content["range_server_admins"] = cluster.admin_endpoints
    for index, endpoint in enumerate(cluster.admin_endpoints):
        lines.append(f"range server {index}    admin {endpoint}")
    return content, lines


SERVE = Service(configuration.SERVE, _make, _describe)


@click.command(
    cls=Command,
    example="sbp serve --data-dir sbp-data",
    help="Run a placement driver and range servers, durable in one folder, until SIGTERM or Ctrl-C."
    f"\n\n{HANG_UP_HELP} One range server runs in this process. Several run in a process each: when"
    " one of them ends, all end, and none survives this process. Options win over the configuration"
    " file, and that over the defaults.",
)
@server_options(configuration.SERVE)
def serve(**given: Any) -> int:
    """Run them until a signal."""
    return SERVE.run(given)


def _make_pd(
    settings: ServeSettings[PlacementDriverSettings], stop: Callable[[], None]
) -> PlacementDriver:
    from sbp_core.pd import PlacementDriver

    return PlacementDriver(settings.servers)


def _describe_pd(driver: PlacementDriver, endpoint: str) -> tuple[dict[str, Any], list[str]]:
    return {"endpoint": endpoint}, [f"placement driver  {endpoint}"]


def _make_range_server(
    settings: ServeSettings[RangeServerSettings], stop: Callable[[], None]
) -> RangeServer:
    from sbp_core.rangeserver.server import RangeServer

    return RangeServer(settings.servers)


def _describe_range_server(
    server: RangeServer, found: list[str]
) -> tuple[dict[str, Any], list[str]]:
    lines = [f"range server      {each}" for each in (server.endpoint, *found)]
    return {"endpoint": server.endpoint}, lines


PD = Service(configuration.PD, _make_pd, _describe_pd)
RANGE_SERVER = Service(configuration.RANGE_SERVER, _make_range_server, _describe_range_server)


@click.command(
    cls=CommandWithActions,
    example="sbp pd --config conf/pd.toml",
    help=f"Run one placement driver until SIGTERM or Ctrl-C.\n\n{HANG_UP_HELP} Its metadata are in"
    " its data folder, or in the database of --store. Options win over the configuration file, and"
    " that over the defaults. The actions are for a placement driver that is stopped.",
)
@server_options(configuration.PD)
def pd(**given: Any) -> int:
    """Run it until a signal."""
    return PD.run(given)


_folder: Final = click.argument(
    "folder",
    metavar="DIR-OR-URL",
    help="Data folder of a placement driver, or of `sbp serve`; or the URL of a PostgreSQL database"
    " with metadata.",
)


@pd.action("check", example="sbp pd check /var/lib/sbp")
@_folder
@json_option
def check(folder: str, *, json: bool) -> int:
    """Find damage and missing commits. Nothing is changed.

    Reads all metadata, compares each row with its checksum, and the last commit with what
    metadata.mark and the range servers of the same folder know. A PostgreSQL database checks its
    rows itself: what is shown is its content, and which placement driver leads. Exit code 1 if a
    placement driver would not start with them.
    """
    from sbp_core.cli import stopped_driver as stopped

    return stopped.check(folder, is_json=json)


@pd.action("accept", example="sbp pd accept /var/lib/sbp")
@_folder
@json_option
def accept(folder: str, *, json: bool) -> int:
    """Continue with metadata that are damaged, or older than before.

    A placement driver starts with the metadata as they are, when no better copy is left. Missing
    streams, cursors and decisions are lost. Ids that were assigned since are not assigned again.
    Intact metadata are not changed.
    """
    from sbp_core.cli import stopped_driver as stopped

    return stopped.accept(folder, is_json=json)


@pd.action("move", example="sbp pd move /var/lib/sbp --to postgresql://sbp@db.example.org/sbp")
@click.argument("folder", metavar="DIR", help="Data folder, of `sbp serve` or of `sbp pd`.")
@click.option("--to", "url", metavar="URL", required=True, help="An empty PostgreSQL database.")
@json_option
def move(folder: str, url: str, *, json: bool) -> int:
    """Copy the metadata of a stopped placement driver to a PostgreSQL database.

    All rows are checked before and compared after. Then start placement drivers with --store URL.
    The folder is not changed: until one has started with the database, the old one may be started
    again.
    """
    from sbp_core.cli import stopped_driver as stopped

    return stopped.move(folder, url, is_json=json)


@click.command(
    "range-server",
    cls=Command,
    example="sbp range-server --config conf/range-server.toml",
    help=f"Run one range server until SIGTERM or Ctrl-C.\n\n{HANG_UP_HELP} It registers with the"
    " placement driver that leads, and waits for it if there is none. Options win over the"
    " configuration file, and that over the defaults.",
)
@server_options(configuration.RANGE_SERVER)
def range_server(**given: Any) -> int:
    """Run it until a signal."""
    return RANGE_SERVER.run(given)
