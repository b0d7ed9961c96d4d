"""The options of `sbp txns`."""

from __future__ import annotations

import argparse

from sbp_core.cli.parsers.base import AddParser, Parser


def add_txns(add_parser: AddParser, client: Parser) -> None:
    """Add `sbp txns`."""
    txns = add_parser(
        "txns",
        parents=[client],
        help="list transactions: staged, publishing, published, stuck, aborted",
        description="List the transactions of a producer, or all of them.",
    )
    txns.add_argument("producer", nargs="?", metavar="PRODUCER")
    txns.set_defaults(run=_run_txns)


def _run_txns(options: argparse.Namespace) -> int:
    from sbp_core.cli.txns import txns

    return txns(options)
