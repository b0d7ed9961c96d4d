"""The options of `sbp pd`."""

from __future__ import annotations

import argparse

from sbp_core.cli.parsers.base import AddParser, Parser


def add_pd(add_parser: AddParser) -> None:
    """Add `sbp pd` and its actions."""
    pd = add_parser("pd", help="check the files of a stopped placement driver")
    actions = pd.add_subparsers(required=True, metavar="ACTION", parser_class=Parser)
    check = actions.add_parser(
        "check",
        help="find damage, and commits that are missing",
        description="Read all metadata, compare each row with its checksum, and the last commit"
        " with what metadata.mark and the range servers of the same folder know. Nothing is"
        " changed. Exit code 1 if a placement driver would not start with them.",
    )
    check.add_argument("--json", action="store_true", help="print JSON, one object")
    check.set_defaults(run=_run_pd_check)
    accept = actions.add_parser(
        "accept",
        help="go on with metadata that are damaged, or older than they were",
        description="Let a placement driver start with the metadata as they are, when no better"
        " copy is left. What is missing is lost: streams, cursors and decisions go back to what is"
        " there. Ids that were given out since are not given out again. Intact metadata are not"
        " touched.",
    )
    accept.set_defaults(run=_run_pd_accept)
    for action in (check, accept):
        action.add_argument(
            "folder",
            metavar="DIR",
            help="data folder of a placement driver, or of `sbp serve`",
        )


def _run_pd_check(options: argparse.Namespace) -> int:
    from sbp_core.cli.pd_tools import check

    return check(options)


def _run_pd_accept(options: argparse.Namespace) -> int:
    from sbp_core.cli.pd_tools import accept

    return accept(options)
