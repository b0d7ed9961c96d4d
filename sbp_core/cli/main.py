"""The `sbp` command: its subcommands, its exit codes, and how errors are shown.

A subcommand is declared in the file that implements it. That file is imported when the subcommand
is called, so that `sbp --help` answers at once.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from importlib import import_module
from typing import Final, NamedTuple

from sbp_core.cli import output
from sbp_core.cli.parsing import EXIT_USAGE, Parser
from sbp_core.errors import ConfigurationError, SbpError

_EXIT_OK = 0
_EXIT_FAILURE = 1
_EXIT_INTERRUPTED = 130


class Command(NamedTuple):
    """A subcommand: its words, one line of help, and the "module:function" that declares the rest.

    The function adds description, options and actions to a parser; `run` is among its defaults.
    """

    name: str
    declared_in: str
    help: str

    def is_called_by(self, arguments: Sequence[str]) -> bool:
        """Whether a command line begins with the words of this subcommand."""
        words = self.name.split()
        return [*arguments[: len(words)]] == words

    def declare(self, parser: ArgumentParser) -> None:
        """Import the subcommand, and let it add what it has to its parser."""
        module, _, function = self.declared_in.partition(":")
        getattr(import_module(module), function)(parser)


COMMANDS: Final = (
    Command("serve", "sbp_core.cli.serve:add_serve", "run a placement driver and range servers"),
    Command(
        "streams",
        "sbp_core.cli.streams:add_streams",
        "create, list, describe, change and delete streams",
    ),
    Command("schema", "sbp_core.cli.schema:add_schema", "look at the schemas of typed streams"),
    Command(
        "produce",
        "sbp_core.cli.produce:add_produce",
        "append the lines of standard input to a stream",
    ),
    Command("consume", "sbp_core.cli.consume:add_consume", "print the records of a stream"),
    Command("lag", "sbp_core.cli.group_lag:add_lag", "show how far a consumer group is behind"),
    Command("txns", "sbp_core.cli.txns:add_txns", "list transactions"),
    Command(
        "txns give-up", "sbp_core.cli.txns:add_give_up", "give up the lost parts of a stuck batch"
    ),
    Command(
        "cluster",
        "sbp_core.cli.cluster:add_cluster",
        "list the placement drivers and the range servers",
    ),
    Command(
        "cluster drain",
        "sbp_core.cli.cluster:add_drain",
        "move the ranges of a range server to others",
    ),
    Command("console", "sbp_core.cli.console:add_console", "serve the web console of a cluster"),
    Command("acl", "sbp_core.cli.acl:add_acl", "list, grant and revoke the rights of identities"),
    Command("backup", "sbp_core.cli.backup:add_backup", "take a backup of a running cluster"),
    Command("backup list", "sbp_core.cli.backup:add_list", "list the backups in a place"),
    Command("backup check", "sbp_core.cli.backup:add_check", "read all of a backup"),
    Command("backup prune", "sbp_core.cli.backup:add_prune", "remove old backups"),
    Command("restore", "sbp_core.cli.backup:add_restore", "restore a backup onto an empty cluster"),
    Command(
        "log",
        "sbp_core.cli.log:add_log",
        "check, show and repair the files of a stopped range server",
    ),
    Command(
        "pd",
        "sbp_core.cli.servers:add_pd",
        "run a placement driver, or check the files of a stopped one",
    ),
    Command("range-server", "sbp_core.cli.servers:add_range_server", "run a range server"),
    Command("http", "sbp_core.cli.http:add_http", "serve records over HTTP"),
    Command(
        "ping",
        "sbp_core.cli.connect:add_ping",
        "measure a round trip to the placement driver",
    ),
    Command("token", "sbp_core.cli.token:add_token", "make keys and tokens of clients"),
    Command("version", "sbp_core.cli.version:add_version", "print the version"),
)


def main(arguments: Sequence[str] | None = None, *, more: Sequence[Command] = ()) -> int:
    """Run the command; return its exit code. `more` are subcommands beside COMMANDS.

    0 is success, 1 a failure of a server or the network, 2 a mistake in how the command was called
    or configured, 130 an interrupt. A failure is one line on standard error. It is no failure that
    nothing reads standard output any longer, as after `head`; that it is full or closed is one.
    """
    output.settle()
    exit_code = _run(sys.argv[1:] if arguments is None else arguments, more)
    try:
        output.flush()
    except output.OutputError as error:
        output.write_error(error)
        return exit_code or _EXIT_FAILURE
    except output.ReaderGoneError:
        pass
    return exit_code


def _run(arguments: Sequence[str], more: Sequence[Command]) -> int:
    try:
        options = parse(arguments, more)
        exit_code: int = options.run(options)
        return exit_code
    except output.ReaderGoneError:
        return _EXIT_OK
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    except ConfigurationError as error:
        output.write_error(error)
        return EXIT_USAGE
    except SbpError as error:
        output.write_error(error)
        return _EXIT_FAILURE


def parse(arguments: Sequence[str], more: Sequence[Command] = ()) -> Namespace:
    """Return what a command line asks for; `run` of it does that.

    A mistake in it ends the process with EXIT_USAGE, and a call for help with 0.
    """
    if arguments[:1] == ["--"]:
        arguments = arguments[1:]
    if arguments[:1] == ["--version"]:
        arguments = ["version", *arguments[1:]]
    parser = Parser(prog="sbp", description="Run and use streams of the Streaming Batch Protocol.")
    added = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    commands = (*COMMANDS, *more)
    called = max(
        (each for each in commands if each.is_called_by(arguments)),
        key=lambda each: len(each.name),
        default=None,
    )
    for each in commands:
        own = added.add_parser(each.name, help=each.help)
        if each is called:
            each.declare(own)
    if called is not None:  # `txns give-up` is one word to argparse
        arguments = [called.name, *arguments[len(called.name.split()) :]]
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
