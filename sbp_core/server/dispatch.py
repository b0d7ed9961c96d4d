"""From a request frame to the handler of its opcode, and from what that returns to an answer.

A handler is a coroutine function that returns one `Response`, or an iterator of several, and raises
SbpError to refuse the request as a whole. Requests of a connection begin in the order in which they
arrive, each up to where it waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from sbp_core import limits
from sbp_core.errors import (
    FrameError,
    HeaderError,
    RequestTimeoutError,
    SbpError,
    StatusCode,
    StatusError,
    UnsupportedError,
)
from sbp_core.server.audit import AuditTrail
from sbp_core.server.budget import Held, memory_bytes
from sbp_core.server.eager import start
from sbp_core.server.gate import Gate
from sbp_core.server.metrics import RequestTimes
from sbp_core.server.request_checks import check_item_count
from sbp_core.server.runtime import Clock
from sbp_core.server.trust import ServerRole, is_denial
from sbp_core.session.connection import Payload
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import (
    ITEM_FIELDS,
    ClientRole,
    HeartbeatRequest,
    HeartbeatResponse,
    decode_measured,
    encode_header,
)
from sbp_core.wire.opcodes import WITH_PAYLOAD, Opcode
from sbp_core.wire.status import with_duration

if TYPE_CHECKING:
    from sbp_core.server.peer import Peer

T = TypeVar("T")

_LOG: Final = logging.getLogger(__name__)

_NOTHING: Final = Payload()

_CLUSTER_ROLES: Final = frozenset({ClientRole.RANGE_SERVER, ClientRole.PD})
"""Heartbeats of servers count as use of a connection, heartbeats of clients do not."""


class Response(Struct):
    """One response frame. The last frame of a call `is_end`.

    `is_reserved`: room for the frame is kept at the peer until it was sent (`Peer.reserve`).
    `payload` is emptied as the frame is sent: the response may live while the next frame waits for
    a slow peer. `on_sent` is called afterwards.
    """

    header: Any
    payload: Payload = _NOTHING
    is_end: bool = True
    is_reserved: bool = False
    on_sent: Callable[[], None] | None = None


Answer = Response | AsyncGenerator[Response]
Handler = Callable[["ServerCall"], Awaitable[Answer]]

OnEnd = Callable[[Exception | None], None]
"""Called at the end of a call; with the error, if not even that could be sent."""


class ServerCall:
    """One request being served."""

    def __init__(
        self,
        frame: Frame,
        operation: Opcode,
        peer: Peer,
        role: ServerRole,
        clock: Clock,
        *,
        gate: Gate,
        audit: AuditTrail,
        times: RequestTimes,
        received_at: float,
        held: Held | None = None,
    ) -> None:
        self._gate = gate
        self._times = times
        self._audited = audit.maybe_call(operation, frame.header, peer.name)
        self.opcode = operation
        self.payload = memoryview(frame.payload if operation in WITH_PAYLOAD else b"")
        self._held = held
        self.memory_bytes = memory_bytes(frame) if held is None else held.size
        """Bytes of memory that the request counts for while it is worked on."""
        self.agreement = peer.agreement
        self._frame = frame
        self.peer = peer
        """The connection that the request came from."""
        self._role = role
        self._clock = clock
        self._began_at = clock.monotonic()
        self._received_at = received_at
        self._give_up_at: float | None = None
        """When the caller stops waiting for the answer, by the loop's clock; None if not known."""
        self._patience: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_late = False
        self._narrowed: Any = None
        self.judge_again: JudgeAgain | None = None
        """Judges the rights of the caller once more; None for a caller that may do everything."""

    @property
    def restricted_subject(self) -> str | None:
        """Whose rights decide what the caller may do; None if it may do everything."""
        identity = self.peer.standing.identity
        if identity is None or identity.is_server or identity.is_admin:
            return None
        return identity.subject

    def yield_for_others(self, on_wanted: Callable[[], None]) -> None:
        """Call `on_wanted`, at most once, when others wait for memory that the request holds.

        For a call that waits and need not: it should come to an end then.
        """
        if self._held is not None:
            self._held.yield_for_others(on_wanted)

    def decode(self, table: type[T]) -> T:
        """Return the request's header. Raises HeaderError when it is not a valid `table`.

        Raises InvalidRequestError for more than STREAMS_PER_REQUEST_MAX items.

        Where deadlines were agreed on, the call ends when the `timeout_ms` of the header is over:
        the caller has stopped waiting. Raises RequestTimeoutError if that is so already.
        """
        if self._narrowed is not None:
            narrowed: T = self._narrowed
            return narrowed
        header, decoded_bytes = decode_measured(table, self._frame.header)
        self._keep_only(decoded_bytes)
        for name in ITEM_FIELDS.get(table, ()):
            check_item_count(len(getattr(header, name)))
        if self._audited is not None:
            self._audited.decoded(header)
        if isinstance(header, HeartbeatRequest) and header.client_role in _CLUSTER_ROLES:
            self._gate.check_is_server(self.peer, self.opcode, self._clock.wall_ms())
        timeout_ms = getattr(header, "timeout_ms", 0)
        if self.agreement.has_deadline and timeout_ms > 0:
            self._give_up_at = self._received_at + timeout_ms / 1000
            if self._give_up_at <= asyncio.get_running_loop().time():
                raise _late()
            self._limit_wait()
        return header

    def narrow(self, request: object) -> None:
        """Let `decode` return this from now on: the request, or what is left of it to be served."""
        self._narrowed = request

    def _keep_only(self, decoded_bytes: int) -> None:
        """Release the bytes of the request, except the decoded header and the payload."""
        frame = self._frame
        size = decoded_bytes + len(self.payload) + limits.REQUEST_OVERHEAD_BYTES
        self._frame = Frame(frame.opcode, frame.flags, frame.call_id)
        if size != self.memory_bytes and self._held is not None:
            self.memory_bytes = size
            self._held.settle(size)

    def note_task(self, task: asyncio.Task[None]) -> None:
        """Note that the call waits in a task: past its deadline, that is cancelled."""
        self._task = task
        self._limit_wait()

    def _limit_wait(self) -> None:
        if self._task is not None and self._give_up_at is not None:
            loop = asyncio.get_running_loop()
            self._patience = loop.call_at(self._give_up_at, self._give_up)

    def _give_up(self) -> None:
        assert self._task is not None
        self._is_late = self._task.cancel()

    async def serve(self, handler: Handler, on_end: OnEnd) -> None:
        """Answer with what a handler returns, or with the error that it raises.

        `on_end` is called last: it costs less than a callback of the task.
        """
        unsent: Exception | None = None
        try:
            await self._serve(handler)
        except Exception as error:  # noqa: BLE001 - nothing could be sent, the error neither
            unsent = error
        finally:
            if self._patience is not None:
                self._patience.cancel()
            try:
                self._write_audit_events()
            finally:
                on_end(unsent)

    def _write_audit_events(self) -> None:
        """Write the audit events of the call; a failure is logged, for the answer has been sent."""
        if self._audited is None:
            return
        try:
            self._audited.end(self.peer.standing, self._clock.wall_ms())
        except Exception:  # noqa: BLE001 - the call has ended, and must give back what it holds
            _LOG.exception(
                "audit event lost operation=%s peer=%s", self.opcode.name, self.peer.name
            )

    async def _serve(self, handler: Handler) -> None:
        try:
            await self._answer(await handler(self))
        except asyncio.CancelledError:
            if not self._is_late or self._task is None or self._task.uncancel():
                raise
            await self.fail(_late())
        except Exception as error:  # noqa: BLE001 - a server outlives the mistakes of its handlers
            await self.fail(error)

    async def _answer(self, answer: Answer) -> None:
        if isinstance(answer, Response):
            await self._send(answer)
            return
        try:
            async for each in answer:
                await self._send(each)
        finally:
            await answer.aclose()

    async def fail(self, error: Exception) -> None:
        """Answer with a system error frame."""
        self._times.add_failed(self.opcode, self._clock.monotonic() - self._began_at)
        if self._audited is not None:
            self._audited.failed(error)
        about = self.opcode.name, self.peer.name
        if isinstance(error, SbpError):
            level = logging.WARNING if is_denial(error) else logging.DEBUG
            _LOG.log(level, "request failed operation=%s peer=%s: %s", *about, error)
            await self.peer.send_system_error(self._frame, error)
            return
        _LOG.error("request failed unexpectedly operation=%s peer=%s", *about, exc_info=error)
        failure = StatusError(
            StatusCode.UNKNOWN, f"the {self._role} failed unexpectedly; see its log"
        )
        await self.peer.send_system_error(self._frame, failure)

    async def _send(self, response: Response) -> None:
        """Send one response frame, as soon as the peer's socket takes it.

        Raises StatusError when it is too large: the request was not at fault, and had its effect.
        """
        payload, response.payload = response.payload, _NOTHING
        is_end = response.is_end
        try:
            encoded = self._encode(response.header, payload, is_end=is_end)
            if response.is_reserved:
                self.peer.send_now(self._frame, encoded, payload, is_end=is_end)
            else:
                await self.peer.send_response(self._frame, encoded, payload, is_end=is_end)
        except (FrameError, HeaderError) as error:
            raise StatusError(StatusCode.UNKNOWN, f"the answer cannot be sent: {error}") from error
        if response.on_sent is not None:
            response.on_sent()

    async def greet(self, request: HeartbeatRequest, response: HeartbeatResponse) -> Response:
        """Return the answer to a HEARTBEAT, and agree on the features that it offers.

        They hold from the frame behind the answer on. A token that the request has gives the
        connection an identity, or the answer says why not. Features of the `response` are accepted
        by the handler itself.
        """
        if request.client_role in _CLUSTER_ROLES:
            self.peer.note_use()
        if self._gate.wants_keys(request, self._clock.wall_ms()):
            await self._gate.fetch_keys()
        response = self._gate.greet(self.peer, request, response, self._clock.wall_ms())
        agreement, features = self.peer.negotiate(request.features)
        return Response(
            replace(response, features=(*features, *response.features)),
            on_sent=partial(self.peer.adopt, agreement),
        )

    def _encode(self, header: object, payload: Payload, *, is_end: bool) -> bytes:
        if self._audited is not None:
            self._audited.answered(header, is_end=is_end)
        if is_end:
            header = self.peer.throttled(header, payload)
            seconds = self._clock.monotonic() - self._began_at
            self._times.add(self.opcode, seconds)
            if self.agreement.has_handler_duration:
                header = with_duration(header, seconds)
        return encode_header(header)


def _late() -> RequestTimeoutError:
    """Return the error of a call whose caller has stopped waiting."""
    return RequestTimeoutError.of("not done within the timeout_ms of the request")


JudgeAgain = Callable[[Sequence[int]], Awaitable[Sequence[SbpError | None]]]
"""Returns why the caller may not use streams by now, None for each stream that it may use.

A handler asks before it answers a request that has waited: the right may have been revoked.
"""


class Dispatcher:
    """Serves requests by opcode. Whatever a handler raises becomes a system error frame."""

    def __init__(
        self,
        handlers: Mapping[Opcode, Handler],
        *,
        role: ServerRole,
        clock: Clock,
        gate: Gate | None = None,
        times: RequestTimes | None = None,
    ) -> None:
        self._role = role
        self._audit = AuditTrail(str(role))
        self.times: Final = times or RequestTimes()
        self.gate = gate or Gate()
        self._handlers = handlers
        self._clock = clock

    def begin(
        self,
        frame: Frame,
        peer: Peer,
        *,
        received_at: float,
        on_end: OnEnd,
        held: Held | None = None,
    ) -> asyncio.Task[None] | None:
        """Serve `frame`, which came at `received_at` of the loop's clock, up to where it waits.

        Return the task of the rest, None if nothing is left. `held` is what the request counts for.
        `on_end` is called when the call ends.
        """
        operation = Opcode(frame.opcode)
        call = ServerCall(
            frame,
            operation,
            peer,
            self._role,
            self._clock,
            gate=self.gate,
            audit=self._audit,
            times=self.times,
            received_at=received_at,
            held=held,
        )
        task = start(call.serve(self._serve, on_end))
        if task is not None:
            call.note_task(task)
        return task

    async def _serve(self, call: ServerCall) -> Answer:
        self.gate.check(call.peer, call.opcode, self._clock.wall_ms())
        handler = self._handlers.get(call.opcode)
        if handler is None:
            remedy = ""
            if self._role is ServerRole.RANGE_SERVER:
                remedy = "; give the endpoint of a placement driver"
            raise UnsupportedError(
                StatusCode.UNSUPPORTED_OPERATION,
                f"{call.opcode.name} is not served by a {self._role}{remedy}",
            )
        return await handler(call)
