"""`sbp cluster` and `sbp ping`: which placement drivers there are, and whether they answer."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict

from sbp_core.cli.connect import connect
from sbp_core.cli.output import write_json, write_line, write_table
from sbp_core.cli.parsing import add_client_options


def add_cluster(parser: ArgumentParser) -> None:
    """Declare `sbp cluster`."""
    add_client_options(parser)
    parser.set_defaults(run=cluster)


def add_ping(parser: ArgumentParser) -> None:
    """Declare `sbp ping`."""
    add_client_options(parser)
    parser.set_defaults(run=ping)


def cluster(options: Namespace) -> int:
    """List the placement drivers."""
    with connect(options) as client:
        drivers = client.placement_drivers()
    if options.json:
        for driver in drivers:
            write_json(asdict(driver))
        return 0
    rows = [(each.endpoint, "leader" if each.is_leader else "-") for each in drivers]
    write_table(("PLACEMENT DRIVER", "ROLE"), rows)
    return 0


def ping(options: Namespace) -> int:
    """Measure a round trip to the placement driver, on a connection that is there already."""
    with connect(options) as client:
        round_trip_ms = client.ping()
    if options.json:
        write_json({"endpoint": options.endpoint, "round_trip_ms": round_trip_ms})
    else:
        write_line(f"{options.endpoint} answers in {round_trip_ms:.2f} ms")
    return 0
