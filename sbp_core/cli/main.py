"""The `sbp` command: its subcommands, its exit codes, and how errors are shown.

A subcommand is declared in the file that implements it. That file is imported when the subcommand
is called, so that `sbp --help` answers at once.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Final

import click

from sbp_core.cli import output
from sbp_core.cli.commands import COMPLETE_VARIABLE, LateCommands, Listed
from sbp_core.cli.version import VERSION_OPTIONS
from sbp_core.errors import ConfigurationError, SbpError

_EXIT_OK: Final = 0
_EXIT_FAILURE: Final = 1
_EXIT_USAGE: Final = 2
_EXIT_INTERRUPTED: Final = 130
_HELP: Final = ("-h", "--help")

COMMANDS: Final = (
    Listed(
        "serve", "sbp_core.cli.server_commands:serve", "Run a placement driver and range servers."
    ),
    Listed(
        "streams",
        "sbp_core.cli.stream_commands:streams",
        "Create, list, describe, copy, change and delete streams.",
    ),
    Listed("schema", "sbp_core.cli.schema:schema", "Look at the schemas of typed streams."),
    Listed(
        "produce", "sbp_core.cli.produce.produce_command:produce", "Append records to a stream."
    ),
    Listed(
        "consume", "sbp_core.cli.consume.consume_command:consume", "Print the records of streams."
    ),
    Listed(
        "groups", "sbp_core.cli.group_commands:groups", "Show, move and delete consumer groups."
    ),
    Listed("lag", "sbp_core.cli.group_lag:lag", "Show how far consumer groups are behind."),
    Listed("txns", "sbp_core.cli.txns:txns", "List transactions, and give up stuck ones."),
    Listed(
        "cluster",
        "sbp_core.cli.cluster_commands:cluster",
        "List the placement drivers and the range servers, drain one, and balance them.",
    ),
    Listed("top", "sbp_core.cli.top:top", "Watch rates, lag and disks of a cluster."),
    Listed("console", "sbp_core.cli.web:console", "Serve the web console of a cluster."),
    Listed("lake", "sbp_core.cli.lake:lake", "Land streams in Iceberg tables."),
    Listed("acl", "sbp_core.cli.acl:acl", "List, grant and revoke the rights of identities."),
    Listed("apply", "sbp_core.cli.apply:apply", "Make streams and rights as a file says."),
    Listed("backup", "sbp_core.cli.backup:backup", "Take, list, check and remove backups."),
    Listed("restore", "sbp_core.cli.backup:restore", "Restore a backup onto an empty cluster."),
    Listed(
        "log",
        "sbp_core.cli.log:log",
        "Check, show and repair the files of a stopped range server.",
    ),
    Listed(
        "pd",
        "sbp_core.cli.server_commands:pd",
        "Run a placement driver, or check the files of a stopped one.",
    ),
    Listed("range-server", "sbp_core.cli.server_commands:range_server", "Run a range server."),
    Listed("http", "sbp_core.cli.web:http", "Serve records over HTTP."),
    Listed("kafka", "sbp_core.cli.kafka:kafka", "Serve clients of Apache Kafka."),
    Listed(
        "ping",
        "sbp_core.cli.cluster_commands:ping",
        "Measure a round trip to the placement driver.",
    ),
    Listed("token", "sbp_core.cli.token:token", "Make keys and tokens of clients."),
    Listed(
        "completion",
        "sbp_core.cli.completion:completion",
        "Print what lets a shell complete command lines.",
    ),
)


def main(arguments: Sequence[str] | None = None, *, more: Sequence[Listed] = ()) -> int:
    """Run the command; return its exit code. `more` are subcommands beside COMMANDS.

    0 is success, 1 a failure of a server or the network, 2 a mistake in how the command was called
    or configured, 130 an interrupt. A failure is one line on standard error, or an object there if
    `--json` is given. A reader that leaves standard output, as `head` does, is no failure; standard
    output that is full or closed is one.
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


def command(more: Sequence[Listed] = ()) -> LateCommands:
    """Return `sbp`, with all of its subcommands."""
    return LateCommands(
        (*COMMANDS, *more),
        name="sbp",
        params=[*VERSION_OPTIONS],
        context_settings={"help_option_names": [*_HELP]},
        help="Run and use streams of the Streaming Batch Protocol.",
    )


def _run(arguments: Sequence[str], more: Sequence[Listed]) -> int:
    group = command(more)
    instruction = os.environ.get(COMPLETE_VARIABLE)
    if instruction:
        from click.shell_completion import shell_complete

        return shell_complete(group, {}, "sbp", COMPLETE_VARIABLE, instruction)
    # obj: whether --json is given
    context = click.Context(group, info_name="sbp", obj=False, **group.context_settings)
    try:
        with context, _printing_help(arguments):
            group.parse_args(context, [*arguments])
            exit_code: int = group.invoke(context)
            return exit_code
    except click.exceptions.Exit as ended:  # help was printed
        return ended.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        output.write_error_line(error.format_message())
        return _EXIT_USAGE
    except click.UsageError as error:
        path = "sbp" if error.ctx is None else error.ctx.command_path
        text = f"{error.format_message().rstrip('.')} (see `{path} --help`)"
        if "--json" in arguments:  # it may stand behind the mistake
            output.write_error(click.UsageError(text), is_json=True)
        else:
            output.write_error_line(output.one_line(f"{path}: {text}"))
        return _EXIT_USAGE
    except output.ReaderGoneError:
        return _EXIT_OK
    except (KeyboardInterrupt, click.Abort):
        return _EXIT_INTERRUPTED
    except ConfigurationError as error:
        output.write_error(error, is_json=context.obj)
        return _EXIT_USAGE
    except SbpError as error:
        output.write_error(error, is_json=context.obj)
        return _EXIT_FAILURE


def _printing_help(arguments: Sequence[str]) -> contextlib.AbstractContextManager[None]:
    """Guard standard output where click itself writes to it."""
    return output.writing() if {*_HELP, "--version"} & {*arguments} else contextlib.nullcontext()


if __name__ == "__main__":
    sys.exit(main())
