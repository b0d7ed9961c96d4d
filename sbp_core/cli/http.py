"""`sbp http`: records over HTTP."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import click

from sbp_core import limits
from sbp_core.cli.client_options import ClientOptions
from sbp_core.cli.values import INTEGER
from sbp_core.cli.web import HTTP_PORT, WebService, web_options
from sbp_core.errors import ConfigurationError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from sbp_core.web.callers import Callers
    from sbp_core.web.web_settings import WebSettings

_BODY_BYTES_MAX: Final = 16 * limits.MIB
_BODY_BYTES_LARGEST: Final = 64 * limits.MIB
"""The memory for the bodies of all requests."""


@click.command()
@web_options(HTTP_PORT)
@click.option(
    "--body-bytes-max",
    type=INTEGER,
    default=_BODY_BYTES_MAX,
    metavar="BYTES",
    help=f"Largest body of a request, decompressed, up to {_BODY_BYTES_LARGEST}. [default:"
    f" {_BODY_BYTES_MAX}]",
)
def http(client: ClientOptions, body_bytes_max: int, **given: Any) -> int:
    """Serve records over HTTP, so that programs in any language append and read them.

    The paths are below /v1/streams, described by /v1/openapi.json. Each request is executed with
    the identity of its token. SIGHUP reads the files of TLS again, and opens the file of the log
    again.
    """
    if not 1 <= body_bytes_max <= _BODY_BYTES_LARGEST:
        raise ConfigurationError(
            f"--body-bytes-max {body_bytes_max} is not within 1..{_BODY_BYTES_LARGEST}"
        )

    def make(settings: WebSettings, callers: Callers, stopping: asyncio.Event) -> ASGIApp:
        del settings
        from sbp_core.web.records.api import records_app
        from sbp_core.web.records.record_answers import Tails
        from sbp_core.web.records.requests import Bodies

        return records_app(callers, Bodies(body_bytes_max), Tails(stopping))

    return WebService("http", make).run(client, given)
