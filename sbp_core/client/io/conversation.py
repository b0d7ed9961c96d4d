"""One connection of a client, without I/O: the session, and the calls that wait for answers.

The answer to the greeting has the features that the server accepts. Calls that depend on features
are held until then; all others are sent at once. Read `Conversation.start` and
`Conversation.receive` first.
"""

from __future__ import annotations

import contextlib
import enum
import os
import socket
import time
from collections.abc import Callable
from typing import Final

from sbp_core import limits
from sbp_core.access.credentials import BearerToken, Credentials
from sbp_core.client.io.answer_limits import Ticket, Unasked
from sbp_core.client.io.identifying import Identifying
from sbp_core.client.io.throttling import Throttling
from sbp_core.client.operations.open_calls import Call, Sink
from sbp_core.errors import (
    ConfigurationError,
    ConnectError,
    ConnectionLostError,
    DeadlineExceededError,
    HeaderError,
    NotLeaderError,
    Outcome,
    ProtocolError,
    SbpError,
    StatusCode,
    ThrottledError,
    UnauthenticatedError,
    UnsupportedError,
)
from sbp_core.record_sizes import LARGEST
from sbp_core.session.connection import Connection
from sbp_core.session.negotiation import Agreement, FeatureName, RequestedFeatures, offer, settle
from sbp_core.session.states import (
    CallFailed,
    ConnectionBroken,
    ConnectionState,
    Event,
    RequestReceived,
    RequestRefused,
    ResponseReceived,
)
from sbp_core.wire.checksum import Buffer
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import (
    ClientRole,
    Feature,
    HeartbeatRequest,
    HeartbeatResponse,
    decode_header,
    decode_system_error,
    encode_header,
    throttle_ms_in,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error

_WITHOUT: Final = {
    FeatureName.IDEMPOTENT_APPEND: "idempotent appends: upgrade it, or append without a writer",
    FeatureName.TRANSACTIONS: "transactions: upgrade it, or append without one",
    FeatureName.PART_COLUMNS: "decisions of many parts: upgrade it, or write with fewer tasks",
    FeatureName.SCHEMAS: "schemas of streams: upgrade it, or write and read without one",
    FeatureName.GROUPS: "members of consumer groups: upgrade the placement driver",
    FeatureName.COMPARE_AND_SET: "properties and expected cursors: upgrade the placement driver",
    FeatureName.REPLICATION: "copies of ranges in a version known here: upgrade the older server",
}
"""By feature of a call: what a server without the feature lacks, and the remedy."""


class Phase(enum.Enum):
    """Life of a client's connection."""

    CONNECTING = "not connected yet; calls are queued"
    OPEN = "connected"
    RETIRED = "not trusted any more: open calls finish, new ones go elsewhere"
    CLOSED = "over; its calls have their errors"


class Conversation:
    """The calls of one connection to `endpoint`, for one thread.

    A sink gets the frames of its call's answer, or one error, and must not block.
    """

    def __init__(
        self,
        endpoint: str,
        client_id: str,
        features: RequestedFeatures,
        credentials: Credentials | BearerToken | None = None,
        *,
        identity: str = "none",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoint = endpoint
        self.phase = Phase.CONNECTING
        self._client_id = client_id
        self._offer = offer(features)
        self._greeting_id = 0
        self._session = Connection(LARGEST.frame_bytes)
        self._unasked = Unasked()
        self._is_greeted = False
        self._refusal: UnauthenticatedError | None = None
        self._identifying = None if credentials is None else Identifying(credentials)
        self._renewal_id: int | None = None
        """The call id of the HEARTBEAT that renews the identity, until it is answered."""
        self._held: dict[Ticket, Call] = {}
        self._tickets: dict[int, Ticket] = {}
        self._reason: SbpError | None = None
        self.throttling = Throttling(endpoint, identity, clock)

    @property
    def is_usable(self) -> bool:
        """Whether new calls may be started."""
        is_alive = self.phase is Phase.OPEN or self.phase is Phase.CONNECTING
        return is_alive and self._session.state is ConnectionState.OPEN

    @property
    def is_finished(self) -> bool:
        """Whether no call is open or can be started, so that the owner closes the connection."""
        return not self.is_usable and not self._tickets and not self._held

    @property
    def agreement(self) -> Agreement:
        """The features that hold on this connection: none before the greeting is answered."""
        return self._session.agreement

    def greeting(self) -> list[Buffer]:
        """Return the bytes of the first call: a HEARTBEAT that names the client.

        The greeting offers the features, and the token. Without a token calls need not wait for the
        answer. Raises ConfigurationError if the token cannot be read.
        """
        offered = self._offer
        if self._identifying is not None:
            offered = (*offered, self._identifying.offer())
        self._greeting_id, buffers = self._greet(offered)
        return buffers

    def start(self, call: Call, sink: Sink, unsent_bytes: int = 0) -> tuple[Ticket, list[Buffer]]:
        """Open a call; return its ticket and the bytes to send, none while it is held.

        `unsent_bytes` wait to be sent already. Raises SbpError if the call cannot be sent; other
        calls can be sent while `is_usable`.
        """
        if self._reason is not None:
            raise not_sent(self.endpoint, self._reason)
        if self.phase is Phase.CONNECTING or self.throttling.is_on:
            unsent_bytes += sum(len(part) for each in self._held.values() for part in each.payload)
        if unsent_bytes > limits.UNSENT_BYTES_MAX:
            raise ThrottledError.of(
                f"{unsent_bytes} bytes wait to be sent to {self.endpoint}, which does not read"
                f" them; at most {limits.UNSENT_BYTES_MAX} are kept"
            )
        ticket = Ticket(sink, call.answer_bytes_max, throttled_ms=self.throttling.mark_ms())
        renewal = [*self.resume(), *self._renew_if_due()]
        if self._is_early(call):
            self._held[ticket] = call
            return ticket, renewal
        return ticket, [*renewal, *self._send(ticket, call)]

    def on_connected(self) -> list[Buffer]:
        """Record that the connection is made; return the bytes of the calls that wait for it."""
        self.phase = Phase.OPEN
        return self._release()

    def resume(self) -> list[Buffer]:
        """Return the bytes of throttled calls, if the wait that the server asked for is over."""
        if not self.throttling.is_over:
            return []
        self.throttling.end()
        return self._release()

    def extension_ms(self, ticket: Ticket) -> float:
        """Return the waits that the server asked for since the deadline of a call was set last."""
        extension_ms, ticket.throttled_ms = self.throttling.since_ms(ticket.throttled_ms)
        return extension_ms

    def abandon(self, ticket: Ticket) -> None:
        """Stop listening to a call."""
        self._held.pop(ticket, None)
        if ticket.call_id is not None and self._tickets.pop(ticket.call_id, None) is not None:
            self._session.abandon_call(ticket.call_id)

    def expire(self, ticket: Ticket, opcode: Opcode) -> SbpError:
        """Give up a call whose deadline passed; return its error."""
        self.abandon(ticket)
        if self.phase is Phase.CONNECTING:
            return ConnectError(f"no connection to {self.endpoint} in time; nothing was sent")
        # A server that leaves one call unanswered may be stuck: new calls use a new connection.
        self.retire()
        return DeadlineExceededError(f"{self.endpoint} did not answer {opcode.name} in time")

    def retire(self) -> None:
        """Accept no new calls; open calls finish."""
        if self.phase is Phase.OPEN:
            self.phase = Phase.RETIRED

    def get_buffer(self) -> memoryview:
        """Return where the next bytes from the peer go."""
        return self._session.decoder.get_buffer()

    @property
    def missing_bytes(self) -> int:
        """Bytes that have to arrive before there is work; 1 if the number is not known."""
        return self._session.decoder.missing_bytes

    def buffer_updated(self, count: int) -> bool:
        """Accept `count` bytes written into `get_buffer`; return whether to call `receive` now."""
        self._unasked.on_received(count)
        return self._session.buffer_updated(count)

    def receive(self, unsent_bytes: int = 0) -> list[Buffer]:
        """Give complete frames to the waiting calls; return the bytes to send back.

        `unsent_bytes` wait to be sent already. The connection ends if the server sends requests and
        does not read the answers, or sends too many frames that no call waits for.
        """
        outgoing: list[Buffer] = []
        if not unsent_bytes:
            self._unasked.on_sent()
        try:
            for event in self._session.events():
                buffers = self._on_event(event, unsent_bytes)
                unsent_bytes += sum(map(len, buffers))
                outgoing += buffers
            self._unasked.check_received(self._session.decoder.seen_count)
        except ProtocolError as error:
            self.end(lost(self.endpoint, error))
            return []
        return outgoing

    def end(self, error: SbpError) -> None:
        """End the connection: open calls get `error`, held calls that they were not sent."""
        self.phase = Phase.CLOSED
        self._reason = self._reason or error
        self._session.close()
        tickets, held = [*self._tickets.values()], [*self._held]
        self._tickets, self._held = {}, {}
        for ticket in tickets:
            ticket.sink(error)
        for ticket in held:
            ticket.sink(not_sent(self.endpoint, error))

    def _is_early(self, call: Call) -> bool:
        """Whether a call has to wait for the connection, the greeting, or the end of a wait."""
        if self.phase is Phase.CONNECTING or self._session.state is not ConnectionState.OPEN:
            return self.phase is Phase.CONNECTING
        if not self._is_greeted:
            is_large = call.largest_part_bytes > limits.BATCH_BYTES_MAX
            return is_large or call.feature is not None or self._identifying is not None
        is_throttled = self.throttling.is_on and call.opcode is not Opcode.PING
        return self._waits_for_identity or is_throttled

    @property
    def _waits_for_identity(self) -> bool:
        """Whether the identity has ended while it is being renewed."""
        identifying = self._identifying if self._renewal_id is not None else None
        return identifying is not None and identifying.has_ended

    def _release(self) -> list[Buffer]:
        """Send the held calls that need not wait any longer; return their bytes."""
        held, self._held = self._held, {}
        outgoing: list[Buffer] = []
        for ticket, call in held.items():
            if self._is_early(call):
                self._held[ticket] = call
                continue
            try:
                outgoing += self._send(ticket, call)
            except SbpError as error:
                ticket.sink(error)
        return outgoing

    def _send(self, ticket: Ticket, call: Call) -> list[Buffer]:
        if self._refusal is not None and call.opcode is not Opcode.PING:
            raise UnauthenticatedError(self._refusal.code, self._refusal.message)
        # Before the greeting is answered, the session raises the error.
        if self._is_greeted and call.feature is not None and not self.agreement.has(call.feature):
            raise UnsupportedError(
                StatusCode.UNSUPPORTED_OPERATION,
                f"the server at {self.endpoint} does not know {_WITHOUT[call.feature]}",
            )
        self._check_size(call)
        header = b"" if call.header is None else encode_header(call.header)
        ticket.call_id, buffers = self._session.start_call(call.opcode, header, call.payload)
        self._tickets[ticket.call_id] = ticket
        return buffers

    def _check_size(self, call: Call) -> None:
        """Raise ConfigurationError if the server does not accept a batch of this size."""
        sizes = self.agreement.sizes
        if call.largest_part_bytes > sizes.batch_bytes:
            raise ConfigurationError(
                f"a batch of {call.largest_part_bytes} bytes was not sent to {self.endpoint}, which"
                f" accepts {sizes.batch_bytes} for records of up to {sizes.record_bytes}: write"
                " smaller records or batches, or set record_bytes_max of the range server higher,"
                f" {limits.RECORD_BYTES_LARGEST} at most"
            )

    def _on_event(self, event: Event, unsent_bytes: int) -> list[Buffer]:
        if isinstance(event, ResponseReceived):
            return self._on_response(event)
        if isinstance(event, CallFailed):
            ticket = self._tickets.pop(event.call_id, None)
            if ticket is not None:
                ticket.sink(event.error)
        elif isinstance(event, RequestReceived):
            return self._counted(self._answer(event.frame, unsent_bytes))
        elif isinstance(event, RequestRefused):
            return self._counted(self._session.send_system_error(event.frame, event.error))
        elif isinstance(event, ConnectionBroken):
            self.end(lost(self.endpoint, str(event.error)))
        return []

    def _on_response(self, event: ResponseReceived) -> list[Buffer]:
        if event.call_id == self._greeting_id:
            return self._on_greeted(event.frame)
        if event.call_id == self._renewal_id:
            return self._on_renewed(event.frame)
        ticket = self._tickets.get(event.call_id)
        if ticket is None:
            return []
        self._unasked.on_awaited(self._session.decoder.seen_count)
        error = ticket.maybe_excess(event.frame)
        if error is not None:
            del self._tickets[event.call_id]
            error.outcome = Outcome.UNKNOWN
            ticket.sink(error)
            raise error
        if event.frame.is_end:
            del self._tickets[event.call_id]
            if not event.frame.is_system_error:
                self.throttling.told(throttle_ms_in(event.frame.opcode, event.frame.header))
        if event.frame.is_system_error and self._identifying is not None:
            failure = maybe_error(_heartbeat_answer(event.frame).status)
            if isinstance(failure, UnauthenticatedError):
                self.retire()  # the next connection reads the token again
        ticket.sink(event.frame)
        return []

    def _on_greeted(self, frame: Frame) -> list[Buffer]:
        """Adopt the features that the server accepts; return the bytes of the held calls.

        If the server cannot greet now, no feature is declined: held calls use another connection,
        and calls that were sent already get their own answers.
        """
        answer = _heartbeat_answer(frame)
        failure = maybe_error(answer.status)
        if failure is not None and failure.retriable and not isinstance(failure, NotLeaderError):
            self._reason = lost(self.endpoint, f"it refused the greeting: {failure}")
            self.retire()
            held, self._held = self._held, {}
            for ticket in held:
                ticket.sink(not_sent(self.endpoint, self._reason))
            return []
        self._unasked.on_awaited(self._session.decoder.seen_count)
        self._is_greeted = True
        self._session.adopt(settle(self._offer, answer.features), is_client=True)
        if self._identifying is not None and not isinstance(failure, UnauthenticatedError):
            failure = self._identifying.accepted(answer.features) or failure
        if isinstance(failure, UnauthenticatedError):
            self._refuse_calls(failure)
        return self._release()

    def _greet(self, offered: tuple[Feature, ...]) -> tuple[int, list[Buffer]]:
        header = HeartbeatRequest(
            client_id=self._client_id, client_role=ClientRole.CLIENT, features=offered
        )
        return self._session.start_call(Opcode.HEARTBEAT, encode_header(header))

    def _renew_if_due(self) -> list[Buffer]:
        """Return the bytes of the HEARTBEAT that renews the identity, if the renewal is due.

        Raises ConfigurationError if the token cannot be read and the identity has ended.
        """
        identifying = self._identifying
        if identifying is None or self._renewal_id is not None or not identifying.is_due:
            return []
        offered = identifying.maybe_renewal()
        if offered is None:
            return []
        self._renewal_id, buffers = self._greet((offered,))
        return buffers

    def _on_renewed(self, frame: Frame) -> list[Buffer]:
        """Handle the answer to a renewal. After a refusal the former identity holds to its end."""
        assert self._identifying is not None
        self._renewal_id = None
        self._unasked.on_awaited(self._session.decoder.seen_count)
        answer = _heartbeat_answer(frame)
        failure = maybe_error(answer.status)
        if failure is None:
            self._identifying.accepted(answer.features)
        elif isinstance(failure, UnauthenticatedError) and self._identifying.has_ended:
            self._refuse_calls(failure)
        else:
            self._identifying.postpone(failure)
        return self._release()

    def _refuse_calls(self, reason: UnauthenticatedError) -> None:
        """Refuse the waiting calls. Later calls use a new connection, with a new token."""
        self._refusal = reason
        self.retire()

    def _counted(self, answer: list[Buffer]) -> list[Buffer]:
        self._unasked.on_answer(sum(map(len, answer)))
        return answer

    def _answer(self, request: Frame, unsent_bytes: int) -> list[Buffer]:
        """Answer a request of the server: PING with its echo, HEARTBEAT with a HEARTBEAT."""
        refusal = self._unasked.maybe_refusal(request, unsent_bytes)
        if refusal is not None:
            return self._session.send_system_error(request, refusal)
        if request.opcode == Opcode.PING:
            return self._session.send_response(request, request.header, [request.payload])
        if request.opcode == Opcode.HEARTBEAT:
            header = HeartbeatResponse(client_id=self._client_id, client_role=ClientRole.CLIENT)
            return self._session.send_response(request, encode_header(header))
        error = UnsupportedError(
            StatusCode.UNSUPPORTED_OPERATION,
            f"a client does not serve opcode {request.opcode:#06x}",
        )
        return self._session.send_system_error(request, error)


def _heartbeat_answer(frame: Frame) -> HeartbeatResponse:
    """Return the answer to a HEARTBEAT: for an error its status, for unreadable bytes nothing."""
    with contextlib.suppress(HeaderError):
        if frame.is_system_error:
            return HeartbeatResponse(status=decode_system_error(frame.header).status)
        return decode_header(HeartbeatResponse, frame.header)
    return HeartbeatResponse()


def connect_failed(endpoint: str, failure: Exception, connect_seconds: float) -> ConnectError:
    """Return the error of a connection that could not be made, with the reason of the system."""
    reason = str(failure)
    if isinstance(failure, TimeoutError):
        reason = f"no answer within {connect_seconds:g} s"
    elif isinstance(failure, socket.gaierror):
        reason = str(failure.strerror)
    elif isinstance(failure, OSError) and failure.errno is not None and failure.errno > 0:
        reason = os.strerror(failure.errno)
    return ConnectError(f"cannot connect to {endpoint}: {reason}")


def not_sent(endpoint: str, reason: SbpError) -> ConnectError:
    """Return the error of an unsent call, whose connection ended for this reason."""
    if isinstance(reason, ConnectError):
        return reason
    return ConnectError(f"nothing was sent to {endpoint}: {reason}")


def lost(endpoint: str, reason: object) -> ConnectionLostError:
    """Return the error of a connection that ended while calls were open."""
    return ConnectionLostError(f"the connection to {endpoint} ended: {reason}")


def unread(unsent_bytes: int) -> str:
    """Return the reason for ending a connection whose server reads nothing."""
    return (
        f"the server has read nothing for {limits.WRITE_STALL_MS} ms, and {unsent_bytes} bytes wait"
        " to be sent"
    )
