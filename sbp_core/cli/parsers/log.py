"""The options of `sbp log`."""

from __future__ import annotations

import argparse

from sbp_core.cli.parsers.base import AddParser, Parser
from sbp_core.cli.parsers.texts import parse_offset, parse_path, parse_positive


def add_log(add_parser: AddParser) -> None:
    """Add `sbp log` and its actions."""
    log = add_parser("log", help="check, show and repair the files of a stopped range server")
    actions = log.add_subparsers(required=True, metavar="ACTION", parser_class=Parser)
    check = actions.add_parser(
        "check",
        help="find damage",
        description="Read every byte of a log and list what is damaged and what is lost, also by"
        " what the placement driver of the same `sbp serve` was told of it. Nothing is changed."
        " Exit code 1 if there is anything to list.",
    )
    check.set_defaults(run=_run_log_check)
    dump = actions.add_parser("dump", help="print the entries, without the records in them")
    dump.add_argument(
        "--from",
        dest="start",
        type=parse_offset,
        default=0,
        metavar="POSITION",
        help="log position to begin at (default: the first)",
    )
    dump.add_argument("--max", type=parse_positive, metavar="N", help="end after N entries")
    dump.add_argument("--json", action="store_true", help="print JSON, one object per line")
    dump.set_defaults(run=_run_log_dump)
    repair = actions.add_parser(
        "repair",
        help="go on without what is damaged",
        description="Make a damaged log usable again: list what is lost, keep the damaged files"
        " under another name (FILE.damaged-N), and write new ones with all that is intact. An"
        " intact log is not touched.",
    )
    repair.set_defaults(run=_run_log_repair)
    for action in (check, dump, repair):
        action.add_argument(
            "folder",
            type=parse_path,
            metavar="DIR",
            help="data folder of a range server, its log, or the data folder of `sbp serve`",
        )


def _run_log_check(options: argparse.Namespace) -> int:
    from sbp_core.cli.log_tools import check

    return check(options)


def _run_log_dump(options: argparse.Namespace) -> int:
    from sbp_core.cli.log_tools import dump

    return dump(options)


def _run_log_repair(options: argparse.Namespace) -> int:
    from sbp_core.cli.log_tools import repair

    return repair(options)
