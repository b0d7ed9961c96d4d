"""Room for the echoes of large PINGs: the answers that cost a peer nothing to ask for.

One that fits in the receive buffer is echoed or refused; a larger one is not even read until there
is room for its echo. Neither keeps anybody else waiting.
"""

from __future__ import annotations

from collections.abc import Callable

from sbp_core import limits
from sbp_core.errors import StatusCode, ThrottledError
from sbp_core.server.unread import Unread


class Echo:
    """The echo that one connection is about to get; `on_room` is called when it need not wait."""

    def __init__(self, unread: Unread, on_room: Callable[[], None]) -> None:
        self._unread = unread
        self._on_room = on_room
        self._taken_bytes = 0
        self.is_awaited = False
        """Whether a PING is not read on until there is room for its echo."""

    def may_receive(self, size: int) -> bool:
        """Whether a large PING may be received; if not, its room is awaited."""
        if not self._taken_bytes:
            if not self._unread.may_begin_echo(size):
                self.is_awaited = True
                self._unread.when_echo(size, self._on_room)
                return False
            self._taken_bytes = size
        self.is_awaited = False
        return True

    def maybe_refusal(self, size: int) -> ThrottledError | None:
        """Return why a PING that was received is not echoed; None if it is, until `end`."""
        if size <= limits.PING_ECHO_BYTES or self._taken_bytes:
            return None
        if self._unread.may_begin_echo(size):
            self._taken_bytes = size
            return None
        return ThrottledError(
            StatusCode.TOO_MANY_REQUESTS,
            f"a PING of {size} bytes is not echoed while so many answers wait to be read; one of"
            f" {limits.PING_ECHO_BYTES} is",
        )

    def end(self) -> None:
        """The echo was sent, or never will be."""
        if self._taken_bytes:
            taken_bytes, self._taken_bytes = self._taken_bytes, 0
            self._unread.end_echo(taken_bytes)
