"""The options of `sbp lag`."""

from __future__ import annotations

import argparse

from sbp_core.cli.parsers.base import AddParser, Parser


def add_lag(add_parser: AddParser, client: Parser) -> None:
    """Add `sbp lag`."""
    lag = add_parser(
        "lag",
        parents=[client],
        help="show how far a consumer group is behind",
        description="Compare the cursors of a consumer group with the tails of their streams: in"
        " records, and by the age of the record that is to be read next. Without a group, list"
        " the groups.",
    )
    lag.add_argument("group", nargs="?", metavar="GROUP")
    lag.set_defaults(run=_run_lag)


def _run_lag(options: argparse.Namespace) -> int:
    from sbp_core.cli.lag import lag

    return lag(options)
