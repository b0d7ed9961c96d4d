"""Calls that wait for one thing and are answered with one frame, without a task of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from sbp_core.errors import RequestTimeoutError

if TYPE_CHECKING:
    from sbp_core.server.dispatch import ServerCall


class Later(Struct, frozen=True):
    """One frame without payload is all that is left to answer, once `ready` is over.

    `make` returns its header, or raises what is answered instead. Nothing is cancelled when the
    caller stops waiting. Past its deadline `make` is not called; it is called for a peer that is
    gone, as `make` counts what was done.
    """

    ready: asyncio.Future[Any]
    make: Callable[[], object]


def late() -> RequestTimeoutError:
    """Return the error of a call whose caller has stopped waiting."""
    return RequestTimeoutError.of("not done within the timeout_ms of the request")


class Deferred:
    """A call that waits without a task of its own: most answers are then sent by a callback."""

    def __init__(self, call: ServerCall, later: Later) -> None:
        self._call = call
        self._later = later
        self._timer: asyncio.TimerHandle | None = None
        self._go_on: Callable[[], None] | None = None

    def when_due(self, go_on: Callable[[], None]) -> None:
        """Call `go_on`, once, when it can be answered or the caller has stopped waiting."""
        self._go_on = go_on
        if self._call.give_up_at is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self._call.give_up_at, self._on_due)
        self._later.ready.add_done_callback(self._on_ready)

    def finish(self) -> Serving | None:
        """Answer; return what is left of that, None if nothing is."""
        try:
            if not self._later.ready.done():
                raise late()
            rest = self._call.answer_soon(self._later.make())
        except Exception as error:  # noqa: BLE001 - a server outlives the mistakes of its handlers
            return self._call.fail(error)
        return None if rest is None else self._call.finish(rest)

    def _on_ready(self, ready: asyncio.Future[Any]) -> None:
        if not ready.cancelled():
            ready.exception()  # retrieved: it is answered, or the caller has stopped waiting
        self._on_due()

    def _on_due(self) -> None:
        go_on, self._go_on = self._go_on, None
        if go_on is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        go_on()


Serving = Coroutine[Any, Any, None] | Deferred
"""The rest of serving a request: to run, or to wait for."""
