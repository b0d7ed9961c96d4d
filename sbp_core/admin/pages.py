"""The pages of the admin endpoint. All are read with GET and change nothing.

    /healthz   200 while the server's loop answers
    /readyz    200 while the server does what it is there for, else 503 and why
    /metrics   Prometheus
    /config    the settings that hold, with the quotas, as they were read last

Where identities are on, `/metrics` and `/config` need one, and the first two show no details
without one: probes work. Answers of the server are shared by all
requests that come at the same time.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Generic, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sbp_core.admin.exposition import CONTENT_TYPE, Exposition
from sbp_core.errors import PermissionDeniedError, SbpError, UnauthenticatedError
from sbp_core.server.gate import Gate
from sbp_core.server.metrics import Catalog
from sbp_core.server.served import Condition, Observed, Unready
from sbp_core.server.trust import Standing
from sbp_core.tls import Contexts
from sbp_core.tls_expiry import Expiry, expiries, shown
from sbp_core.web.browsers import check_host
from sbp_core.web.http_listener import CERTIFICATE

LOOP_SECONDS_MAX: Final = 5.0
"""A loop that does not answer for this long is stuck."""
METRICS_AGE_SECONDS: Final = 1.0
"""Scrapes within this time get the same page."""
_STATE_AGE_SECONDS: Final = 0.2

METRICS: Final = Catalog()
_INFO: Final = METRICS.gauge("sbp_info", "1, for the version of the software.", "version")
_READY: Final = METRICS.gauge("sbp_ready", "1 if `/readyz` says that the server is ready, else 0.")
_DELAY: Final = METRICS.gauge(
    "sbp_loop_delay_seconds", "How long the server's loop took to answer this endpoint."
)

_FAILED_FETCHES: Final = METRICS.gauge(
    "sbp_token_keys_failed_fetches",
    "Fetches of the keys of tokens (`jwks_url`) that failed in a row; 0 if the last one succeeded.",
)

_EXPIRY: Final = METRICS.gauge(
    "sbp_certificate_expiry_timestamp_seconds",
    "When the first certificate in a file of TLS expires, in seconds since the epoch.",
    "file",
)

T = TypeVar("T")


class StuckError(Exception):
    """The loop of the servers does not answer."""


class _Shared(Generic[T]):
    """A value that is made when it is asked for and old, once for all that ask at the same time."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, T]], age_seconds: float) -> None:
        self._make = make
        self._age_seconds = age_seconds
        self._made_at = -float("inf")
        self._making: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Return the value; raise what making it raised."""
        making = self._making
        is_old = time.monotonic() - self._made_at >= self._age_seconds
        if making is None or (making.done() and is_old):
            making = self._making = asyncio.create_task(self._make())
            making.add_done_callback(self._note)
        return await asyncio.shield(making)

    def _note(self, made: asyncio.Task[T]) -> None:
        self._made_at = time.monotonic()
        if not made.cancelled():
            made.exception()  # retrieved: the caller may have left


@dataclass(frozen=True, slots=True)
class _State:
    unready: Sequence[Unready]
    condition: Condition
    delay_seconds: float

    def shown(self) -> dict[str, object]:
        reasons = [{"code": each.code, "reason": each.reason} for each in self.unready]
        return {"ready": not reasons, "reasons": reasons, **self.condition}


class Pages:
    """Answers requests about `servers`, whose loop is `loop`.

    `config` returns what `/config` shows.
    `host` is the address or name to listen on, if only this machine reaches that. `contexts` are
    those of TLS, whose certificates may expire.
    """

    def __init__(
        self,
        servers: Observed,
        loop: asyncio.AbstractEventLoop,
        gate: Gate,
        config: Callable[[], Mapping[str, object]],
        now_ms: Callable[[], int],
        *,
        host: str | None = None,
        contexts: Contexts | None = None,
        loop_seconds_max: float = LOOP_SECONDS_MAX,
    ) -> None:
        self._servers = servers
        self._loop_seconds_max = loop_seconds_max
        self._loop = loop
        self._gate = gate
        self._config = config
        self._now_ms = now_ms
        self._host = host
        self._contexts = contexts
        self._exposition = Exposition((METRICS, *servers.catalogs))
        self._state = _Shared(self._look, _STATE_AGE_SECONDS)
        self._page = _Shared(self._render, METRICS_AGE_SECONDS)

    def app(self) -> Starlette:
        """Return the application."""
        pages = {
            "/healthz": self._show_health,
            "/readyz": self._show_readiness,
            "/metrics": self._show_metrics,
            "/config": self._show_config,
        }
        refusals: dict[Any, Callable[[Request, Exception], Response]] = {
            UnauthenticatedError: _refuse(401, {"WWW-Authenticate": "Bearer"}),
            PermissionDeniedError: _refuse(403),
            SbpError: _refuse(503),
            StuckError: _refuse(503),
        }
        routes = [Route(path, page, methods=["GET"]) for path, page in pages.items()]
        return Starlette(routes=routes, exception_handlers=refusals)

    async def _show_health(self, request: Request) -> Response:
        del request
        state = await self._state.get()
        return _json({"healthy": True, "loop_delay_seconds": round(state.delay_seconds, 6)})

    async def _show_readiness(self, request: Request) -> Response:
        state = await self._state.get()
        shown = state.shown()
        try:
            await self._check(request, "the reason", is_monitoring=True)
        except (UnauthenticatedError, PermissionDeniedError):
            shown = {"ready": shown["ready"]}
        return _json(shown, 503 if state.unready else 200)

    async def _show_metrics(self, request: Request) -> Response:
        await self._check(request, "/metrics", is_monitoring=True)
        return Response(await self._page.get(), media_type=CONTENT_TYPE)

    async def _show_config(self, request: Request) -> Response:
        await self._check(request, "/config", is_monitoring=False)
        return _json(self._config())

    async def _check(self, request: Request, what: str, *, is_monitoring: bool) -> None:
        """Raise UnauthenticatedError or PermissionDeniedError if a peer may not see something."""
        if not self._gate.is_on:
            check_host(request, self._host, what)
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        await self._gate.check_reader(
            _Reader(getattr(request.state, CERTIFICATE), str(request.client)),
            token.strip().encode() if scheme.lower() == "bearer" else None,
            what,
            self._now_ms(),
            is_monitoring=is_monitoring,
        )

    async def _look(self) -> _State:
        asked_at = time.monotonic()

        async def look() -> _State:
            delay = time.monotonic() - asked_at
            unready = [*self._servers.unready(), *self._gate.unready(), *self._expired()]
            return _State(unready, self._servers.condition(), delay)

        return await self._ask(look())

    def _expiries(self) -> Iterator[Expiry]:
        return iter(()) if self._contexts is None else expiries(self._contexts)

    def _expired(self) -> Iterator[Unready]:
        for each in self._expiries():
            if each.last <= self._now_ms() / 1000:
                yield Unready(
                    "certificate_expired",
                    f"the certificate in {each.path} expired at {shown(each.last)}, and others"
                    " refuse it: put a new one into the file",
                )

    async def _render(self) -> bytes:
        state = await self._state.get()
        readings = await self._ask(self._servers.read_metrics())
        own = [
            _INFO.of(1, _version()),
            _READY.of(not state.unready),
            _DELAY.of(state.delay_seconds),
            _FAILED_FETCHES.of(self._gate.failed_fetch_count),
            *(_EXPIRY.of(each.first, str(each.path)) for each in self._expiries()),
        ]
        return self._exposition.render([*own, *readings])

    async def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        """Run a question on the loop of the servers. Raises StuckError if that takes too long."""
        try:
            asked = asyncio.run_coroutine_threadsafe(question, self._loop)
        except RuntimeError as error:
            question.close()
            raise StuckError("the server has ended") from error
        try:
            async with asyncio.timeout(self._loop_seconds_max):
                return await asyncio.wrap_future(asked)
        except TimeoutError as error:
            raise StuckError(
                f"the server's loop has not answered for {self._loop_seconds_max:.0f} s: see its"
                " log, and what its process waits for"
            ) from error


@dataclass(slots=True)
class _Reader:
    """The peer of a request, as `Gate` sees it."""

    certificate: bytes | None
    name: str
    may_be_server: bool = False
    standing: Standing = field(default_factory=Standing)


def _json(content: Mapping[str, object], status: int = 200) -> Response:
    return Response(json.dumps(content, indent=2) + "\n", status, media_type="application/json")


def _refuse(
    status: int, headers: Mapping[str, str] | None = None
) -> Callable[[Request, Exception], Response]:
    def answer(request: Request, error: Exception) -> Response:
        del request
        return JSONResponse({"error": str(error)}, status, headers)

    return answer


def _version() -> str:
    try:
        return version("sbp-spark")
    except PackageNotFoundError:
        return "unknown"
