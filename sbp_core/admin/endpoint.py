"""The admin endpoint as a whole: a thread, its loop, and what it listens on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Final

from sbp_core.admin.pacing import paced_loop
from sbp_core.admin.pages import LOOP_SECONDS_MAX, Pages
from sbp_core.server.gate import gate_of
from sbp_core.server.runtime import SystemClock
from sbp_core.server.served import Observed
from sbp_core.settings.listening import Exposure, ListenerSettings, join_address
from sbp_core.web.http_listener import HttpLimits, HttpListener

_LOG: Final = logging.getLogger(__name__)

LIMITS: Final = HttpLimits(
    connections_max=64,
    head_bytes_max=16 * 1024,
    arrival_seconds=10.0,
    body_seconds=30.0,
    answer_seconds=30.0,
    stall_seconds=30.0,
)


class AdminEndpoint:
    """Serves HTTP about `servers` from `start` to `stop`.

    `settings` has the host, TLS and identities; `config` returns what `/config` shows.
    """

    def __init__(
        self,
        servers: Observed,
        settings: ListenerSettings,
        port: int,
        config: Callable[[], Mapping[str, object]],
        *,
        loop_seconds_max: float = LOOP_SECONDS_MAX,
    ) -> None:
        self._settings = settings
        self._port = port
        self._gate = gate_of(settings)
        loop = asyncio.get_running_loop()
        host = settings.host if settings.exposure is Exposure.NOBODY else None
        contexts = settings.tls_contexts()
        pages = Pages(
            *(servers, loop, self._gate, config, SystemClock().wall_ms),
            host=host,
            contexts=contexts,
            loop_seconds_max=loop_seconds_max,
        )
        self._listener = HttpListener(
            pages.app(),
            LIMITS,
            contexts,
            name="the admin endpoint",
            port_name="admin_port",
        )
        self._thread = threading.Thread(target=self._run, name="sbp-admin", daemon=True)
        self._bound: Future[int] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event

    async def start(self) -> str:
        """Listen; return the endpoint, "host:port".

        Raises ConfigurationError when the address cannot be listened on, or must not be.
        """
        self._thread.start()
        port = await asyncio.wrap_future(self._bound)
        settings = self._settings
        host = settings.host if settings.advertise_host is None else settings.advertise_host
        return join_address(host, port)

    async def stop(self) -> None:
        """Close the port and all connections."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._stopping.set)
        if self._thread.ident is not None:  # it was started
            await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=paced_loop) as runner:
                runner.run(self._serve())
        except Exception as error:  # noqa: BLE001 - it is raised by `start`, or logged
            if self._bound.done():
                _LOG.exception("the admin endpoint has ended")
            else:
                self._bound.set_exception(error)

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        await self._gate.fetch_keys()
        settings = self._settings
        bound = await self._listener.start(settings.host, self._port, settings.exposure)
        self._bound.set_result(bound)
        await self._stopping.wait()
        await self._listener.stop()
