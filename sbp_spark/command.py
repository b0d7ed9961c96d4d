"""The `sbp` command as it is installed: that of the core, and what knows of Spark.

What a subcommand needs is imported when it runs, and the command itself by `script`, which has to
see to Ctrl-C before that.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

CHECKPOINT: Final = (
    "checkpoint",
    "sbp_spark.command:add_checkpoint",
    "look at the checkpoint of a Spark query, and take the query back",
)


def script() -> int:
    """Run the command as a process of its own, which Ctrl-C ends without a trace at any time."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return main()  # started in the background by a shell, which has SIGINT ignored
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    run = _command()
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return run(None)
    except KeyboardInterrupt:  # just before or after what `main` makes of it
        return 130
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code, as that of the core does."""
    return _command()(arguments)


def _command() -> Callable[[Sequence[str] | None], int]:
    from sbp_core.cli.main import Command
    from sbp_core.cli.main import main as main_of_core

    return lambda arguments: main_of_core(arguments, more=[Command(*CHECKPOINT)])


def add_checkpoint(parser: ArgumentParser) -> None:
    """Declare `sbp checkpoint` and its actions."""
    from sbp_core.cli.parsing import Actions, parse_number, parse_path

    actions = Actions(parser)
    showing = actions.add(
        "show",
        _run_show,
        help="show how far a query has read",
        description="Show how far a query has read each stream for good, and to where it began to"
        " read. With --endpoint also how far it is behind.",
    )
    showing.add_argument(
        "--endpoint", metavar="HOST:PORT", help="placement driver to ask for tails"
    )
    showing.add_argument("--json", action="store_true", help="print JSON")
    rewinding = actions.add(
        "rewind",
        _run_rewind,
        help="let a stopped query read again what came after a batch",
        description="Put aside what a checkpoint notes after a batch, so that the query reads on"
        " from there. It says first which batches are run anew and what that means for sinks, and"
        " changes nothing without --yes. What is put aside is kept in a folder beside the rest.",
    )
    back = rewinding.add_mutually_exclusive_group(required=True)
    back.add_argument("--to-batch", type=parse_number, metavar="N", help="the last one to keep")
    back.add_argument(
        "--batches", type=parse_number, metavar="K", help="undo the last K committed ones"
    )
    rewinding.add_argument("--yes", action="store_true", help="no query runs on it: do it")
    starts = actions.add(
        "to-starting-offsets",
        _run_to_starting_offsets,
        help="print where a query with a new checkpoint goes on",
        description="Print, for the option startingOffsets, the position after the last committed"
        " batch. Give it to a query with a new checkpoint.",
    )
    starts.add_argument("--batch", type=parse_number, metavar="N", help="another committed batch")
    for action in (showing, rewinding, starts):
        action.add_argument(
            "folder",
            type=parse_path,
            metavar="DIR",
            help="the query's checkpointLocation, a local folder",
        )
    for action in (showing, starts):
        action.add_argument(
            "--source",
            metavar="NAME",
            help="source of the query, where several read streams: the name given with"
            " readStream.name(), or the place of an unnamed source, from 0",
        )


def _run_show(options: Namespace) -> int:
    from sbp_spark.checkpoint.commands import show

    return show(options)


def _run_rewind(options: Namespace) -> int:
    from sbp_spark.checkpoint.commands import rewind

    return rewind(options)


def _run_to_starting_offsets(options: Namespace) -> int:
    from sbp_spark.checkpoint.commands import to_starting_offsets

    return to_starting_offsets(options)


if __name__ == "__main__":
    sys.exit(script())
