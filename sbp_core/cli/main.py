"""The `sbp` command: its subcommands, and what becomes of errors.

What a subcommand needs is imported when it runs, so that `sbp --help` answers at once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from sbp_core.cli import output, standard_streams
from sbp_core.cli.parsers.base import EXIT_USAGE, AddParser, Parser, client_options
from sbp_core.cli.parsers.lag import add_lag
from sbp_core.cli.parsers.log import add_log
from sbp_core.cli.parsers.pd import add_pd
from sbp_core.cli.parsers.records import add_consume, add_produce
from sbp_core.cli.parsers.schema import add_schema
from sbp_core.cli.parsers.serve import add_serve
from sbp_core.cli.parsers.streams import add_cluster, add_ping, add_streams
from sbp_core.cli.parsers.txns import add_txns, joined
from sbp_core.errors import ConfigurationError, SbpError

_EXIT_OK = 0
_EXIT_FAILURE = 1
_EXIT_INTERRUPTED = 130


def main(
    arguments: Sequence[str] | None = None, *, more: Sequence[Callable[[AddParser], None]] = ()
) -> int:
    """Run the command; return its exit code. `more` add the subcommands of whoever is above.

    0 is success, 1 a failure of a server or the network, 2 a mistake in how the command was called
    or configured, 130 an interrupt. A failure is one line on standard error. It is no failure that
    nothing reads standard output any longer, as after `head`; that it is full or closed is one.
    """
    standard_streams.settle()
    exit_code = _run(sys.argv[1:] if arguments is None else arguments, more)
    try:
        standard_streams.flush()
    except standard_streams.OutputError as error:
        output.write_error(error)
        return exit_code or _EXIT_FAILURE
    except standard_streams.ReaderGoneError:
        pass
    return exit_code


def _run(arguments: Sequence[str], more: Sequence[Callable[[AddParser], None]]) -> int:
    try:
        options = _parser(more).parse_args(joined(arguments))
        exit_code: int = options.run(options)
        return exit_code
    except standard_streams.ReaderGoneError:
        return _EXIT_OK
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    except ConfigurationError as error:
        output.write_error(error)
        return EXIT_USAGE
    except SbpError as error:
        output.write_error(error)
        return _EXIT_FAILURE


def _parser(more: Sequence[Callable[[AddParser], None]] = ()) -> argparse.ArgumentParser:
    parser = Parser(prog="sbp", description="Run and use streams of the Streaming Batch Protocol.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    add_parser = commands.add_parser
    client = client_options()
    add_serve(add_parser)
    add_streams(add_parser, client)
    add_schema(add_parser, client)
    add_produce(add_parser, client)
    add_consume(add_parser, client)
    add_lag(add_parser, client)
    add_txns(add_parser, client)
    add_cluster(add_parser, client)
    add_log(add_parser)
    add_pd(add_parser)
    add_ping(add_parser, client)
    for add in more:
        add(add_parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
