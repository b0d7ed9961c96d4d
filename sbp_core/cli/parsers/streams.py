"""The options of `sbp streams`, `sbp cluster` and `sbp ping`."""

from __future__ import annotations

import argparse

from sbp_core.cli.parsers.base import AddParser, Parser
from sbp_core.cli.parsers.texts import (
    parse_duration_ms,
    parse_offset,
    parse_positive,
    parse_size,
)


def add_streams(add_parser: AddParser, client: Parser) -> None:
    """Add `sbp streams` and its actions."""
    streams = add_parser("streams", help="create, list, describe, change and delete streams")
    actions = streams.add_subparsers(required=True, metavar="ACTION", parser_class=Parser)

    create = actions.add_parser("create", parents=[client], help="create a stream")
    create.add_argument("name")
    create.add_argument(
        "--count",
        type=parse_positive,
        metavar="N",
        help="create N streams: NAME-0 to NAME-(N-1)",
    )
    create.add_argument(
        "--replicas", type=parse_positive, default=1, metavar="N", help="copies (default: 1)"
    )
    create.add_argument(
        "--retention",
        type=parse_duration_ms,
        default=0,
        metavar="TIME",
        help="how long records are kept, such as 90s, 30m, 12h or 7d (default: 0, for ever)",
    )
    create.add_argument(
        "--retention-size",
        type=parse_size,
        default=0,
        metavar="SIZE",
        help="how much of the stream a range server keeps, such as 500MiB or 10GiB; beyond it the"
        " oldest records go (default: 0, no limit)",
    )
    create.set_defaults(run=_run_create)

    actions.add_parser("list", parents=[client], help="list all streams").set_defaults(
        run=_run_list
    )
    describe = actions.add_parser(
        "describe", parents=[client], help="show the metadata, offsets and ranges of streams"
    )
    describe.set_defaults(run=_run_describe)
    delete = actions.add_parser("delete", parents=[client], help="delete streams")
    delete.set_defaults(run=_run_delete)
    for action in (describe, delete):
        action.add_argument("streams", nargs="+", metavar="NAME_OR_ID")
    _add_changes(actions.add_parser, client)


def _add_changes(add_parser: AddParser, client: Parser) -> None:
    update = add_parser("update", parents=[client], help="change a stream's retention or name")
    update.set_defaults(run=_run_update)
    trim = add_parser(
        "trim",
        parents=[client],
        help="forget the records below an offset",
        description="Forget the records of a stream below OFFSET, for ever: readers get an error"
        " that says where the stream begins now. OFFSET may not be beyond the end of the stream.",
    )
    trim.set_defaults(run=_run_trim)
    seal = add_parser(
        "seal",
        parents=[client],
        help="let a stream go on in a new range",
        description="Seal the open range of a stream and open the next one, on another server where"
        " that is less loaded. Writers and readers follow by themselves.",
    )
    seal.set_defaults(run=_run_seal)
    for action in (update, trim, seal):
        action.add_argument("stream", metavar="NAME_OR_ID")
    trim.add_argument("offset", type=parse_offset, metavar="OFFSET")
    update.add_argument(
        "--retention",
        type=parse_duration_ms,
        metavar="TIME",
        help="how long records are kept, such as 90s, 30m, 12h or 7d; 0 is for ever",
    )
    update.add_argument(
        "--retention-size",
        type=parse_size,
        metavar="SIZE",
        help="how much of the stream a range server keeps, such as 500MiB or 10GiB; 0 is no limit",
    )
    update.add_argument("--rename", metavar="NEW", help="the stream's new name")


def add_cluster(add_parser: AddParser, client: Parser) -> None:
    """Add `sbp cluster`."""
    add_parser(
        "cluster", parents=[client], help="list the placement drivers, and which one leads"
    ).set_defaults(run=_run_cluster)


def add_ping(add_parser: AddParser, client: Parser) -> None:
    """Add `sbp ping`."""
    ping = add_parser("ping", parents=[client], help="measure a round trip to the placement driver")
    ping.set_defaults(run=_run_ping)


def _run_create(options: argparse.Namespace) -> int:
    from sbp_core.cli.streams import create

    return create(options)


def _run_list(options: argparse.Namespace) -> int:
    from sbp_core.cli.streams import list_all

    return list_all(options)


def _run_describe(options: argparse.Namespace) -> int:
    from sbp_core.cli.streams import describe

    return describe(options)


def _run_delete(options: argparse.Namespace) -> int:
    from sbp_core.cli.streams import delete

    return delete(options)


def _run_update(options: argparse.Namespace) -> int:
    from sbp_core.cli.streams import update

    return update(options)


def _run_trim(options: argparse.Namespace) -> int:
    from sbp_core.cli.streams import trim

    return trim(options)


def _run_seal(options: argparse.Namespace) -> int:
    from sbp_core.cli.streams import seal

    return seal(options)


def _run_cluster(options: argparse.Namespace) -> int:
    from sbp_core.cli.streams import cluster

    return cluster(options)


def _run_ping(options: argparse.Namespace) -> int:
    from sbp_core.cli.streams import ping

    return ping(options)
