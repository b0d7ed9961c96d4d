"""What all subcommands share: how a mistake is answered, and who is asked."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from sbp_core.cli.escaping import one_line
from sbp_core.cli.standard_streams import write_error_line, writing

EXIT_USAGE = 2

AddParser = Callable[..., argparse.ArgumentParser]
"""Adds a subcommand, as `add_parser` of argparse does."""


class Parser(argparse.ArgumentParser):
    """Answers a mistake with one line that says what is wrong and where help is."""

    def error(self, message: str) -> NoReturn:
        """Print the message and exit."""
        write_error_line(one_line(f"{self.prog}: {message} (see `{self.prog} --help`)"))
        self.exit(EXIT_USAGE)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help; argparse would be silent about what it cannot write."""
        if file is not sys.stdout:
            super()._print_message(message, file)
            return
        with writing():
            print(message, end="", flush=True)


def client_options() -> Parser:
    """Return the options of every subcommand that asks a placement driver, as a parent."""
    client = Parser(add_help=False)
    endpoint = os.environ.get("SBP_ENDPOINT") or "127.0.0.1:12378"
    shown = "not shown" if "@" in endpoint else "%(default)s"  # it may hold a password
    client.add_argument(
        "--endpoint",
        default=endpoint,
        metavar="HOST:PORT",
        help=f"placement driver (default: $SBP_ENDPOINT, now {shown})",
    )
    client.add_argument("--json", action="store_true", help="print JSON, one object per line")
    return client
