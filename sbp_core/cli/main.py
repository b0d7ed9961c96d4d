"""The `sbp` command: its options, and what becomes of errors.

What a subcommand needs is imported when it runs, so that `sbp --help` answers at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NoReturn

from sbp_core.cli import output
from sbp_core.errors import ConfigurationError, SbpError

_EXIT_OK = 0
_EXIT_FAILURE = 1
_EXIT_USAGE = 2
_EXIT_INTERRUPTED = 130

AddParser = Callable[..., argparse.ArgumentParser]
"""Adds a subcommand, as `add_parser` of argparse does."""


def main(
    arguments: Sequence[str] | None = None, *, more: Sequence[Callable[[AddParser], None]] = ()
) -> int:
    """Run the command; return its exit code. `more` add the subcommands of whoever is above.

    0 is success, 1 a failure of a server or the network, 2 a mistake in how the command was called
    or configured, 130 an interrupt. A failure is one line on standard error.
    """
    options = _parser(more).parse_args(arguments)
    try:
        exit_code: int = options.run(options)
        sys.stdout.flush()
        return exit_code
    except BrokenPipeError:
        # Whoever reads our output has enough of it, as `head` does.
        output.discard_stdout()
        return _EXIT_OK
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    except ConfigurationError as error:
        output.write_error(error)
        return _EXIT_USAGE
    except SbpError as error:
        output.write_error(error)
        return _EXIT_FAILURE


class _Parser(argparse.ArgumentParser):
    """Answers a mistake with one line that says what is wrong and where help is."""

    def error(self, message: str) -> NoReturn:
        """Print the message and exit."""
        self.exit(_EXIT_USAGE, f"{self.prog}: {message} (see `{self.prog} --help`)\n")


def _run_serve(options: argparse.Namespace) -> int:
    from sbp_core.cli.serve import serve

    return serve(options)


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


def _run_produce(options: argparse.Namespace) -> int:
    from sbp_core.cli.produce import produce

    return produce(options)


def _run_consume(options: argparse.Namespace) -> int:
    from sbp_core.cli.consume import consume

    return consume(options)


def _run_lag(options: argparse.Namespace) -> int:
    from sbp_core.cli.lag import lag

    return lag(options)


def _run_txns(options: argparse.Namespace) -> int:
    from sbp_core.cli.txns import txns

    return txns(options)


def _run_log_check(options: argparse.Namespace) -> int:
    from sbp_core.cli.log_tools import check

    return check(options)


def _run_log_dump(options: argparse.Namespace) -> int:
    from sbp_core.cli.log_tools import dump

    return dump(options)


def _run_log_repair(options: argparse.Namespace) -> int:
    from sbp_core.cli.log_tools import repair

    return repair(options)


def _parser(
    more: Sequence[Callable[[AddParser], None]] = (),
) -> argparse.ArgumentParser:
    parser = _Parser(prog="sbp", description="Run and use streams of the Streaming Batch Protocol.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    _add_serve(commands.add_parser)
    client = _Parser(add_help=False)
    client.add_argument(
        "--endpoint",
        default=os.environ.get("SBP_ENDPOINT") or "127.0.0.1:12378",
        metavar="HOST:PORT",
        help="placement driver (default: $SBP_ENDPOINT, now %(default)s)",
    )
    client.add_argument("--json", action="store_true", help="print JSON, one object per line")
    _add_streams(commands.add_parser, client)
    _add_produce(commands.add_parser, client)
    _add_consume(commands.add_parser, client)
    _add_lag(commands.add_parser, client)
    _add_txns(commands.add_parser, client)
    commands.add_parser(
        "cluster", parents=[client], help="list the placement drivers, and which one leads"
    ).set_defaults(run=_run_cluster)
    _add_log(commands.add_parser)
    ping = commands.add_parser(
        "ping", parents=[client], help="measure a round trip to the placement driver"
    )
    ping.set_defaults(run=_run_ping)
    for add in more:
        add(commands.add_parser)
    return parser


def _add_serve(add_parser: AddParser) -> None:
    serve = add_parser(
        "serve",
        help="run a placement driver and range servers",
        description="Run a placement driver and range servers, durable in one folder, until"
        " SIGTERM or Ctrl-C. Options win over the configuration file, and that over the defaults.",
    )
    add = serve.add_argument
    add("--data-dir", metavar="DIR", help="folder of all data (default: sbp-data)")
    add("--host", help="address to listen on (default: 127.0.0.1)")
    add("--advertise-host", metavar="HOST", help="host that clients are told (default: --host)")
    add(
        "--dialect",
        metavar="NAME",
        help="specification or elasticstream-2023-04 (default: specification)",
    )
    add("--pd-port", type=int, metavar="PORT", help="0 picks a free one (default: 12378)")
    add(
        "--range-server-port",
        type=int,
        metavar="PORT",
        help="first of consecutive ports; 0 picks free ones (default: 10911)",
    )
    add("--range-servers", type=int, metavar="N", help="range servers to run (default: 1)")
    add(
        "--ready-file",
        metavar="PATH",
        help="JSON file with the endpoints; there while the server serves",
    )
    add("--log-level", metavar="LEVEL", help="debug, info, warning or error (default: warning)")
    add("--config", metavar="PATH", help="settings in TOML; conf/server.toml names all of them")
    add(
        "--until-stdin-closes",
        action="store_true",
        help="also stop when standard input, a pipe, ends: for programs that start a server",
    )
    serve.set_defaults(run=_run_serve)


def _add_streams(add_parser: AddParser, client: _Parser) -> None:
    streams = add_parser("streams", help="create, list, describe, change and delete streams")
    actions = streams.add_subparsers(required=True, metavar="ACTION", parser_class=_Parser)

    create = actions.add_parser("create", parents=[client], help="create a stream")
    create.add_argument("name")
    create.add_argument(
        "--count",
        type=_parse_positive,
        metavar="N",
        help="create N streams: NAME-0 to NAME-(N-1)",
    )
    create.add_argument(
        "--replicas", type=_parse_positive, default=1, metavar="N", help="copies (default: 1)"
    )
    create.add_argument(
        "--retention",
        type=_parse_duration_ms,
        default=0,
        metavar="TIME",
        help="how long records are kept, such as 90s, 30m, 12h or 7d (default: 0, for ever)",
    )
    create.add_argument(
        "--retention-size",
        type=_parse_size,
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


def _add_changes(add_parser: AddParser, client: _Parser) -> None:
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
    trim.add_argument("offset", type=_parse_offset, metavar="OFFSET")
    update.add_argument(
        "--retention",
        type=_parse_duration_ms,
        metavar="TIME",
        help="how long records are kept, such as 90s, 30m, 12h or 7d; 0 is for ever",
    )
    update.add_argument(
        "--retention-size",
        type=_parse_size,
        metavar="SIZE",
        help="how much of the stream a range server keeps, such as 500MiB or 10GiB; 0 is no limit",
    )
    update.add_argument("--rename", metavar="NEW", help="the stream's new name")


def _add_produce(add_parser: AddParser, client: _Parser) -> None:
    produce = add_parser(
        "produce",
        parents=[client],
        help="append the lines of standard input to a stream",
        description="Append each line of standard input, without its newline, as one record. A"
        " batch whose acknowledgement is lost is appended again: at least once.",
    )
    produce.add_argument("stream", metavar="NAME_OR_ID")
    produce.add_argument(
        "--key-separator",
        type=_parse_separator,
        metavar="TEXT",
        help="what stands before it in a line becomes the key; a line without it has none",
    )
    produce.set_defaults(run=_run_produce)


def _add_consume(add_parser: AddParser, client: _Parser) -> None:
    consume = add_parser(
        "consume",
        parents=[client],
        help="print the records of a stream",
        description="Print the value of each record and a newline, up to the records that are"
        " there now. With --json one object per record; octets that are not UTF-8 stand there as"
        ' {"base64": ...}.',
    )
    consume.add_argument("stream", metavar="NAME_OR_ID")
    start = consume.add_mutually_exclusive_group()
    start.add_argument(
        "--from",
        dest="start",
        type=_parse_start,
        default="earliest",
        metavar="OFFSET",
        help="earliest, latest or a number (default: earliest)",
    )
    start.add_argument(
        "--from-timestamp",
        dest="start",
        type=_parse_timestamp,
        default=argparse.SUPPRESS,
        metavar="TIME",
        help="begin with what was appended then or later, such as 2025-01-31T09:30 (UTC) or"
        " 2025-01-31T09:30:00+01:00",
    )
    consume.add_argument(
        "--max", type=_parse_positive, metavar="N", help="end after this many records"
    )
    consume.add_argument("--follow", action="store_true", help="wait for more records at the end")
    consume.set_defaults(run=_run_consume)


def _add_lag(add_parser: AddParser, client: _Parser) -> None:
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


def _add_txns(add_parser: AddParser, client: _Parser) -> None:
    txns = add_parser(
        "txns",
        parents=[client],
        help="list transactions: staged, publishing, published, stuck, aborted",
        description="List the transactions of a producer, or all: the batches that were decided"
        " last, what was given up, and what is staged at range servers.",
    )
    txns.add_argument("producer", nargs="?", metavar="PRODUCER")
    txns.set_defaults(run=_run_txns)


def _add_log(add_parser: AddParser) -> None:
    log = add_parser("log", help="check, show and repair the files of a stopped range server")
    actions = log.add_subparsers(required=True, metavar="ACTION", parser_class=_Parser)
    check = actions.add_parser(
        "check",
        help="find damage",
        description="Read every octet of a log and list what is damaged and what is lost. Nothing"
        " is changed. Exit code 1 if there is anything to list.",
    )
    check.set_defaults(run=_run_log_check)
    dump = actions.add_parser("dump", help="print the entries, without the records in them")
    dump.add_argument(
        "--from",
        dest="start",
        type=_parse_offset,
        default=0,
        metavar="POSITION",
        help="log position to begin at (default: the first)",
    )
    dump.add_argument("--max", type=_parse_positive, metavar="N", help="end after N entries")
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
            metavar="DIR",
            help="data folder of a range server, its log, or the data folder of `sbp serve`",
        )


def _parse_positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 2**63):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def _parse_start(text: str) -> str | int:
    if text in {"earliest", "latest"}:
        return text
    if not _is_offset(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not earliest, latest or an offset")
    return int(text)


def _parse_timestamp(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is not None and moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if moment is None or moment.timestamp() < 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time since 1970 such as 2025-01-31T09:30:00"
        )
    return moment


def _parse_offset(text: str) -> int:
    if not _is_offset(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an offset")
    return int(text)


def _is_offset(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) < 2**63


def _parse_separator(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("the separator is empty")
    return text


def _parse_duration_ms(text: str) -> int:
    unit_ms = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    number, unit = (text[:-1], text[-1:]) if text != "0" else ("0", "s")
    if unit not in unit_ms or not (number.isascii() and number.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not 0 or a time such as 90s, 30m, 12h or 7d")
    duration_ms = int(number) * unit_ms[unit]
    if duration_ms >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is longer than a 64-bit number of ms holds")
    return duration_ms


def _parse_size(text: str) -> int:
    unit_bytes = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
    number, unit = (text[:-3], text[-3:]) if text != "0" else ("0", "KiB")
    if unit not in unit_bytes or not (number.isascii() and number.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not 0 or a size such as 500MiB or 10GiB")
    size_bytes = int(number) * unit_bytes[unit]
    if size_bytes >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is more than a 64-bit number of octets holds")
    return size_bytes


if __name__ == "__main__":
    sys.exit(main())
