"""`sbp pd` and `sbp range-server`: one server in a process of its own."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sbp_core.cli.parsing import Actions, parse_integer, parse_path
from sbp_core.cli.server_options import (
    HANG_UP_HELP,
    add_insecure,
    add_process_options,
    add_record_bytes_max,
    add_security_options,
)
from sbp_core.cli.serving import Service

if TYPE_CHECKING:
    from sbp_core.cli.config import ServeSettings
    from sbp_core.pd import PlacementDriver, PlacementDriverSettings
    from sbp_core.rangeserver.range_server_settings import RangeServerSettings
    from sbp_core.rangeserver.server import RangeServer


def add_pd(parser: ArgumentParser) -> None:
    """Declare `sbp pd` and its actions."""
    parser.description = (
        f"Run one placement driver until SIGTERM or Ctrl-C. {HANG_UP_HELP}"
        " Its metadata are in its data folder, or in the database of --store. Options win over the"
        " configuration file, and that over the defaults. The actions are for a placement driver"
        " that is stopped."
    )
    _add_server_options(parser, 12378)
    parser.add_argument(
        "--name", help="its name among those of the cluster (default: placement-driver)"
    )
    parser.add_argument(
        "--store",
        metavar="URL",
        help="metadata in postgresql://USER@HOST:PORT/DATABASE, which several placement drivers may"
        " share, or sqlite:///DIRECTORY/metadata.sqlite (default: SQLite in the data folder)",
    )
    add_security_options(parser)
    add_process_options(parser, "conf/pd.toml")
    parser.set_defaults(run=PD.run)
    actions = Actions(parser, is_required=False)
    check_parser = actions.add(
        "check",
        _of_stopped("check"),
        help="find damage and missing commits",
        description="Read all metadata, compare each row with its checksum, and the last commit"
        " with what metadata.mark and the range servers of the same folder know. A PostgreSQL"
        " database checks its rows itself: what is shown is its content, and which placement driver"
        " leads. Nothing is changed. Exit code 1 if a placement driver would not start with them.",
    )
    check_parser.add_argument("--json", action="store_true", help="print JSON, one object")
    accept_parser = actions.add(
        "accept",
        _of_stopped("accept"),
        help="continue with metadata that are damaged, or older than before",
        description="Let a placement driver start with the metadata as they are, when no better"
        " copy is left. Missing streams, cursors and decisions are lost. Ids that were assigned"
        " since are not assigned again. Intact metadata are not changed.",
    )
    for action in (check_parser, accept_parser):
        action.add_argument(
            "folder",
            metavar="DIR-OR-URL",
            help="data folder of a placement driver, or of `sbp serve`; or the URL of a PostgreSQL"
            " database with metadata",
        )


def add_range_server(parser: ArgumentParser) -> None:
    """Declare `sbp range-server`."""
    parser.description = (
        f"Run one range server until SIGTERM or Ctrl-C. {HANG_UP_HELP} It"
        " registers with the placement driver that leads, and waits for it if there is none."
        " Options win over the configuration file, and that over the defaults."
    )
    parser.add_argument(
        "--pd",
        dest="placement_driver",
        metavar="HOST:PORT[,...]",
        help="placement drivers of the cluster; required, here or in the file",
    )
    _add_server_options(parser, 10911)
    parser.add_argument(
        "--rack",
        metavar="NAME",
        help="what fails together with this server, such as its rack or zone: the replicas of a"
        " range are placed on different ones",
    )
    add_record_bytes_max(parser)
    add_security_options(parser)
    add_process_options(parser, "conf/range-server.toml")
    parser.set_defaults(run=RANGE_SERVER.run)


def _add_server_options(parser: ArgumentParser, port: int) -> None:
    add = parser.add_argument
    add(
        "--data-dir",
        type=parse_path,
        metavar="DIR",
        help="folder of its data; required, here or in the file",
    )
    add("--host", help="address to listen on (default: 127.0.0.1)")
    add_insecure(parser)
    add(
        "--port",
        type=parse_integer,
        metavar="PORT",
        help=f"port to listen on; 0 picks a free one (default: {port})",
    )
    add(
        "--advertise",
        metavar="HOST:PORT",
        help="where others reach it; sets advertise_host and advertise_port (default: --host and"
        " --port)",
    )
    add(
        "--dialect",
        metavar="NAME",
        help="specification or elasticstream-2023-04 (default: specification)",
    )


def _of_stopped(action: str) -> Callable[[Namespace], int]:
    """Return an action of `sbp pd`, whose module is imported when it is called."""

    def run(options: Namespace) -> int:
        exit_code: int = getattr(import_module("sbp_core.cli.pd"), action)(options)
        return exit_code

    return run


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
