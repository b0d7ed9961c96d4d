"""How a client connects: to which endpoints, with which wishes, and who watches its calls."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from sbp_core import limits
from sbp_core.client.programs.program import Call, Sink
from sbp_core.errors import ConfigurationError, HeaderError, SbpError
from sbp_core.session.negotiation import NO_WISHES, Wishes
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import RESPONSE_TABLES, decode_header

_ENDPOINT: Final = re.compile(
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<host>[^\s:\[\]/@,?#%]+))"
    r":(?P<port>[0-9]{1,5})"
)
_UNSHOWN: Final = re.compile(r"[/?#%].*", re.DOTALL)
"""What follows an address in a URL: it may hold a password."""


def parse_endpoint(text: str) -> tuple[str, int]:
    """Return (host, port) of "host:port"; an IPv6 address stands in brackets.

    A host name is in its ASCII form. Raises ConfigurationError for anything else.
    """
    if len(text) > limits.ADDRESS_LENGTH_MAX:
        raise ConfigurationError(
            f"an endpoint of {len(text)} characters is too long;"
            f" host:port has {limits.ADDRESS_LENGTH_MAX} at most"
        )
    found = _ENDPOINT.fullmatch(text)
    is_text = text.isascii() and text.isprintable()
    if found is None or not is_text or not 0 < int(found["port"]) < 65536:
        raise _wrong(text)
    if found["ipv6"] is not None and not _is_ipv6(found["ipv6"]):
        raise _wrong(text)
    return found["ipv6"] or found["host"], int(found["port"])


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def _wrong(text: str) -> ConfigurationError:
    if "@" in text:  # may hold a password, so it is not shown
        return ConfigurationError(
            "the endpoint has an '@': leave out user and password, there is no option for them;"
            " write host:port"
        )
    shown = _UNSHOWN.sub("...", text)
    return ConfigurationError(
        f"endpoint {shown!a} is not host:port; write for example 127.0.0.1:12378,"
        " log.example.org:12378 or [::1]:12378"
    )


@dataclass(frozen=True, slots=True)
class Connecting:
    """How long a connection may take to be made, what to ask the server for, and who watches.

    `on_timing` is called with each call that was answered, in whichever thread noticed it; it must
    return at once.
    """

    timeout_ms: int = limits.CONNECT_TIMEOUT_MS
    wishes: Wishes = NO_WISHES
    on_timing: OnTiming | None = None

    @property
    def all_wishes(self) -> Wishes:
        """The wishes, with what `on_timing` needs."""
        return replace(self.wishes, handler_duration=self.on_timing is not None)


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
