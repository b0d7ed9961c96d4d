"""The options that commands share, and the types of options.

Commands that run servers import this module before anything that starts threads, so it imports no
client.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Concatenate, Final, ParamSpec, TypeAlias, TypeVar

import click
from click.shell_completion import CompletionItem

from sbp_core import quantities
from sbp_core.errors import ConfigurationError
from sbp_core.quantities import is_offset, quoted


class Value(click.ParamType[object]):
    """Text that `parse` turns into a value; `name` stands for it in the help.

    A ConfigurationError of `parse` refuses the text.
    """

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self._parse = parse

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        """Return the value of a text; a default may be one already."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ConfigurationError as error:
            self.fail(str(error), param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return the name: it is in capitals already."""
        return self.name


class PathValue(Value):
    """Text that can be the path of a file or folder. Shells complete it."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Let the shell complete the names of files and folders."""
        return [CompletionItem(incomplete, type="file")]


def _parse_integer(text: str) -> int:
    if not is_offset(text.removeprefix("-")):
        raise ConfigurationError(f"{quoted(text)} is not an integer")
    return int(text)


def _parse_number(least: int, text: str) -> int:
    if not is_offset(text) or int(text) < least:
        raise ConfigurationError(f"{quoted(text)} is not a whole number, {least} or more")
    return int(text)


def _parse_patience(text: str) -> float:
    return math.inf if text == "off" else quantities.parse_duration_ms(text)


def _parse_position(text: str) -> object:
    from sbp_core.operating.stream_position import parse_position

    return parse_position(text)


PATH: Final = PathValue("PATH", quantities.parse_path)
INTEGER: Final = Value("N", _parse_integer)
"""An integer of at most 64 bits; the setting checks its range."""
NUMBER: Final = Value("N", partial(_parse_number, 0))
"""A whole number, 0 or more."""
POSITIVE: Final = Value("N", partial(_parse_number, 1))
"""A whole number, 1 or more."""
DURATION_MS: Final = Value("TIME", quantities.parse_duration_ms)
"""A time such as 90s, 30m, 12h or 7d; the value is in ms."""
PATIENCE_MS: Final = Value("TIME|off", _parse_patience)
"""A time for which something is tried, in ms; off is for ever."""
SIZE: Final = Value("SIZE", quantities.parse_size)
"""A size such as 500MiB or 10GiB; the value is in bytes."""


def check_interval(start: int, end: int) -> None:
    """Raise ConfigurationError for offsets of --from and --to that are the wrong way round."""
    if start > end:
        raise ConfigurationError(
            f"--from is offset {start}, behind --to, which is offset {end}: exchange them"
        )


POSITION: Final = Value("POSITION", _parse_position)
"""A position in a stream: earliest, latest, an offset, -N, or a time."""
TIMESTAMP: Final = Value("TIME", quantities.parse_timestamp)
"""A time since 1970, as a `datetime`; one without a zone is UTC."""


P = ParamSpec("P")
O = TypeVar("O")  # noqa: E741 - options

Declare: TypeAlias = Callable[[Callable[..., int]], Callable[..., int]]
"""A decorator that declares options of the command that a function runs."""
DEFAULT_ENDPOINT: Final = "127.0.0.1:12378"


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The files of TLS and of the token with which a command connects; None is no such file."""

    tls_ca: str | None
    tls_cert: str | None
    tls_key: str | None
    token_file: str | None


@dataclass(frozen=True, slots=True)
class ClientOptions(TlsOptions):
    """How a command reaches a cluster: its placement drivers, comma-separated, and the files.

    `json` asks for output for programs: an object per line, and errors as objects.
    """

    endpoint: str
    json: bool = False


_TLS: Final = [
    click.option(f"--{name}", type=PATH, envvar=variable, help=f"{about} [default: ${variable}]")
    for name, variable, about in (
        ("tls-ca", "SBP_TLS_CA", "Connect with TLS, to servers of these authorities."),
        ("tls-cert", "SBP_TLS_CERT", "Certificate to show, for servers that want one."),
        ("tls-key", "SBP_TLS_KEY", "Key of the certificate."),
        ("token-file", "SBP_TOKEN_FILE", "Token to send, else $SBP_TOKEN."),
    )
]
_CLIENT: Final = [
    click.option(
        "--endpoint",
        default=DEFAULT_ENDPOINT,
        envvar="SBP_ENDPOINT",
        metavar="HOST:PORT[,...]",
        help=f"Placement drivers. [default: $SBP_ENDPOINT, or {DEFAULT_ENDPOINT}]",
    ),
    *_TLS,
]


retry_option: Final = click.option(
    "--retry-for",
    type=PATIENCE_MS,
    default="10m",
    help="How long to go on while servers are down; off: until they are back. [default: 10m]",
)


def _want_json(context: click.Context, _: click.Parameter, is_wanted: bool) -> bool:  # noqa: FBT001 - as click calls it
    context.find_root().obj = is_wanted
    return is_wanted


def declaring(options: Sequence[Declare]) -> Declare:
    """Return a decorator that declares options, which `--help` shows in this order."""
    return lambda run: functools.reduce(lambda done, option: option(done), reversed(options), run)


json_option: Final = click.option(
    "--json",
    is_flag=True,
    is_eager=True,
    callback=_want_json,
    help="Print JSON, one object per line. An error is an object too, on standard error.",
)
"""Declare `--json`; `main` looks at it when it prints an error."""


def client_options(run: Callable[Concatenate[ClientOptions, P], int]) -> Callable[P, int]:
    """Declare the options of a command that asks a cluster; they are its first argument."""
    return _collected(ClientOptions, [*_CLIENT, json_option], run)


def transfer_options(run: Callable[Concatenate[ClientOptions, P], int]) -> Callable[P, int]:
    """Declare the same without `--json`, for a command with formats of its own."""
    return _collected(ClientOptions, _CLIENT, run)


def tls_options(run: Callable[Concatenate[TlsOptions, P], int]) -> Callable[P, int]:
    """Declare the files only, for a command that learns the endpoints elsewhere."""
    return _collected(TlsOptions, _TLS, run)


def _collected(
    kind: type[O],
    options: Sequence[Declare],
    run: Callable[Concatenate[O, P], int],
) -> Callable[P, int]:
    names = [each.name for each in fields(kind)]  # type: ignore[arg-type]

    @functools.wraps(run)
    def collect(**given: Any) -> int:
        own = {name: given.pop(name) for name in names if name in given}
        return run(kind(**own), **given)  # type: ignore[call-arg]

    return declaring(options)(collect)
