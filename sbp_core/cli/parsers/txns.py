"""The options of `sbp txns`, and of `sbp txns give-up`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from sbp_core.cli.parsers.base import AddParser, Parser
from sbp_core.cli.parsers.texts import parse_batch_number

_GIVE_UP = "txns give-up"


def add_txns(add_parser: AddParser, client: Parser) -> None:
    """Add `sbp txns` and `sbp txns give-up`."""
    txns = add_parser(
        "txns",
        parents=[client],
        help="list transactions",
        description="List the transactions of a producer, or all of them: staged, publishing,"
        " published, stuck, lost, aborted. A producer that is called give-up stands behind --.",
    )
    txns.add_argument("producer", nargs="?", metavar="PRODUCER", help="list those of this one only")
    txns.set_defaults(run=_run_txns)
    give_up = add_parser(
        _GIVE_UP,
        parents=[client],
        help="give up what is lost of a batch",
        description="Let streams go on without a stuck batch: what of it is not complete at its"
        " range server is dropped, and lost for ever; what can be published is. Damage may be"
        " mended first: `sbp log check`, or a disk that is back.",
    )
    give_up.add_argument("producer", metavar="PRODUCER", help="who committed the batch")
    give_up.add_argument(
        "batch", type=parse_batch_number, metavar="BATCH", help="the number of the batch"
    )
    give_up.set_defaults(run=_run_give_up)


def joined(words: Sequence[str]) -> list[str]:
    """Return a command line on which `txns give-up` is one word, as its parser is called."""
    return [_GIVE_UP, *words[2:]] if [*words[:2]] == _GIVE_UP.split() else [*words]


def _run_txns(options: argparse.Namespace) -> int:
    from sbp_core.cli.txns import txns

    return txns(options, options.producer)


def _run_give_up(options: argparse.Namespace) -> int:
    from sbp_core.cli.txns import give_up

    return give_up(options, options.producer, options.batch)
