"""The command line: how options are declared, read and refused.

Nothing here imports what a subcommand needs before it runs, so that `sbp --help` answers at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, NoReturn, TypeVar

from sbp_core import quantities
from sbp_core.cli.output import one_line, write_error_line, writing
from sbp_core.errors import ConfigurationError
from sbp_core.quantities import is_offset, quoted

EXIT_USAGE = 2

_TLS_OPTIONS: Final = {
    "--tls-ca": ("SBP_TLS_CA", "connect with TLS, to servers of these authorities"),
    "--tls-cert": ("SBP_TLS_CERT", "certificate to show, for servers that want one"),
    "--tls-key": ("SBP_TLS_KEY", "key of the certificate"),
    "--token-file": ("SBP_TOKEN_FILE", "token to send, else $SBP_TOKEN"),
}
"""By option of a client: the variable that it can be set by, and what it is."""

T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """Answers a mistake with one line that says what is wrong and where help is."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse what is left, so that the message names the subcommand and its help."""
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, rest

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


def add_client_options(parser: argparse.ArgumentParser, *, has_json: bool = True) -> None:
    """Add the options of every subcommand that asks a placement driver; `--json` if it prints."""
    endpoint = os.environ.get("SBP_ENDPOINT") or "127.0.0.1:12378"
    shown = "not shown" if "@" in endpoint else "%(default)s"  # it may hold a password
    parser.add_argument(
        "--endpoint",
        default=endpoint,
        metavar="HOST:PORT[,...]",
        help=f"placement drivers (default: $SBP_ENDPOINT, now {shown})",
    )
    add_tls_client_options(parser)
    if has_json:
        parser.add_argument("--json", action="store_true", help="print JSON, one object per line")


def add_tls_client_options(parser: argparse.ArgumentParser) -> None:
    """Add the files of TLS and of the token of a subcommand that connects to servers."""
    for option, (variable, about) in _TLS_OPTIONS.items():
        parser.add_argument(
            option,
            type=parse_path,
            default=os.environ.get(variable) or None,
            metavar="PATH",
            help=f"{about} (default: ${variable})",
        )


class Actions:
    """The actions of a subcommand, such as `create` of `sbp streams`."""

    def __init__(self, parser: argparse.ArgumentParser, *, is_required: bool = True) -> None:
        self._parsers = parser.add_subparsers(
            required=is_required, metavar="ACTION", parser_class=Parser
        )

    def add(
        self,
        name: str,
        run: Callable[[argparse.Namespace], int],
        *,
        help: str,  # noqa: A002 - as argparse calls it
        description: str | None = None,
        is_client: bool = False,
    ) -> argparse.ArgumentParser:
        """Add an action, with the options of a client if it is one; return its parser."""
        parser = self._parsers.add_parser(name, help=help, description=description)
        if is_client:
            add_client_options(parser)
        parser.set_defaults(run=run)
        return parser


def parse_start(text: str) -> str | int:
    """Return an offset, `earliest` or `latest`."""
    if text in {"earliest", "latest"}:
        return text
    if not is_offset(text):
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not earliest, latest or an offset")
    return int(text)


def parse_timestamp(text: str) -> datetime:
    """Return a time since 1970; one without a zone is UTC."""
    return _as_argument(quantities.parse_timestamp, text)


def parse_path(text: str) -> str:
    """Return the path of a file or folder: text that is not empty, and that a path can be."""
    if not text:  # it would be the working directory
        raise argparse.ArgumentTypeError("the path is empty; write . for the working directory")
    if "\0" in text:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not a path: it has a NUL character")
    return text


def parse_integer(text: str) -> int:
    """Return an integer of at most 64 bits; the setting checks its range."""
    digits = text.removeprefix("-")
    if not is_offset(digits):
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not an integer")
    return int(text)


def parse_number(text: str, least: int = 0) -> int:
    """Return a number, 0 or more."""
    if not is_offset(text) or int(text) < least:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not a whole number, {least} or more")
    return int(text)


def parse_positive(text: str) -> int:
    """Return a number, 1 or more."""
    return parse_number(text, 1)


def parse_duration_ms(text: str) -> int:
    """Return how many milliseconds a time such as 90s, 30m, 12h or 7d has."""
    return _as_argument(quantities.parse_duration_ms, text)


def parse_size(text: str) -> int:
    """Return how many bytes a size such as 500MiB or 10GiB has."""
    return _as_argument(quantities.parse_size, text)


def _as_argument(parse: Callable[[str], T], text: str) -> T:
    """Return what `parse` reads; argparse shows the messages of its own errors only."""
    try:
        return parse(text)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
