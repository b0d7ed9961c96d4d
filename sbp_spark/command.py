"""The `sbp` command as it is installed: the subcommands of the core, and `sbp checkpoint`.

Everything else is imported by `script`, which has to arrange what signals do before that.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

CHECKPOINT: Final = (
    "checkpoint",
    "sbp_spark.operations.checkpoint_command:checkpoint",
    "Show the checkpoint of a Spark query, or rewind it.",
)


_SERVERS: Final = frozenset({"serve", "pd", "range-server"})
INTERRUPTED: Final = 130
"""What `main` returns after an interrupt, whatever signal it was."""


def script() -> int:
    """Run the command as a process of its own, which a signal ends without a trace at any time.

    SIGHUP waits for a server until that can handle it: the imports take longer than a service
    manager may.
    """
    if not _SERVERS.isdisjoint(sys.argv[1:2]):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    import_module("sbp_core.cli.main")
    signals = import_module("sbp_core.cli.signals")
    try:
        signals.end_on_signals()
        exit_code = main()
        return signals.exit_code() if exit_code == INTERRUPTED else exit_code
    except KeyboardInterrupt:  # just before or after `main` handles it
        return int(signals.exit_code())
    finally:
        signals.disarm()
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `sbp checkpoint`; return the exit code."""
    from sbp_core.cli.commands import Listed
    from sbp_core.cli.main import main as main_of_core

    return main_of_core(arguments, more=[Listed(*CHECKPOINT)])


if __name__ == "__main__":
    sys.exit(script())
