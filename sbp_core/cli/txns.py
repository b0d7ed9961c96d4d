"""`sbp txns`: transactions that are staged, committed or given up, and what they wait for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from sbp_core import limits
from sbp_core.cli.commands import CommandWithActions, complete_action
from sbp_core.cli.confirming import write_effects, yes_option
from sbp_core.cli.connect import connect
from sbp_core.cli.options import NUMBER, ClientOptions, client_options
from sbp_core.cli.output import write_json, write_notice, write_table
from sbp_core.operating.txn_advice import loss_lines
from sbp_core.wording import counted

if TYPE_CHECKING:
    from sbp_core.client import Client, TxnInfo, TxnPart

_HEADING = ("STATE", "PRODUCER", "BATCH", "RECORDS", "STREAMS", "AGE", "TRANSACTION", "SERVER")


@click.command(cls=CommandWithActions, example="sbp txns")
@click.argument(
    "producer",
    required=False,
    shell_complete=complete_action,
    help="List only its transactions.",
)
@client_options
def txns(options: ClientOptions, producer: str | None) -> int:
    """List the transactions of a producer, or all of them.

    A transaction is staged, publishing, published, stuck, lost or aborted. The staged batches of
    range servers that are down are left out. Write -- before a producer that is called give-up.
    """
    with connect(options) as client:
        found = _find(client, producer)
    if options.json:
        for each in found:
            write_json({**asdict(each), "digest": each.digest.hex()})
    else:
        now_ms = time.time_ns() // 1_000_000
        write_table(_HEADING, [_row(each, now_ms) for each in found])
    return 0


@txns.action("give-up", example="sbp txns give-up nightly 42")
@click.argument("producer", help="Producer that committed the batch.")
@click.argument("batch", type=NUMBER, metavar="BATCH", help="The number of the batch.")
@yes_option
@client_options
def give_up(options: ClientOptions, producer: str, batch: int, *, yes: bool) -> int:
    """Unblock streams behind a stuck batch. Without --yes it is only shown what would happen.

    The parts that are incomplete at their range servers are dropped, and lost permanently; the
    others are published. Try first to bring the server or its disk back, or see `sbp log check`.
    """
    shown: dict[str, object] = {"producer": producer, "batch_number": batch}
    with connect(options) as client:
        if yes:
            loss = client.give_up_txn(producer, batch)
            shown |= asdict(loss)
            lines = loss_lines(producer, batch, loss)
        else:
            parts = [
                part
                for each in _find(client, producer)
                if each.batch_number == batch and each.state == "stuck"
                for part in each.parts
            ]
            shown |= {"parts": [asdict(part) for part in parts]}
            lines = [f"would be lost, where it is incomplete: {_extent(part)}" for part in parts]
            lines = lines or [f"batch {batch} of {producer} is not stuck: nothing would be lost"]
    write_effects([(shown, lines)], "given up", is_done=yes, is_json=options.json)
    return 0


def _extent(part: TxnPart) -> str:
    count = counted(part.record_count, "record") if part.record_count >= 0 else "records"
    return f"{count} of stream {part.stream_id}"


def _find(client: Client, producer: str | None) -> list[TxnInfo]:
    """Return the transactions of a producer, or all; name the range servers that do not answer."""
    down = client.probe(_range_servers(client), timeout_ms=limits.CONNECT_TIMEOUT_MS)
    for server in down:
        write_notice(f"range server {server} does not answer: its staged batches are left out")
    return client.describe_txns(producer, spared=down)


def _range_servers(client: Client) -> set[str]:
    """Return the range servers that have ranges."""
    stream_ids = [info.stream_id for info in client.list_streams()]
    ranges = client.list_ranges(stream_ids).values()
    return {server for pieces in ranges for piece in pieces for server in piece.servers}


def _row(each: TxnInfo, now_ms: int) -> tuple[object, ...]:
    some_lost = ",lost" if each.lost and each.state != "lost" else ""
    parts = (*each.parts, *each.lost)
    since_ms = each.staged_at_ms if each.decided_at_ms is None else each.decided_at_ms
    return (
        each.state + some_lost,
        _shown(each.producer),
        _shown(each.batch_number),
        _shown(each.record_count),
        _listed([str(part.stream_id) for part in parts if part.stream_id >= 0]),
        "-" if since_ms is None else str(timedelta(seconds=max(now_ms - since_ms, 0) // 1000)),
        _listed([part.txn_id for part in parts]),
        _shown(each.server),
    )


def _shown(value: object) -> object:
    return "-" if value is None else value


def _listed(values: Sequence[str]) -> str:
    """Return the first of some values, and the number of the others."""
    different = list(dict.fromkeys(values))
    if not different:
        return "-"
    more = f" and {len(different) - 1} more" if len(different) > 1 else ""
    return f"{different[0]}{more}"
