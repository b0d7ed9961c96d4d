"""The options of `sbp txns`."""

from __future__ import annotations

import argparse

from sbp_core.cli.parsers.base import AddParser, Parser
from sbp_core.errors import ConfigurationError


def add_txns(add_parser: AddParser, client: Parser) -> None:
    """Add `sbp txns`."""
    txns = add_parser(
        "txns",
        parents=[client],
        help="list transactions, and give up what is lost",
        usage="sbp txns [options] [PRODUCER]\n       sbp txns [options] give-up PRODUCER BATCH",
        description="List the transactions of a producer, or all of them: staged, publishing,"
        " published, stuck, lost, aborted. With give-up, let a stream go on without a stuck batch:"
        " what of it is not complete at its range server is dropped, and lost for ever; what can be"
        " published is. Damage may be mended first: `sbp log check`, or a disk that is back.",
    )
    txns.add_argument("words", nargs="*", metavar="...", help=argparse.SUPPRESS)
    txns.set_defaults(run=_run_txns)


def _run_txns(options: argparse.Namespace) -> int:
    """Run what the words ask for; a producer may be called give-up, too."""
    from sbp_core.cli.txns import give_up, txns

    match options.words:
        case []:
            return txns(options, None)
        case [producer]:
            return txns(options, producer)
        case ["give-up", producer, number] if number.isascii() and number.isdigit():
            return give_up(options, producer, int(number))
    raise ConfigurationError(
        "name a producer, or give-up with a producer and the number of its batch"
        " (see `sbp txns --help`)"
    )
