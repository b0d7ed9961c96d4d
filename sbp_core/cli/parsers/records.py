"""The options of `sbp produce` and `sbp consume`."""

from __future__ import annotations

import argparse

from sbp_core.cli.parsers.base import AddParser, Parser
from sbp_core.cli.parsers.texts import (
    parse_positive,
    parse_separator,
    parse_start,
    parse_timestamp,
)


def add_produce(add_parser: AddParser, client: Parser) -> None:
    """Add `sbp produce`."""
    produce = add_parser(
        "produce",
        parents=[client],
        help="append the lines of standard input to a stream",
        description="Append each line of standard input, without its newline, as one record: each"
        " line once, also when connections break or the server restarts. Lines may be there twice"
        " only if the server does not know idempotent appends, which the command says, or if you"
        " run it again on the same input.",
    )
    produce.add_argument("stream", metavar="NAME_OR_ID")
    produce.add_argument(
        "--key-separator",
        type=parse_separator,
        metavar="TEXT",
        help="what stands before it in a line becomes the key; a line without it has none",
    )
    produce.set_defaults(run=_run_produce)


def add_consume(add_parser: AddParser, client: Parser) -> None:
    """Add `sbp consume`."""
    consume = add_parser(
        "consume",
        parents=[client],
        help="print the records of a stream",
        description="Print the value of each record and a newline, up to the records that are"
        " there now; of a stream with a schema, the columns of each record as a JSON object. With"
        " --json one object per record, which tells its offset, too; bytes that are not UTF-8"
        ' stand in objects as {"base64": ...}. A terminal shows control characters in values as'
        " escapes such as \\x1b; in a pipe or file values are as they were written.",
    )
    consume.add_argument("stream", metavar="NAME_OR_ID")
    start = consume.add_mutually_exclusive_group()
    start.add_argument(
        "--from",
        dest="start",
        type=parse_start,
        default="earliest",
        metavar="OFFSET",
        help="earliest, latest or a number (default: earliest)",
    )
    start.add_argument(
        "--from-timestamp",
        dest="start",
        type=parse_timestamp,
        default=argparse.SUPPRESS,
        metavar="TIME",
        help="begin with what was appended then or later, such as 2025-01-31T09:30 (UTC) or"
        " 2025-01-31T09:30:00+01:00",
    )
    consume.add_argument(
        "--max", type=parse_positive, metavar="N", help="end after this many records"
    )
    consume.add_argument("--follow", action="store_true", help="wait for more records at the end")
    consume.set_defaults(run=_run_consume)


def _run_produce(options: argparse.Namespace) -> int:
    from sbp_core.cli.produce import produce

    return produce(options)


def _run_consume(options: argparse.Namespace) -> int:
    from sbp_core.cli.consume import consume

    return consume(options)
