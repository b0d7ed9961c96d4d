"""`sbp cluster`: the placement drivers and the range servers of a cluster."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from sbp_core.cli.connect import connect
from sbp_core.cli.output import write_json, write_line, write_notice, write_table
from sbp_core.cli.parsing import add_client_options
from sbp_core.client import Client, PlacementDriverInfo, RangeServerInfo
from sbp_core.errors import UnsupportedError

_DRIVERS: Final = ("PLACEMENT DRIVER", "ROLE")
_SERVERS: Final = (
    *("SERVER", "ADDRESS", "RACK", "STATE", "DISK FREE"),
    *("LED", "COPIED", "SEALED", "ONE REPLICA", "BEHIND"),
)
_WATCH_SECONDS: Final = 2
_CLEAR: Final = "\x1b[H\x1b[2J"


def add_cluster(parser: ArgumentParser) -> None:
    """Declare `sbp cluster`."""
    parser.description = (
        "List the placement drivers, and the range servers: whether they are live, their free"
        " space, the open ranges that they lead or copy, the sealed ones, those of these that"
        " have one replica only, and the led ranges of which a replica is behind."
    )
    add_client_options(parser)
    parser.add_argument(
        "--watch", action="store_true", help=f"list them again every {_WATCH_SECONDS} s"
    )
    parser.set_defaults(run=cluster)


def cluster(options: Namespace) -> int:
    """List the servers of the cluster, again and again with --watch."""
    with connect(options) as client:
        while True:
            drivers, servers = client.placement_drivers(), _find_servers(client)
            if options.json:
                for each in drivers:
                    write_json({"role": "placement driver", **asdict(each)})
                for server in servers or ():
                    write_json({"role": "range server", **asdict(server)})
            else:
                if options.watch and sys.stdout.isatty():
                    sys.stdout.write(_CLEAR)
                _show(drivers, servers)
            if not options.watch:
                return 0
            sys.stdout.flush()
            time.sleep(_WATCH_SECONDS)


def _find_servers(client: Client) -> list[RangeServerInfo] | None:
    """Return the range servers; None if the placement driver does not list them."""
    try:
        return client.range_servers()
    except UnsupportedError:
        return None


def _show(
    drivers: Sequence[PlacementDriverInfo], servers: Sequence[RangeServerInfo] | None
) -> None:
    rows = [(each.endpoint, "leader" if each.is_leader else "-") for each in drivers]
    write_table(_DRIVERS, rows)
    if servers is None:
        write_notice(
            "the placement driver does not list its range servers: it is of another version"
        )
        return
    write_line("")
    write_table(_SERVERS, [_row(each) for each in servers])


def _row(each: RangeServerInfo) -> tuple[object, ...]:
    free = "-" if each.disk_free_bytes is None else f"{each.disk_free_bytes / 2**30:.1f} GiB"
    return (
        each.server_id,
        each.endpoint,
        each.rack or "-",
        "live" if each.is_live else "silent",
        free,
        each.led_ranges,
        each.copied_ranges,
        each.sealed_ranges,
        each.unreplicated_ranges,
        each.missing_replicas,
    )
