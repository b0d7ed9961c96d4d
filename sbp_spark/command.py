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
    "sbp_spark.checkpoint.commands:checkpoint",
    "Show the checkpoint of a Spark query, or rewind it.",
)


_SERVERS: Final = frozenset({"serve", "pd", "range-server"})


def script() -> int:
    """Run the command as a process of its own, which Ctrl-C ends without a trace at any time.

    SIGHUP waits for a server until that can handle it: the imports take longer than a service
    manager may.
    """
    if not _SERVERS.isdisjoint(sys.argv[1:2]):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return main()  # started in the background by a shell, which has SIGINT ignored
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    import_module("sbp_core.cli.main")
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return main()
    except KeyboardInterrupt:  # just before or after `main` handles it
        return 130
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code, as that of the core does."""
    from sbp_core.cli.commands import Listed
    from sbp_core.cli.main import main as main_of_core

    return main_of_core(arguments, more=[Listed(*CHECKPOINT)])


if __name__ == "__main__":
    sys.exit(script())
