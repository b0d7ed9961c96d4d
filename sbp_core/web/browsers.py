"""Browsers as peers: pages of other sites are refused, and a session stands for a token.

A session is a cookie with a random id. The token of a session stays in this process.
"""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sbp_core.errors import PermissionDeniedError, ThrottledError
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


COOKIE: Final = "sbp_session"
SESSION_SECONDS: Final = 12 * 3600
SESSIONS_MAX: Final = 1024
SESSIONS_PER_SUBJECT_MAX: Final = 16
_ID_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class _Session:
    subject: str
    token: bytes = field(repr=False)
    ends_at: float


class Sessions:
    """The sessions that are open: SESSIONS_MAX at most, SESSIONS_PER_SUBJECT_MAX of a subject.

    A further session of a subject ends the oldest session of the same subject. No subject ends the
    session of another one.

    Ids are kept as digests, so that a dump of the memory opens no session that is a cookie.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sessions: dict[bytes, _Session] = {}
        """By digest of the id, the oldest first."""

    def open(self, response: Response, subject: str, token: bytes, *, is_secure: bool) -> None:
        """Begin a session; the response gives its cookie to the browser.

        The cluster has accepted `token` as one of `subject`. `is_secure`: the browser sends the
        cookie with TLS only. Raises ThrottledError if other subjects have all sessions.
        """
        self._drop_ended()
        is_full = len(self._sessions) >= SESSIONS_MAX
        own = [key for key, each in self._sessions.items() if each.subject == subject]
        if own and (is_full or len(own) >= SESSIONS_PER_SUBJECT_MAX):
            del self._sessions[own[0]]
        elif is_full:
            raise ThrottledError.of(
                f"{SESSIONS_MAX} sessions are open, as many as can be: sign in again later"
            )
        session_id = secrets.token_urlsafe(_ID_BYTES)
        ends_at = self._clock() + SESSION_SECONDS
        self._sessions[_digest(session_id)] = _Session(subject, token, ends_at)
        response.set_cookie(
            COOKIE,
            session_id,
            max_age=SESSION_SECONDS,
            httponly=True,
            samesite="strict",
            secure=is_secure,
        )

    def end(self, request: HTTPConnection, response: Response) -> None:
        """End the session of a request, if it has one."""
        self._sessions.pop(_digest(request.cookies.get(COOKIE, "")), None)
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")

    def maybe_token(self, request: HTTPConnection) -> bytes | None:
        """Return the token of the session of a request, None without one."""
        session = self._maybe_session(_digest(request.cookies.get(COOKIE, "")))
        return None if session is None else session.token

    def watch(self, request: HTTPConnection) -> Callable[[], bool]:
        """Return a function that says whether the session of a request is still open."""
        key = _digest(request.cookies.get(COOKIE, ""))
        return lambda: self._maybe_session(key) is not None

    def _maybe_session(self, key: bytes) -> _Session | None:
        session = self._sessions.get(key)
        return None if session is None or session.ends_at <= self._clock() else session

    def _drop_ended(self) -> None:
        now = self._clock()
        for key in [key for key, each in self._sessions.items() if each.ends_at <= now]:
            del self._sessions[key]


def _digest(session_id: str) -> bytes:
    return hashlib.sha256(session_id.encode()).digest()
