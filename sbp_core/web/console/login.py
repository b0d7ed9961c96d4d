"""Signing in and out: a token becomes a session of the browser."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from sbp_core.errors import UnauthenticatedError
from sbp_core.web.browsers import SESSION_SECONDS
from sbp_core.web.callers import is_token
from sbp_core.web.console.site import Site

_PATH: Final = "/login"
_REFUSED: Final = (
    "The cluster refused the token of your session: it may have expired, or be of another issuer."
    " Sign in again."
)


def sign_in_first(request: Request) -> Response:
    """Return the way to the page for signing in, which leads back.

    A session whose token the cluster has refused ends.
    """
    sessions = Site.of(request).sessions
    target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    query = {"next": target if request.method == "GET" else "/"}
    was_refused = sessions.maybe_token(request) is not None
    if was_refused:
        query["refused"] = "1"
    response = RedirectResponse(f"{_PATH}?{urlencode(query)}", status_code=303)
    if was_refused:
        sessions.end(request, response)
    return response


async def show(request: Request) -> Response:
    """Show the form for a token."""
    query = request.query_params
    return _form(request, query.get("next", "/"), _REFUSED if "refused" in query else None)


async def sign_in(request: Request) -> Response:
    """Begin a session, if the cluster accepts the token."""
    site = Site.of(request)
    fields = await site.form(request)
    token = fields.get("token", "").strip().encode()
    target = fields.get("next", "/")
    if not is_token(token):
        return _form(request, target, "That is no token: a signed JSON Web Token is expected.")
    try:
        subject = await site.callers.verify(token)
    except UnauthenticatedError as error:
        return _form(request, target, str(error))
    # A path that begins with two slashes, or a backslash, leads to another site.
    is_path = target.startswith("/") and not target.startswith(("//", "/\\"))
    response = RedirectResponse(target if is_path and target.isprintable() else "/", 303)
    site.sessions.open(response, subject, token, is_secure=request.url.scheme == "https")
    return response


async def sign_out(request: Request) -> Response:
    """End the session."""
    site = Site.of(request)
    await site.form(request)
    response = RedirectResponse(_PATH, status_code=303)
    site.sessions.end(request, response)
    return response


def _form(request: Request, target: str, failure: str | None = None) -> Response:
    return Site.of(request).page(
        *(request, "login.html", "Sign in"),
        status=400 if request.method == "POST" else 200,
        next=target,
        failure=failure,
        hours=SESSION_SECONDS // 3600,
    )


ROUTES: Final = (
    Route(_PATH, show, methods=["GET"]),
    Route(_PATH, sign_in, methods=["POST"]),
    Route("/logout", sign_out, methods=["POST"]),
)
