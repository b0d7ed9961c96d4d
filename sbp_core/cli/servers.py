"""`sbp pd` and `sbp range-server`: one server in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from sbp_core.cli.client_options import json_option
from sbp_core.cli.commands import CommandWithActions
from sbp_core.cli.server_options import (
    HANG_UP_HELP,
    RECORD_BYTES_MAX,
    process_options,
    security_options,
    server_options,
)
from sbp_core.cli.serving import Service

if TYPE_CHECKING:
    from sbp_core.cli.config import ServeSettings
    from sbp_core.pd import PlacementDriver, PlacementDriverSettings
    from sbp_core.rangeserver.range_server_settings import RangeServerSettings
    from sbp_core.rangeserver.server import RangeServer


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


PD = Service("PD", _make_pd, _describe_pd)
RANGE_SERVER = Service("RANGE_SERVER", _make_range_server, _describe_range_server)


@click.command(
    cls=CommandWithActions,
    help=f"Run one placement driver until SIGTERM or Ctrl-C.\n\n{HANG_UP_HELP} Its metadata are in"
    " its data folder, or in the database of --store. Options win over the configuration file, and"
    " that over the defaults. The actions are for a placement driver that is stopped.",
)
@server_options(12378)
@click.option(
    "--name",
    metavar="NAME",
    help="Its name among those of the cluster. [default: placement-driver]",
)
@click.option(
    "--store",
    metavar="URL",
    help="Metadata in postgresql://USER@HOST:PORT/DATABASE, which several placement drivers may"
    " share, or sqlite:///DIRECTORY/metadata.sqlite. [default: SQLite in the data folder]",
)
@security_options
@process_options("conf/pd.toml")
def pd(**given: Any) -> int:
    """Run it until a signal."""
    return PD.run(given)


_folder: Final = click.argument(
    "folder",
    metavar="DIR-OR-URL",
    help="Data folder of a placement driver, or of `sbp serve`; or the URL of a PostgreSQL database"
    " with metadata.",
)


@pd.action("check")
@_folder
@json_option
def check(folder: str, *, json: bool) -> int:
    """Find damage and missing commits. Nothing is changed.

    Reads all metadata, compares each row with its checksum, and the last commit with what
    metadata.mark and the range servers of the same folder know. A PostgreSQL database checks its
    rows itself: what is shown is its content, and which placement driver leads. Exit code 1 if a
    placement driver would not start with them.
    """
    from sbp_core.cli import pd as stopped

    return stopped.check(folder, is_json=json)


@pd.action("accept")
@_folder
@json_option
def accept(folder: str, *, json: bool) -> int:
    """Continue with metadata that are damaged, or older than before.

    A placement driver starts with the metadata as they are, when no better copy is left. Missing
    streams, cursors and decisions are lost. Ids that were assigned since are not assigned again.
    Intact metadata are not changed.
    """
    from sbp_core.cli import pd as stopped

    return stopped.accept(folder, is_json=json)


@pd.action("move")
@click.argument("folder", metavar="DIR", help="Data folder, of `sbp serve` or of `sbp pd`.")
@click.option("--to", "url", metavar="URL", required=True, help="An empty PostgreSQL database.")
@json_option
def move(folder: str, url: str, *, json: bool) -> int:
    """Copy the metadata of a stopped placement driver to a PostgreSQL database.

    All rows are checked before and compared after. Then start placement drivers with --store URL.
    The folder is not changed: until one has started with the database, the old one may be started
    again.
    """
    from sbp_core.cli import pd as stopped

    return stopped.move(folder, url, is_json=json)


@click.command(
    "range-server",
    help=f"Run one range server until SIGTERM or Ctrl-C.\n\n{HANG_UP_HELP} It registers with the"
    " placement driver that leads, and waits for it if there is none. Options win over the"
    " configuration file, and that over the defaults.",
)
@click.option(
    "--pd",
    "placement_driver",
    metavar="HOST:PORT[,...]",
    help="Placement drivers of the cluster; required, here or in the file.",
)
@server_options(10911)
@click.option(
    "--rack",
    metavar="NAME",
    help="The rack or zone that fails together with this server: the replicas of a range"
    " are placed on different ones.",
)
@RECORD_BYTES_MAX
@security_options
@process_options("conf/range-server.toml")
def range_server(**given: Any) -> int:
    """Run it until a signal."""
    return RANGE_SERVER.run(given)
