"""What a connection tells its owner."""

from __future__ import annotations

from msgspec import Struct

from sbp_core.errors import SbpError
from sbp_core.wire.frame import Frame


class RequestReceived(Struct, frozen=True):
    """The peer asks something; answer with `send_response` under `frame.call_id`."""

    frame: Frame


class RequestRefused(Struct, frozen=True):
    """The peer's request cannot be taken; answer it with a system error saying `error`."""

    frame: Frame
    error: SbpError


class ResponseReceived(Struct, frozen=True):
    """A frame that answers call `call_id`; `is_end` tells the last one."""

    call_id: int
    frame: Frame

    @property
    def is_end(self) -> bool:
        """Whether the call is finished by this frame."""
        return self.frame.is_end


class CallFailed(Struct, frozen=True):
    """Call `call_id` ends without its (complete) answer."""

    call_id: int
    error: SbpError


class GoawayReceived(Struct, frozen=True):
    """The peer takes no new calls; those that are open will be answered."""

    frame: Frame


class ConnectionBroken(Struct, frozen=True):
    """The peer's bytes cannot be read any further: send what is pending, then close."""

    error: SbpError


Event = (
    RequestReceived
    | RequestRefused
    | ResponseReceived
    | CallFailed
    | GoawayReceived
    | ConnectionBroken
)
