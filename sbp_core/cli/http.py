"""`sbp http`: records over HTTP."""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Final

from sbp_core import limits
from sbp_core.cli.parsing import parse_integer
from sbp_core.cli.web import HTTP_PORT, WebService, add_web_options
from sbp_core.errors import ConfigurationError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from sbp_core.web.callers import Callers
    from sbp_core.web.settings import WebSettings

_BODY_BYTES_MAX: Final = 16 * limits.MIB
_BODY_BYTES_LARGEST: Final = 64 * limits.MIB
"""The memory for the bodies of all requests."""


def add_http(parser: ArgumentParser) -> None:
    """Declare `sbp http`."""
    parser.description = (
        "Serve records over HTTP, so that programs in any language append and read them:"
        " /v1/streams, described by /v1/openapi.json. Each request is executed with the identity of"
        " its token. SIGHUP reads the files of TLS again, and opens the file of the log again."
    )
    add_web_options(parser, HTTP_PORT)
    parser.add_argument(
        "--body-bytes-max",
        type=parse_integer,
        default=_BODY_BYTES_MAX,
        metavar="BYTES",
        help=f"largest body of a request, decompressed, up to {_BODY_BYTES_LARGEST}"
        " (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def run(options: Namespace) -> int:
    """Serve until a signal."""
    if not 1 <= options.body_bytes_max <= _BODY_BYTES_LARGEST:
        raise ConfigurationError(
            f"--body-bytes-max {options.body_bytes_max} is not within 1..{_BODY_BYTES_LARGEST}"
        )

    def make(settings: WebSettings, callers: Callers, stopping: asyncio.Event) -> ASGIApp:
        del settings
        from sbp_core.web.records.app import records_app
        from sbp_core.web.records.bodies import Bodies
        from sbp_core.web.records.tailing import Tails

        return records_app(callers, Bodies(options.body_bytes_max), Tails(stopping))

    return WebService("http", make).run(options)
