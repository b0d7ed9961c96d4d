"""Limits for the bytes of a server: the answer of a call, and frames that no call waits for."""

from __future__ import annotations

from dataclasses import dataclass

from sbp_core import limits
from sbp_core.client.operations.open_calls import Sink
from sbp_core.errors import ProtocolError, SbpError, ThrottledError
from sbp_core.wire.frame import Frame


@dataclass(slots=True, eq=False)
class Ticket:
    """A call that a caller waits for. A call that is held has no id.

    `bytes_max` bounds the answer, so that an answer without an end becomes an error. `throttled_ms`
    is the part of the server's waits that the call's deadline includes already.
    """

    sink: Sink
    bytes_max: int = limits.ANSWER_BYTES_MAX
    call_id: int | None = None
    received_bytes: int = 0
    throttled_ms: float = 0.0

    def maybe_excess(self, frame: Frame) -> ProtocolError | None:
        """Count a frame; return an error if the answer of the call is too long."""
        self.received_bytes += len(frame.header) + len(frame.payload) + limits.ANSWER_FRAME_BYTES
        if self.received_bytes <= self.bytes_max:
            return None
        return ProtocolError(
            f"the answer has no end after {self.bytes_max} bytes, the most that this call accepts"
        )


class Unasked:
    """Counts the frames that no call waits for, and the answers that they make the client send.

    A client answers PING and HEARTBEAT, drops late answers, and skips unknown frames. All of these
    are legal, so a server may send them without end. Unasked frames cost a bounded amount of
    memory, and then the connection. The counts start again when a frame arrives that a call waits
    for, and when all bytes are sent.
    """

    def __init__(self) -> None:
        self._received_bytes = 0
        self._frames_before = 0
        self._answer_bytes = 0

    def on_received(self, count: int) -> None:
        """Count bytes from the server, of any frame."""
        self._received_bytes += count

    def on_awaited(self, frame_count: int) -> None:
        """Start to count again: a call waited for the last of the `frame_count` frames so far."""
        self._received_bytes = 0
        self._frames_before = frame_count

    def on_sent(self) -> None:
        """Start to count again: the system has taken all answers so far."""
        self._answer_bytes = 0

    def check_received(self, frame_count: int) -> None:
        """Raise ProtocolError if the server sent too many frames that no call waits for."""
        frames = frame_count - self._frames_before
        if frames > limits.UNASKED_FRAMES_MAX or self._received_bytes > limits.UNASKED_BYTES_MAX:
            raise ProtocolError(
                f"the server sent {frames} frames, {self._received_bytes} bytes, that no call waits"
                f" for; at most {limits.UNASKED_FRAMES_MAX} frames and {limits.UNASKED_BYTES_MAX}"
                " bytes are accepted"
            )

    def maybe_refusal(self, request: Frame, unsent_bytes: int) -> SbpError | None:
        """Return why a large request is refused while the server reads slowly, or None."""
        echo_bytes = len(request.header) + len(request.payload)
        if echo_bytes <= limits.PING_ECHO_BYTES or unsent_bytes <= limits.PING_UNSENT_BYTES_MAX:
            return None
        return ThrottledError.of(
            f"{unsent_bytes} bytes wait to be sent on this connection; a request of {echo_bytes}"
            f" bytes is echoed while there are {limits.PING_UNSENT_BYTES_MAX} at most"
        )

    def on_answer(self, answer_bytes: int) -> None:
        """Count an answer. Raises ProtocolError if the server does not read earlier answers."""
        self._answer_bytes += min(answer_bytes, limits.PING_ECHO_BYTES)
        if self._answer_bytes > limits.ANSWERS_UNSENT_BYTES_MAX:
            raise ProtocolError(
                f"the server asks, and does not read the answers: {self._answer_bytes} bytes wait;"
                f" at most {limits.ANSWERS_UNSENT_BYTES_MAX} are kept"
            )
