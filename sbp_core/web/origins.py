"""Protection against pages of other sites, in the browser of a user of this machine."""

from __future__ import annotations

import ipaddress

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from sbp_core.errors import PermissionDeniedError
from sbp_core.web.problems import problem_of


def check_host(request: HTTPConnection, host: str | None, what: str) -> None:
    """Refuse a request for another machine, where only this machine reaches `host`.

    A page of another site gets its own name to lead to this machine, and then reads what that
    answers. `host` is None where other machines connect to: its names are not known then. `what`
    is asked for. Raises PermissionDeniedError.
    """
    named = request.url.hostname or ""
    if host is None or named in {"localhost", host}:
        return
    try:
        ipaddress.ip_address(named)
    except ValueError as error:
        raise PermissionDeniedError.of(
            f"{what} is not for {named!a}, which is no name of this machine: ask for {host}"
        ) from error


def of_this_host(app: ASGIApp, host: str | None) -> ASGIApp:
    """Return an application that refuses what `check_host` refuses, and asks `app` for the rest."""

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            check_host(HTTPConnection(scope), host, "this program")
        except PermissionDeniedError as error:
            await problem_of(error).response()(scope, receive, send)
        else:
            await app(scope, receive, send)

    return checked


def is_foreign(request: HTTPConnection) -> bool:
    """Whether a page of another site, or of none, sends the request; other programs are no pages.

    A site is a scheme, host and port here (an origin): a page of another port is foreign too.
    """
    origin = request.headers.get("origin")
    if origin is not None:
        return origin != f"{request.url.scheme}://{request.url.netloc}"
    return request.headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}


def check_same_site(request: HTTPConnection) -> None:
    """Refuse a request unless a page of this site sends it: for forms.

    Raises PermissionDeniedError, also if the browser does not say which page it is.
    """
    names = ("origin", "sec-fetch-site")
    if is_foreign(request) or not any(name in request.headers for name in names):
        raise PermissionDeniedError.of(
            "the request is not from a page of this site: use its forms, in a browser that sends"
            " Origin"
        )
