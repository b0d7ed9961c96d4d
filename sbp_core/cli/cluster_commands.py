"""`sbp cluster` and `sbp ping`: the placement drivers and the range servers of a cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

import click

from sbp_core import limits
from sbp_core.cli.commands import Command, CommandWithActions
from sbp_core.cli.connect import connect
from sbp_core.cli.moves import balance
from sbp_core.cli.options import NUMBER, ClientOptions, client_options
from sbp_core.cli.output import (
    flush,
    write_json,
    write_line,
    write_notice,
    write_result,
    write_table,
)
from sbp_core.errors import UnsupportedError

if TYPE_CHECKING:
    from sbp_core.client import Client, ClusterInfo, PlacementDriverInfo, RangeServerInfo

_DRIVERS: Final = ("PLACEMENT DRIVER", "ROLE", "STATE")
_SERVERS: Final = (
    *("SERVER", "ADDRESS", "RACK", "STATE", "DISK FREE"),
    *("LED", "COPIED", "SEALED", "ONE REPLICA", "BEHIND"),
)
_WATCH_SECONDS: Final = 2
_CLEAR: Final = "\x1b[H\x1b[2J"


@click.command(cls=CommandWithActions, example="sbp cluster --watch")
@click.option("--watch", is_flag=True, help=f"List them again every {_WATCH_SECONDS} s.")
@click.option(
    "--all",
    "is_all",
    is_flag=True,
    help="Also list range servers that were replaced or drained, and have no ranges any more.",
)
@client_options
def cluster(options: ClientOptions, *, watch: bool, is_all: bool) -> int:
    """List the placement drivers and the range servers.

    For placement drivers: whether they answer. For range servers: whether they are live, their free
    space, the open ranges that they lead or copy, the sealed ones, those of these that have one
    replica only, and the led ranges of which a replica is behind. Then how many replicas the open
    and the sealed ranges lack, and in which open ranges nothing can be appended, with the cause and
    the remedy.
    """
    with connect(options) as client:
        while True:
            drivers, found = client.placement_drivers(), _describe(client)
            endpoints = [each.endpoint for each in drivers]
            down = client.probe(endpoints, timeout_ms=limits.CONNECT_TIMEOUT_MS)
            if found is not None and not is_all:
                kept = [each for each in found.range_servers if not each.is_retired]
                found = replace(found, range_servers=kept)
            if options.json:
                _write(drivers, down, found)
            else:
                if watch and sys.stdout.isatty():
                    sys.stdout.write(_CLEAR)
                _show(drivers, down, found)
            if not watch:
                return 0
            flush()
            time.sleep(_WATCH_SECONDS)


@cluster.action("drain", example="sbp cluster drain 3")
@click.argument("server", type=NUMBER, metavar="SERVER", help="Id of the range server.")
@click.option("--cancel", is_flag=True, help="Let it be given ranges again.")
@client_options
def drain(options: ClientOptions, server: int, *, cancel: bool) -> int:
    """Move the ranges of a range server to others, and let it get no new ones.

    Its open ranges are sealed and continue on others; its sealed ranges with several replicas are
    copied to others. Returns when that is done; an interrupt does not cancel it.
    """
    with connect(options) as client:
        client.drain_servers([server], is_cancelled=cancel)
        if cancel:
            write_result(
                {"server_id": server, "is_draining": False},
                f"range server {server} can be given ranges again",
                is_json=options.json,
            )
            return 0
        while True:
            (found,) = (each for each in client.range_servers() if each.server_id == server)
            if options.json:
                write_json(asdict(found))
                flush()
            else:
                write_line(found.drain_remark)
            if found.is_cleared:
                return 0
            if found.drain_obstacle and not options.json:
                write_line(f"it waits: {found.drain_obstacle}")
            time.sleep(_WATCH_SECONDS)


cluster.actions["balance"] = balance


def _describe(client: Client) -> ClusterInfo | None:
    """Return the range servers; None if the placement driver does not list them."""
    try:
        return client.describe_cluster()
    except UnsupportedError:
        return None


def _write(
    drivers: Sequence[PlacementDriverInfo], down: Collection[str], found: ClusterInfo | None
) -> None:
    for each in drivers:
        is_live = each.endpoint not in down
        write_json({"role": "placement driver", **asdict(each), "is_live": is_live})
    if found is None:
        return
    for server in found.range_servers:
        write_json({"role": "range server", **asdict(server)})
    write_json(
        {
            "role": "sealed ranges that lack replicas",
            "missing_replicas": found.missing_sealed_replicas,
        }
    )
    halted = {"ranges": found.halted_count, "some": found.halted, "cause": found.halt_cause}
    write_json({"role": "open ranges without appends", **halted})
    lacking = {"ranges": found.lacking_ranges, "missing_replicas": found.missing_replicas}
    write_json({"role": "open ranges that lack replicas", **lacking})


def _show(
    drivers: Sequence[PlacementDriverInfo], down: Collection[str], found: ClusterInfo | None
) -> None:
    rows = [
        (
            each.endpoint,
            "leader" if each.is_leader else "-",
            "down" if each.endpoint in down else "live",
        )
        for each in drivers
    ]
    write_table(_DRIVERS, rows)
    if found is None:
        write_notice(
            "the placement driver does not list its range servers: it is of another version"
        )
        return
    write_line("")
    write_table(_SERVERS, [_row(each) for each in found.range_servers])
    for remark in found.remarks:
        write_line("")
        write_line(remark)


def _row(each: RangeServerInfo) -> tuple[object, ...]:
    free = "-" if each.disk_free_bytes is None else f"{each.disk_free_bytes / 2**30:.1f} GiB"
    return (
        each.server_id,
        each.endpoint,
        each.rack or "-",
        each.state,
        free,
        each.led_ranges,
        each.copied_ranges,
        each.sealed_ranges,
        each.unreplicated_ranges,
        each.missing_replicas,
    )


@click.command(cls=Command, example="sbp ping")
@client_options
def ping(options: ClientOptions) -> int:
    """Measure a round trip to the placement driver, on a connection that is there already."""
    with connect(options) as client:
        round_trip_ms, endpoint = client.ping(), client.endpoint
    value = {"endpoint": endpoint, "round_trip_ms": round_trip_ms}
    text = f"{endpoint} answers in {round_trip_ms:.2f} ms"
    write_result(value, text, is_json=options.json)
    return 0
