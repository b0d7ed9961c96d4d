"""The options of `sbp schema`."""

from __future__ import annotations

import argparse

from sbp_core.cli.parsers.base import AddParser, Parser
from sbp_core.cli.parsers.texts import parse_path


def add_schema(add_parser: AddParser, client: Parser) -> None:
    """Add `sbp schema` and its actions."""
    schema = add_parser("schema", help="look at the schemas of typed streams")
    actions = schema.add_subparsers(required=True, metavar="ACTION", parser_class=Parser)
    show = actions.add_parser(
        "show", parents=[client], help="show the columns of the newest version"
    )
    show.set_defaults(run=_run_show)
    history = actions.add_parser(
        "history", parents=[client], help="list the versions: when each came, what it changed"
    )
    history.set_defaults(run=_run_history)
    check = actions.add_parser(
        "check",
        parents=[client],
        help="tell whether a file could be written to the stream",
        description="Compare the columns of a Parquet or Arrow file with the stream's schema, and"
        " list the differences: + a new column, ~ a wider type, ? a column that may have nulls"
        " where the stream requires values, ! what does not fit. Nothing is written. Exit code 0 if"
        " Spark could write the file, as it is or with mergeSchema; 1 if not.",
    )
    check.set_defaults(run=_run_check)
    for action in (show, history, check):
        action.add_argument("stream", metavar="NAME_OR_ID")
    check.add_argument(
        "file",
        type=parse_path,
        metavar="FILE",
        help="Parquet, or an Arrow IPC file or stream, on this machine",
    )


def _run_show(options: argparse.Namespace) -> int:
    from sbp_core.cli.schema import show

    return show(options)


def _run_history(options: argparse.Namespace) -> int:
    from sbp_core.cli.schema import history

    return history(options)


def _run_check(options: argparse.Namespace) -> int:
    from sbp_core.cli.schema import check

    return check(options)
