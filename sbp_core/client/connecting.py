"""What holds for every connection that a client makes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sbp_core import limits
from sbp_core.client.programs.timing import OnTiming
from sbp_core.session.negotiation import NO_WISHES, Wishes


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
