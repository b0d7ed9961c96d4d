"""From a request frame to the handler of its opcode, and from what that raises to an answer."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol, TypeVar

from sbp_core.errors import SbpError, StatusCode, StatusError, UnsupportedError
from sbp_core.session.isolation import is_isolation_class
from sbp_core.wire.checksum import Octets
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import decode_header, encode_header
from sbp_core.wire.opcodes import Opcode

T = TypeVar("T")

_LOG: Final = logging.getLogger(__name__)


class Responder(Protocol):
    """Where the answers to a request go; all but `send_now` wait while the peer does not read."""

    async def send_response(
        self, request: Frame, header: bytes, payload: Sequence[Octets], *, is_end: bool
    ) -> None:
        """Send one response frame."""

    async def send_system_error(self, request: Frame, error: SbpError) -> None:
        """Send a system error frame, which ends the call."""

    def reserve(self) -> AbstractAsyncContextManager[None]:
        """Wait for room for one response frame, and keep it."""

    def send_now(
        self, request: Frame, header: bytes, payload: Sequence[Octets], *, is_end: bool
    ) -> None:
        """Send one response frame for which room is reserved."""


class ServerCall:
    """One request being served."""

    def __init__(
        self, frame: Frame, responder: Responder, peer_name: str, isolation: str = ""
    ) -> None:
        assert not isolation or is_isolation_class(isolation), "checked when it was agreed on"
        self.opcode = Opcode(frame.opcode)
        self.payload = memoryview(frame.payload)
        self.peer_name = peer_name
        self.isolation = isolation
        """The isolation class of the connection, "" for none."""
        self._frame = frame
        self._responder = responder

    def decode(self, table: type[T]) -> T:
        """Return the request's header. Raises HeaderError when it is not a valid `table`."""
        return decode_header(table, self._frame.header)

    async def respond(
        self, header: object, payload: Sequence[Octets] = (), *, is_end: bool = True
    ) -> None:
        """Send one response frame, as soon as the peer's socket takes it."""
        await self._responder.send_response(
            self._frame, encode_header(header), payload, is_end=is_end
        )

    def reserve(self) -> AbstractAsyncContextManager[None]:
        """Wait until the peer has room for one response frame; keep it while the body runs.

        For a response whose making holds what others wait for: those must not wait for this peer.
        A connection makes RESPONSES_RESERVED_MAX such responses at a time.
        """
        return self._responder.reserve()

    def respond_now(self, header: object, payload: Sequence[Octets], *, is_end: bool) -> None:
        """Send one response frame without waiting; once within `reserve`."""
        self._responder.send_now(self._frame, encode_header(header), payload, is_end=is_end)


Handler = Callable[[ServerCall], Awaitable[None]]


class Dispatcher:
    """Serves requests by opcode. Whatever a handler raises becomes a system error frame."""

    def __init__(self, handlers: Mapping[Opcode, Handler], *, server_name: str) -> None:
        self._handlers = handlers
        self._server_name = server_name

    async def serve(self, frame: Frame, responder: Responder, peer_name: str) -> None:
        """Run the handler of `frame`."""
        handler = self._handlers.get(Opcode(frame.opcode))
        try:
            if handler is None:
                raise UnsupportedError(
                    StatusCode.UNSUPPORTED_OPERATION,
                    f"{Opcode(frame.opcode).name} is not served by a {self._server_name}",
                )
            await handler(ServerCall(frame, responder, peer_name))
        except SbpError as error:
            _LOG.debug("%s: %s failed: %s", peer_name, Opcode(frame.opcode).name, error)
            await responder.send_system_error(frame, error)
        except Exception:  # noqa: BLE001 - a server outlives the mistakes of its handlers
            _LOG.exception("%s: %s failed unexpectedly", peer_name, Opcode(frame.opcode).name)
            failure = StatusError(
                StatusCode.UNKNOWN, f"the {self._server_name} failed unexpectedly; see its log"
            )
            await responder.send_system_error(frame, failure)
