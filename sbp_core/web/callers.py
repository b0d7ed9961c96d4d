"""The callers of this process: a client of the cluster for each identity that asks.

The cluster checks what an identity may do, so a request is executed by a client that has the token
of that request. Clients are kept, as a new one has to connect to the servers first.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from sbp_core.access.credentials import TOKEN_BYTES_MAX, BearerToken
from sbp_core.access.tokens import unverified_subject
from sbp_core.client.async_client import AsyncClient
from sbp_core.client.connecting import Connecting
from sbp_core.client.io.identifying import NO_IDENTITIES
from sbp_core.client.operations.calls import RetryPolicy
from sbp_core.errors import ThrottledError, UnauthenticatedError
from sbp_core.settings.web_settings import WebSettings
from sbp_core.web.browsers import Sessions

CLIENTS_MAX: Final = 256
IDLE_SECONDS: Final = 600.0
VERIFYING_MAX: Final = 8
"""Connections to the cluster at a time that are for tokens which it has not accepted yet."""

_RETRY_MS: Final = 20_000
"""How long a request is retried: a fail-over takes less, and callers do not wait for ever."""
_TOKEN: Final = re.compile(rb"[A-Za-z0-9_.-]+")
_USED: Final = "sbp.clients"
"""Where the scope of a request has the clients that it uses."""
_OWN: Final = b""
"""The key of the client without a token of a request."""


@dataclass(slots=True, eq=False)
class _Entry:
    client: AsyncClient
    user_count: int = 0
    """Requests that use the client now."""
    used_at: float = 0.0


class Callers:
    """Clients of the cluster, one for each identity that asks.

    `clients_max` at most: the client that is unused for longest makes room. A client that is
    unused for IDLE_SECONDS is closed, some minutes later at most. With `sessions`, a request may be
    of one instead of having a token.
    """

    def __init__(
        self,
        settings: WebSettings,
        sessions: Sessions | None = None,
        *,
        make: Callable[[str, Connecting], AsyncClient] | None = None,
        clock: Callable[[], float] = time.monotonic,
        clients_max: int = CLIENTS_MAX,
    ) -> None:
        self._settings = settings
        self.sessions = sessions
        self._make = make or _client
        self._clock = clock
        self._clients_max = clients_max
        self._entries: dict[bytes, _Entry] = {}
        """By digest of the token."""
        self._verifying = asyncio.Semaphore(VERIFYING_MAX)
        self._sweeping: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def counting(self, app: ASGIApp) -> ASGIApp:
        """Return an application that notes when the requests of `app` no longer use a client.

        `client` works for requests that come through it.
        """

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            used: list[_Entry] = []
            scope[_USED] = used
            try:
                await app(scope, receive, send)
            finally:
                for each in used:
                    each.user_count -= 1
                    each.used_at = self._clock()

        return counted

    def maybe_token(self, request: HTTPConnection) -> bytes | None:
        """Return the token of a request, or of its session; None without one.

        Raises UnauthenticatedError for what is no token.
        """
        header = request.headers.get("authorization")
        if header is None:
            return None if self.sessions is None else self.sessions.maybe_token(request)
        scheme, _, rest = header.partition(" ")
        token = rest.strip().encode("latin-1")
        if scheme.lower() != "bearer" or not is_token(token):
            raise UnauthenticatedError.of(
                "the header Authorization has no token: write Bearer and a signed JSON Web Token"
                f" of {TOKEN_BYTES_MAX} bytes at most"
            )
        return token

    async def verify(self, token: bytes) -> str:
        """Return the subject of a token, once the cluster has accepted the token.

        Raises UnauthenticatedError if the cluster refuses the token, other errors if the cluster
        does not answer. The client for the question is not kept, so that refused tokens close no
        client of others.
        """
        subject = unverified_subject(token)
        if self._settings.connecting.tls is None:
            raise UnauthenticatedError.of(NO_IDENTITIES)
        async with self._verifying:
            client = self._make(self._settings.endpoint, self._connecting(token))
            try:
                await client.placement_drivers()
            finally:
                await client.close()
        return subject

    async def client(self, request: HTTPConnection) -> AsyncClient:
        """Return the client with the identity of a request; it may be used until that is answered.

        Raises UnauthenticatedError if the request needs a token, or must not have one;
        ThrottledError if all clients are in use.
        """
        token = self.maybe_token(request)
        if token is None and self._settings.needs_token:
            raise UnauthenticatedError.of(
                "the request has no token, and each needs one here: send the header Authorization"
                " with Bearer and the token"
            )
        self._check_identities(token)
        entry = self._entry(token)
        used: list[_Entry] = request.scope[_USED]
        entry.user_count += 1
        used.append(entry)
        return entry.client

    def client_of(self, token: bytes | None) -> AsyncClient:
        """Return the client of a token, or without one of this process; see `holding`.

        Raises UnauthenticatedError if the cluster knows no identities, ThrottledError if all
        clients are in use.
        """
        self._check_identities(token)
        return self._entry(token).client

    def _check_identities(self, token: bytes | None) -> None:
        if token is not None and self._settings.connecting.tls is None:
            raise UnauthenticatedError.of(NO_IDENTITIES)

    def maybe_own(self) -> AsyncClient | None:
        """Return the client of requests without a token; None if the cluster would refuse it."""
        acts = self._settings.has_own_credentials or not self.has_identities
        return self._entry(None).client if acts and not self._settings.needs_token else None

    @contextmanager
    def holding(self, client: AsyncClient) -> Iterator[None]:
        """Keep a client open that is used outside of requests."""
        (entry,) = (each for each in self._entries.values() if each.client is client)
        entry.user_count += 1
        try:
            yield
        finally:
            entry.user_count -= 1
            entry.used_at = self._clock()

    @property
    def has_identities(self) -> bool:
        """Whether requests may have identities, and so rights."""
        return self._settings.connecting.tls is not None

    async def close(self) -> None:
        """Close all clients."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for each in self._entries.values():
            self._close(each.client)
        self._entries.clear()
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _entry(self, token: bytes | None) -> _Entry:
        key = _OWN if token is None else hashlib.sha256(token).digest()
        now = self._clock()
        entry = self._entries.get(key)
        if entry is None:
            self._make_room()
            entry = _Entry(self._make(self._settings.endpoint, self._connecting(token)))
            self._entries[key] = entry
            self._sweep_later()
        entry.used_at = now
        return entry

    def _connecting(self, token: bytes | None) -> Connecting:
        own = self._settings.connecting
        if token is None:
            return own
        tls = own.tls
        assert tls is not None
        # The certificate of this process would be an identity where the token is declined.
        bare = replace(tls, cert_file=None, key_file=None)
        return replace(own, tls=bare, credentials=BearerToken(token))

    def _make_room(self) -> None:
        """Close the client that is unused for longest, if there is no room for another."""
        if len(self._entries) < self._clients_max:
            return
        unused = [(each.used_at, key) for key, each in self._entries.items() if not each.user_count]
        if not unused:
            raise ThrottledError.of(
                f"{self._clients_max} identities have requests under way, as many as can: retry"
                " later"
            )
        self._close(self._entries.pop(min(unused)[1]).client)

    def _sweep_later(self) -> None:
        if self._sweeping is None and self._entries:
            loop = asyncio.get_running_loop()
            self._sweeping = loop.call_later(IDLE_SECONDS / 2, self._sweep)

    def _sweep(self) -> None:
        """Close the clients that are unused for long."""
        self._sweeping = None
        since = self._clock() - IDLE_SECONDS
        for key, each in list(self._entries.items()):
            if not each.user_count and each.used_at <= since:
                self._close(self._entries.pop(key).client)
        self._sweep_later()

    def _close(self, client: AsyncClient) -> None:
        task = asyncio.get_running_loop().create_task(client.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _client(endpoint: str, how: Connecting) -> AsyncClient:
    return AsyncClient(endpoint, connecting=how, retry=RetryPolicy(budget_ms=_RETRY_MS))


def is_token(token: bytes) -> bool:
    """Whether bytes have the form of a token."""
    return len(token) <= TOKEN_BYTES_MAX and _TOKEN.fullmatch(token) is not None
