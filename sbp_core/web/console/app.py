"""The console as an application of Starlette: its pages, its headers, its pages of failures."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sbp_core.errors import PermissionDeniedError, SbpError, UnauthenticatedError
from sbp_core.web.console import (
    groups,
    login,
    overview,
    records,
    servers,
    stream,
    streams,
    transactions,
)
from sbp_core.web.console.login import sign_in_first
from sbp_core.web.console.site import Site
from sbp_core.web.problems import status_of

_LOG: Final = logging.getLogger(__name__)

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_ROUTES: Final = (
    *login.ROUTES,
    *overview.ROUTES,
    *streams.ROUTES,
    *stream.ROUTES,
    *records.ROUTES,
    *groups.ROUTES,
    *transactions.ROUTES,
    *servers.ROUTES,
)


def make_app(site: Site) -> ASGIApp:
    """Return the application."""
    static = StaticFiles(directory=Path(__file__).with_name("static"))
    app = Starlette(
        routes=[*_ROUTES, Mount("/static", static)],
        exception_handlers=_FAILURES,
    )
    app.state.site = site
    return _with_headers(app)


def _with_headers(app: ASGIApp) -> ASGIApp:
    """Return an application whose answers have HEADERS; browsers keep files, but no page."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                headers.update(HEADERS)
                is_file = scope["path"].startswith("/static/")
                headers["Cache-Control"] = "max-age=3600" if is_file else "no-store"
            await send(message)

        await app(scope, receive, send_with_headers)

    return answer


def _of_sbp(request: Request, error: Exception) -> Response:
    assert isinstance(error, SbpError)
    if isinstance(error, UnauthenticatedError):
        return sign_in_first(request)
    status = status_of(error)
    if isinstance(error, PermissionDeniedError):
        remedy = "Ask an administrator for the right: `sbp acl grant` gives it."
    elif error.retriable:
        remedy = "See that the servers of the cluster run and can be reached; then try again."
    else:
        remedy = "Go back, and change what was asked for."
    return _failed(request, status, str(error), remedy, is_passing=error.retriable)


def _of_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    text = f"{request.method} {request.url.path}: {status.description or error.detail}"
    return _failed(request, status, text, "The pages of the console are linked above.")


def _of_fault(request: Request, error: Exception) -> Response:
    _LOG.error("page failed path=%s: a fault of the console", request.url.path, exc_info=error)
    return _failed(
        *(request, 500, "A fault of the console, not of the cluster."),
        "Its log has the trace: please report it.",
    )


def _failed(
    request: Request, status: int, message: str, remedy: str, *, is_passing: bool = False
) -> Response:
    is_get = request.method == "GET"
    return Site.of(request).page(
        *(request, "error.html", HTTPStatus(status).phrase),
        status=status,
        message=message,
        remedy=remedy,
        is_passing=is_passing and is_get,
    )


_FAILURES: Final[Mapping[Any, Any]] = {
    SbpError: _of_sbp,
    HTTPException: _of_http,
    Exception: _of_fault,
}
