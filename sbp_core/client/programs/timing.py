"""How long calls take, and how much of it the server: for whoever wants to watch a client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sbp_core.client.io.conversation import Sink
from sbp_core.client.programs.program import Call
from sbp_core.errors import HeaderError, SbpError
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import RESPONSE_TABLES, decode_header


@dataclass(frozen=True, slots=True)
class CallTiming:
    """One call that was answered. Times are in ms.

    `round_trip_ms`: from the request to the last frame of the answer. `maybe_server_ms`: what the
    server says that it took of that, long polls included; None if it does not say.
    """

    endpoint: str
    operation: str
    round_trip_ms: float
    maybe_server_ms: float | None


OnTiming = Callable[[CallTiming], None]


def timed(call: Call, sink: Sink, on_timing: OnTiming, clock: Callable[[], float]) -> Sink:
    """Return a sink that passes everything on, and tells `on_timing` of the end of the answer."""
    began_at = clock()

    def on_content(content: Frame | SbpError) -> None:
        ended_at = clock()
        sink(content)
        if isinstance(content, Frame) and content.is_end:
            elapsed_ms = 1000 * (ended_at - began_at)
            server_ms = _maybe_server_ms(call, content)
            on_timing(CallTiming(call.endpoint, call.opcode.name, elapsed_ms, server_ms))

    return on_content


def _maybe_server_ms(call: Call, last: Frame) -> float | None:
    table = RESPONSE_TABLES.get(call.opcode)
    if table is None or last.is_system_error:
        return None
    try:
        status = getattr(decode_header(table, last.header), "status", None)
    except HeaderError:
        return None
    if status is None or status.handler_duration_us < 0:
        return None
    return float(status.handler_duration_us / 1000)
