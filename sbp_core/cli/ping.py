"""`sbp ping`: the time of a round trip."""

from __future__ import annotations

import click

from sbp_core.cli.client_options import ClientOptions, client_options
from sbp_core.cli.connect import connect
from sbp_core.cli.output import write_result


@click.command()
@client_options
def ping(options: ClientOptions) -> int:
    """Measure a round trip to the placement driver, on a connection that is there already."""
    with connect(options) as client:
        round_trip_ms, endpoint = client.ping(), client.endpoint
    value = {"endpoint": endpoint, "round_trip_ms": round_trip_ms}
    text = f"{endpoint} answers in {round_trip_ms:.2f} ms"
    write_result(value, text, is_json=options.json)
    return 0
