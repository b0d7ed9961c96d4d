"""The options of commands that connect to a cluster, collected in one value."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import click

from sbp_core.cli.values import PATH, PATIENCE_MS

P = ParamSpec("P")
O = TypeVar("O")  # noqa: E741 - options

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


json_option: Final = click.option(
    "--json",
    is_flag=True,
    is_eager=True,
    callback=_want_json,
    help="Print JSON, one object per line. An error is an object too, on standard error.",
)
"""Declare `--json`; `main` looks at it when it prints an error."""


def client_options(run: Callable[Concatenate[ClientOptions, P], int]) -> Callable[P, int]:
    """Declare the options of a command that asks a cluster. It gets them as its first argument."""
    return _collected(ClientOptions, [*_CLIENT, json_option], run)


def transfer_options(run: Callable[Concatenate[ClientOptions, P], int]) -> Callable[P, int]:
    """Declare the same without `--json`, for a command with formats of its own."""
    return _collected(ClientOptions, _CLIENT, run)


def tls_options(run: Callable[Concatenate[TlsOptions, P], int]) -> Callable[P, int]:
    """Declare the files only, for a command that learns the endpoints elsewhere."""
    return _collected(TlsOptions, _TLS, run)


def _collected(
    kind: type[O],
    options: Sequence[Callable[[Callable[..., int]], Callable[..., int]]],
    run: Callable[Concatenate[O, P], int],
) -> Callable[P, int]:
    names = [each.name for each in fields(kind)]  # type: ignore[arg-type]

    @functools.wraps(run)
    def collect(**given: Any) -> int:
        own = {name: given.pop(name) for name in names if name in given}
        return run(kind(**own), **given)  # type: ignore[call-arg]

    declared: Callable[..., int] = collect
    for each in reversed(options):
        declared = each(declared)
    return declared
