"""One end of an SBP connection, without I/O and without a clock.

Bytes go in, events come out; calls and responses go in, bytes come out. Both ends obey the same
tables (states.py): read these first. The owner has the deadlines and sockets: conversation.py in
the client, peer.py in the server. A client without deadlines is a loop:

    call_id, buffers = connection.start_call(Opcode.PING)
    socket.sendmsg(buffers)
    while count := socket.recv_into(connection.decoder.get_buffer()):
        if connection.buffer_updated(count):
            for event in connection.events():  # ResponseReceived, ..., ConnectionBroken
                ...

SPEC "Call ids": a request and its answering frames have the same id. Ids are issued in ascending
order, each once. An answer to an id that is no longer open is late, and is dropped. An answer to an
id that was never issued breaks the protocol.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from sbp_core import limits
from sbp_core.errors import (
    ConnectError,
    ConnectionLostError,
    FrameError,
    ProtocolError,
    SbpError,
    ShuttingDownError,
    ThrottledError,
)
from sbp_core.session.negotiation import NOTHING, Agreement
from sbp_core.session.states import (
    CALL,
    CONNECTION,
    CallFailed,
    CallInput,
    CallState,
    ConnectionBroken,
    ConnectionInput,
    ConnectionState,
    Event,
    GoawayReceived,
    RequestReceived,
    RequestRefused,
    ResponseReceived,
)
from sbp_core.wire.checksum import Buffer
from sbp_core.wire.frame import (
    Frame,
    FrameDecoder,
    HeaderChecksum,
    decompress,
    encode_frame,
    maybe_compress,
)
from sbp_core.wire.headers import SystemErrorResponse, decode_system_error, encode_header
from sbp_core.wire.opcodes import Flag, Opcode
from sbp_core.wire.status import maybe_error, status_for


@dataclass(slots=True)
class _OpenCall:
    opcode: int
    state: CallState = CallState.WAITING


class Payload(Struct, frozen=True):
    """The payload of a frame as it goes over the wire, and its CRC-32 where that is known."""

    parts: Sequence[Buffer] = ()
    is_compressed: bool = False
    crc32: int | None = None


_EMPTY: Final = Payload()

_REQUEST: Final = int(Flag.REQUEST)
_PART: Final = int(Flag.RESPONSE)
_LAST: Final = int(Flag.RESPONSE | Flag.END)
_ERROR: Final = int(Flag.RESPONSE | Flag.END | Flag.SYSTEM_ERROR)
_COMPRESSED: Final = int(Flag.COMPRESSED)


class Connection:
    """The conversation on one connection: our calls, and the requests of the peer.

    The connection receives frames of up to `frame_bytes_max`, and sends frames of the agreed size.
    """

    def __init__(self, frame_bytes_max: int = limits.FRAME_BYTES_MAX) -> None:
        self.state = ConnectionState.OPEN
        self.agreement = NOTHING
        self._frame_bytes_max = frame_bytes_max
        self.decoder = FrameDecoder(frame_bytes_max)
        """Accepts the bytes from the peer, and knows how much of the next frame is here."""
        self._next_call_id = 1
        self._calls: dict[int, _OpenCall] = {}
        self._requests: set[int] = set()

    # Features that both ends agreed on.

    def adopt(self, agreement: Agreement, *, is_client: bool) -> None:
        """Use the agreed features from the next frame on, in both directions.

        The client calls it with the answer to its HEARTBEAT, the server once it has sent the
        answer. Frames that the server receives may have been sent before the answer arrived.
        """
        self.agreement = agreement
        if agreement.has_header_checksum:
            self.decoder.header_checksum = (
                HeaderChecksum.REQUIRED if is_client else HeaderChecksum.ACCEPTED
            )

    def pack(self, parts: Sequence[Buffer], crc32: int | None = None) -> Payload:
        """Compress a payload if compression was agreed on and pays. For any thread.

        `crc32` is the checksum of the parts if it is known.
        """
        if self.agreement.has_compression:
            compressed = maybe_compress(parts, self.agreement.sizes.frame_bytes)
            if compressed is not None:
                return Payload((compressed,), is_compressed=True)
        return Payload(parts, crc32=crc32)

    # Our calls.

    def start_call(
        self, opcode: Opcode, header: bytes = b"", payload: Sequence[Buffer] = ()
    ) -> tuple[int, list[Buffer]]:
        """Open a call; return its id and the bytes to send.

        Raises ShuttingDownError after GOAWAY, ConnectError after the end, ThrottledError at
        the limit of open calls, FrameError when the request is too large. Nothing is sent then.
        """
        if not self._enter(ConnectionInput.START_CALL):
            raise self._refusal()
        if len(self._calls) >= limits.CALLS_IN_FLIGHT_MAX:
            raise ThrottledError.of(
                f"{limits.CALLS_IN_FLIGHT_MAX} calls are open on this connection already"
            )
        call_id = self._next_call_id
        buffers = self._encode(opcode, _REQUEST, call_id, header, self.pack(payload))
        # After the encoding: a request that is too large raises, and must not issue an id.
        self._next_call_id = call_id % limits.CALL_ID_MAX + 1
        self._calls[call_id] = _OpenCall(opcode)
        return call_id, buffers

    def abandon_call(self, call_id: int) -> None:
        """Stop listening for the answer of a call; it is dropped when it comes."""
        call = self._calls.get(call_id)
        if call is not None:
            # The call stays open until its answer ends, and counts against the limit of calls.
            self._move(call, CallInput.ABANDON)

    # The peer's requests.

    def send_response(
        self,
        request: Frame,
        header: Buffer = b"",
        payload: Payload | Sequence[Buffer] = (),
        *,
        is_end: bool = True,
    ) -> list[Buffer]:
        """Return the bytes of one frame that answers `request`; nothing once it is answered.

        A payload that is not packed yet is packed. Raises FrameError if the answer is too large for
        one frame.
        """
        if request.call_id not in self._requests:  # a system error has ended it, or the connection
            return []
        flags = _LAST if is_end else _PART
        packed = payload if isinstance(payload, Payload) else self.pack(payload)
        buffers = self._encode(request.opcode, flags, request.call_id, bytes(header), packed)
        if is_end:
            self._requests.discard(request.call_id)
        return buffers

    def send_system_error(self, request: Frame, error: SbpError) -> list[Buffer]:
        """Return the bytes of a system error frame (SPEC "Errors that end a connection")."""
        self._requests.discard(request.call_id)
        return self._encode_error(request.opcode, request.call_id, error)

    def send_farewell(self, error: SbpError) -> list[Buffer]:
        """Return the bytes of a GOAWAY that reports why the connection is being closed."""
        return self._encode_error(Opcode.GOAWAY, 0, error)

    def send_goaway(self) -> list[Buffer]:
        """Return the bytes of a GOAWAY request; nothing if either side has sent one already.

        No new calls are accepted from now on.
        """
        if not self._enter(ConnectionInput.SEND_GOAWAY):
            return []
        return self._encode(Opcode.GOAWAY, _REQUEST, 0)

    # Bytes from the peer.

    def buffer_updated(self, count: int) -> bool:
        """Accept `count` bytes that were written into `decoder.get_buffer()`.

        Return whether there may be an event now; if not, `events` need not be called.
        """
        self.decoder.buffer_updated(count)
        return not self.decoder.is_mid_body

    def events(self) -> Iterator[Event]:
        """Yield the events in the bytes so far. ConnectionBroken is the last one."""
        if self.state is ConnectionState.CLOSED:
            return
        try:
            for frame in map(self._unpack, self.decoder.frames()):
                event = self._on_response(frame) if frame.is_response else self._on_request(frame)
                if event is not None:
                    yield event
        except (ProtocolError, ThrottledError) as error:
            yield from self.close(error)
            yield ConnectionBroken(error)

    def close(self, reason: SbpError | None = None) -> list[CallFailed]:
        """Fail the open calls, because the connection ended.

        The outcome of the calls is unknown, unless the peer was over its limit and read none.
        """
        self._enter(ConnectionInput.CLOSE)
        self.decoder.drop()
        calls, self._calls = self._calls, {}
        self._requests.clear()
        text = f"the connection ended: {reason}" if reason else "the connection ended"
        failed = []
        for call_id, call in calls.items():
            if call.state is not CallState.ABANDONED:
                error: SbpError = ConnectionLostError(f"{text} (during {_name(call.opcode)})")
                error.__cause__ = reason
                if isinstance(reason, ThrottledError):
                    error = reason
                failed.append(CallFailed(call_id, error))
        return failed

    def _encode(
        self, opcode: int, flags: int, call_id: int, header: bytes = b"", payload: Payload = _EMPTY
    ) -> list[Buffer]:
        if payload.is_compressed:
            flags |= _COMPRESSED
        return encode_frame(
            opcode,
            flags,
            call_id,
            header,
            payload.parts,
            payload_crc32=payload.crc32,
            covers_header=self.agreement.has_header_checksum,
            bytes_max=self.agreement.sizes.frame_bytes,
        )

    def _encode_error(self, opcode: int, call_id: int, error: SbpError) -> list[Buffer]:
        header = encode_header(SystemErrorResponse(status=status_for(error)))
        return self._encode(opcode, _ERROR, call_id, header)

    def _unpack(self, frame: Frame) -> Frame:
        if frame.is_compressed and self.agreement.has_compression:
            return replace(frame, payload=decompress(frame.payload, self._frame_bytes_max))
        return frame

    def _on_request(self, frame: Frame) -> Event | None:
        if frame.opcode == Opcode.GOAWAY:
            self._enter(ConnectionInput.RECEIVE_GOAWAY)
            return GoawayReceived()
        if frame.call_id > limits.CALL_ID_MAX:
            raise FrameError(f"call id {frame.call_id} is negative as an int32; expected 0 or more")
        if frame.call_id in self._requests:
            raise FrameError(f"call id {frame.call_id} is in use by a request that is still open")
        # A refusal is an answer, no error of the connection: our GOAWAY may not have arrived yet.
        if not self._enter(ConnectionInput.RECEIVE_REQUEST):
            return RequestRefused(frame, self._refusal())
        if len(self._requests) >= limits.CALLS_IN_FLIGHT_MAX:
            error = ThrottledError.of(
                f"{limits.CALLS_IN_FLIGHT_MAX} requests are open on this connection already"
            )
            return RequestRefused(frame, error)
        self._requests.add(frame.call_id)
        return RequestReceived(frame)

    def _on_response(self, frame: Frame) -> Event | None:
        call = self._calls.get(frame.call_id)
        if call is None:
            if frame.opcode == Opcode.GOAWAY and frame.is_system_error:
                raise self._farewell(frame)
            if frame.opcode == Opcode.GOAWAY and self.state is ConnectionState.DRAINING:
                return None  # an answer to ours, from a peer that gives one
            if 0 < frame.call_id < self._next_call_id:
                return None
            raise FrameError(f"an answer to call id {frame.call_id}, which was never issued")
        if call.opcode != frame.opcode:
            raise FrameError(
                f"call {frame.call_id} is {_name(call.opcode)}, its answer {_name(frame.opcode)}"
            )
        was_abandoned = call.state is CallState.ABANDONED
        self._move(call, CallInput.END if frame.is_end else CallInput.PART)
        if call.state is CallState.FINISHED:
            del self._calls[frame.call_id]
        return None if was_abandoned else ResponseReceived(frame.call_id, frame)

    def _farewell(self, frame: Frame) -> SbpError:
        """Return why the peer closes the connection.

        A peer that is over its limit and says so at once has looked at nothing.
        """
        error = maybe_error(decode_system_error(frame.header).status)
        if isinstance(error, ThrottledError) and self.decoder.frame_count == 1:
            return error
        return ProtocolError(f"the peer closes the connection: {error or 'no reason given'}")

    def _enter(self, received: ConnectionInput) -> bool:
        """Go to the next state and return True; a refused input returns False."""
        target = CONNECTION.maybe_next(self.state, received)
        if target is None:
            return False
        self.state = target
        return True

    def _move(self, call: _OpenCall, received: CallInput) -> None:
        target = CALL.maybe_next(call.state, received)
        assert target is not None, (call, received)
        call.state = target

    def _refusal(self) -> SbpError:
        if self.state is ConnectionState.DRAINING:
            return ShuttingDownError.of("this connection is going away; use another one")
        return ConnectError("the connection is closed; nothing was sent")


def _name(opcode: int) -> str:
    try:
        return Opcode(opcode).name
    except ValueError:
        return f"opcode {opcode:#06x}"
