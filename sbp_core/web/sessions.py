"""Sessions of browsers: a cookie with a random id, for a token that only this process has."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from starlette.requests import HTTPConnection
from starlette.responses import Response

from sbp_core.errors import ThrottledError

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
