"""`sbp cluster balance` and `sbp streams move`: ranges go to other servers while they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from sbp_core import limits
from sbp_core.cli.commands import Command
from sbp_core.cli.confirming import yes_option
from sbp_core.cli.connect import PROMPT_MS, STREAM, connect, find_stream, titled
from sbp_core.cli.options import SIZE, ClientOptions, Value, client_options
from sbp_core.cli.output import write_json, write_line, write_notice, write_table
from sbp_core.cli.progress import progress
from sbp_core.errors import ConfigurationError
from sbp_core.operating.balancing import (
    OPEN,
    Move,
    Server,
    Share,
    plan_balance,
    plan_stream,
    shares,
)
from sbp_core.quantities import is_offset, quoted, round_size
from sbp_core.wording import counted

if TYPE_CHECKING:
    from sbp_core.client import Client

_RATE: Final = 64 * limits.MIB
_SHARES: Final = (
    "SERVER",
    "STATE",
    "LED",
    "OPEN",
    "STORED",
    "LED THEN",
    "OPEN THEN",
    "STORED THEN",
)
_ROUNDS: Final = 4
"""How often the cluster is looked at again for what is still to be moved."""
_FAILED: Final = 1


def _parse_ids(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(map(is_offset, parts)):
        raise ConfigurationError(
            f"{quoted(text)} is not a list of ids of range servers, such as 1,2,3"
        )
    return tuple(map(int, parts))


_rate_option: Final[Callable[..., click.Command]] = click.option(
    "--rate",
    type=SIZE,
    default=_RATE,
    help="How much is copied in a second, on average, such as 10MiB. [default: 64MiB]",
)


@click.command("balance", cls=Command, example="sbp cluster balance --yes")
@yes_option
@_rate_option
@client_options
def balance(options: ClientOptions, *, yes: bool, rate: int) -> int:
    """Move ranges so that all range servers have as much to do and to store.

    Use it after a range server was added. Open ranges are sealed, and their streams go on where few
    ranges are led, or few replicas are; then sealed ranges with several replicas are copied to
    servers that store less. Appends go on. Without --yes it is only shown what would happen.

    While records are appended the shares change: a second call may find more to move. An interrupt
    leaves replicas too many, at most: call it again to go on.
    """
    from sbp_core.operating.moving import read_ranges, read_servers

    with _resuming(options) as client:
        servers, ranges = read_servers(client), read_ranges(client)
        moves = plan_balance(servers, ranges)
        if options.json:
            _write_moves(moves, is_done=False)
        else:
            _show_shares(servers, shares(ranges), shares(ranges, moves))
            text = f"to move: {_summary(moves, 'to copy')}" if moves else "the cluster is balanced"
            write_line(text)
        if moves and not yes and not options.json:
            write_line("nothing is moved yet: repeat this with --yes")
        has_failed = False
        for _ in range(_ROUNDS if yes else 0):
            if not moves:
                break
            # Sealed ranges have their sizes, and servers may be up again, only afterwards.
            opened = [each for each in moves if each.range_index == OPEN]
            has_failed = _run(client, opened or moves, rate, is_json=options.json)
            moves = plan_balance(read_servers(client), read_ranges(client))
    return _FAILED if has_failed else 0


@click.command("move", cls=Command, example="sbp streams move orders --to 4,2,3")
@click.argument("stream", type=STREAM, metavar="NAME_OR_ID")
@click.option(
    "--to",
    "server_ids",
    type=Value("SERVERS", _parse_ids),
    required=True,
    help="Ids of as many range servers as the stream has replicas, such as 4,2,3; the first one is"
    " the primary.",
)
@_rate_option
@client_options
def move(options: ClientOptions, stream: str, *, server_ids: tuple[int, ...], rate: int) -> int:
    """Move a stream to range servers, while it is used.

    The stream goes on there in a new range, and its sealed ranges with several replicas are copied.
    Sealed ranges with one replica stay where they are. `sbp cluster` lists the servers.
    """
    from sbp_core.operating.moving import read_ranges

    with _resuming(options) as client:
        info = find_stream(client, stream)
        ranges = read_ranges(client, [info.stream_id])
        moves = plan_stream(ranges, server_ids)
        has_failed = _run(client, moves, rate, is_json=options.json)
        left = read_ranges(client, [info.stream_id])  # the move has sealed one
    stay_count = sum(not each.is_open and not each.can_be_copied for each in left)
    if not has_failed and not options.json:
        text = ", ".join(map(str, server_ids))
        write_line(f"{titled(info)} goes on at range server{'s'[: len(server_ids) - 1]} {text}")
        if stay_count:
            write_notice(
                f"not moved: {counted(stay_count, 'sealed range')} with one replica. The records in"
                " such ranges stay where they are until they are trimmed"
            )
    return _FAILED if has_failed else 0


@contextmanager
def _resuming(options: ClientOptions) -> Iterator[Client]:
    """Yield a client. Say how to go on if the body is interrupted.

    The client outlasts a placement driver that is busy, or fails over.
    """
    try:
        with connect(options, limits.RETRY_BUDGET_MS, first_ms=PROMPT_MS) as client:
            yield client
    except KeyboardInterrupt:
        write_notice("interrupted: not all ranges are moved; repeat the command to go on")
        raise


def _run(client: Client, moves: Sequence[Move], rate: int, *, is_json: bool) -> bool:
    """Move ranges, showing how far that is; return whether some were not moved."""
    from sbp_core.operating.moving import run_moves

    if not rate:
        raise ConfigurationError("--rate 0 copies nothing: give one, such as 10MiB")
    if not moves:
        return False
    total_bytes = sum(each.copied_bytes for each in moves)
    with progress("moves") as report:
        errors = run_moves(
            client,
            moves,
            bytes_per_second=rate,
            on_moved=lambda count, size: report(
                count, len(moves), f"{round_size(size)} of {round_size(total_bytes)} copied"
            ),
        )
    done = [each for each in moves if each.stream_id not in errors]
    if is_json:
        _write_moves(done, is_done=True)
        for stream_id, error in errors.items():
            write_json({"stream_id": stream_id, "error": str(error)})
    else:
        write_line(f"moved: {_summary(done, 'copied')}" if done else "nothing was moved")
        if errors:
            first = next(iter(errors.values()))
            write_notice(f"{counted(len(errors), 'stream')} not moved: {first}")
    return bool(errors)


def _write_moves(moves: Sequence[Move], *, is_done: bool) -> None:
    for each in moves:
        write_json({**each._asdict(), "done": is_done})


def _summary(moves: Sequence[Move], size_is: str) -> str:
    opened = sum(each.range_index == OPEN for each in moves)
    sealed, size = len(moves) - opened, sum(each.copied_bytes for each in moves)
    parts = [f"{counted(opened, 'stream')} to a new range"] if opened else []
    if sealed:
        parts.append(f"{counted(sealed, 'sealed range')} ({round_size(size)} {size_is})")
    return " and ".join(parts)


def _show_shares(
    servers: Sequence[Server], before: dict[int, Share], after: dict[int, Share]
) -> None:
    nothing = Share(0, 0, 0)
    rows = [
        (
            each.server_id,
            "usable" if each.is_usable else "left alone",
            *_cells(before.get(each.server_id, nothing)),
            *_cells(after.get(each.server_id, nothing)),
        )
        for each in servers
    ]
    write_table(_SHARES, rows)
    write_line("")


def _cells(share: Share) -> tuple[object, ...]:
    return share.led, share.open, round_size(share.stored_bytes)
