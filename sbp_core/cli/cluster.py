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
from sbp_core.cli.parsing import add_client_options, parse_number
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


def add_drain(parser: ArgumentParser) -> None:
    """Declare `sbp cluster drain`."""
    parser.description = (
        "Let a range server get no new ranges: its open ranges are sealed and continue on others,"
        " its sealed ranges with several replicas are copied to others. Returns when that is done;"
        " an interrupt does not cancel it."
    )
    add_client_options(parser)
    parser.add_argument("server", type=parse_number, metavar="SERVER", help="id of the server")
    parser.add_argument("--cancel", action="store_true", help="let it be given ranges again")
    parser.set_defaults(run=drain)


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


def drain(options: Namespace) -> int:
    """Drain a range server, and wait until it has no ranges that could be elsewhere."""
    server_id = options.server
    with connect(options) as client:
        client.drain_servers([server_id], is_cancelled=options.cancel)
        if options.cancel:
            write_line(f"range server {server_id} can be given ranges again")
            return 0
        while True:
            (server,) = (each for each in client.range_servers() if each.server_id == server_id)
            if options.json:
                write_json(asdict(server))
            open_count = server.led_ranges + server.copied_ranges
            copied_count = server.sealed_ranges - server.unreplicated_ranges
            if not open_count and not copied_count:
                break
            if not options.json:
                write_line(
                    f"range server {server_id} still has {open_count} open ranges, and"
                    f" {copied_count} sealed ones that are being copied"
                )
            time.sleep(_WATCH_SECONDS)
    if not options.json:
        write_line(_drained(server))
    return 0


def _drained(server: RangeServerInfo) -> str:
    """Return what is left on a server that is drained."""
    name = f"range server {server.server_id}"
    if not server.unreplicated_ranges:
        return f"{name} is drained: it has no ranges, and can be stopped"
    return (
        f"{name} has {server.unreplicated_ranges} sealed ranges left, with one replica: they are"
        " not copied. Stop it when their records are trimmed, or no longer needed"
    )


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
        ("live" if each.is_live else "silent") + (" draining" if each.is_draining else ""),
        free,
        each.led_ranges,
        each.copied_ranges,
        each.sealed_ranges,
        each.unreplicated_ranges,
        each.missing_replicas,
    )
