"""Quotas: how much an identity may ask of one server, over all of its connections.

A request above a rate is executed, and its answer says in `throttle_time_ms` how long the client
should wait. For that time the server reads nothing more of the connection, so a client that does
not wait gains nothing. The server reads nothing of the identity's other connections either. But
each frame has a last moment, after which its caller would give up. One frame a second of the
identity is executed at its last moment, and the others are refused, so more connections do not
raise the rate.

`Rate` bounds one quantity. `Meter` has the rates of one identity, its connections, and the memory
of its requests. `Allowance` is one connection: it finds the meter when the identity is known, and
says whether another frame may be handled. `Quotas` has the meters of one server.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from sbp_core import limits
from sbp_core.errors import ThrottledError
from sbp_core.settings.quota_settings import NO_RULES, QuotaRules
from sbp_core.wire.checksum import Buffer
from sbp_core.wording import counted

if TYPE_CHECKING:
    from sbp_core.server.peer import Peer

_LOG: Final = logging.getLogger(__name__)

BURST_SECONDS: Final = 1.0
"""An identity that was quiet may use as much as this at once."""
WAIT_SECONDS_MAX: Final = 20.0
"""The longest wait that is asked for. A client that keeps it still has its connection afterwards,
and a client that does not keep it gives up its call later."""
UNTOLD_SECONDS_MAX: Final = 8.0
"""The longest wait of a frame whose client was not asked to wait, such as the first one on a
connection: it asks another replica later than that."""
LOOK_SECONDS: Final = 1.0
"""How often to look whether a connection may go on, as the rules may have changed."""
LET_THROUGH_SECONDS: Final = 1.0
"""The least time between two frames of an identity that are executed in spite of its debt.

Such frames are charged as well, and the lowest rate is one request a second, so the debt does not
grow by them."""
assert LOOK_SECONDS < UNTOLD_SECONDS_MAX < limits.REPLICA_TIMEOUT_MS / 1000
assert UNTOLD_SECONDS_MAX < WAIT_SECONDS_MAX < limits.IDLE_CONNECTION_MS / 2000
assert min(limits.REQUEST_TIMEOUT_MS, limits.WRITE_STALL_MS) > WAIT_SECONDS_MAX * 1000
_LOG_SECONDS: Final = 60.0
"""Time without a wait after which the next one is logged."""
_METERS_KEPT: Final = limits.CONNECTIONS_MAX
"""Meters after which those are dropped that are not in use."""


class Rate:
    """A token bucket of `per_second` a second; 0 is without limit. Times are seconds.

    Use is paid off at the rate. More of it than a burst is debt, which is never more than
    WAIT_SECONDS_MAX.
    """

    __slots__ = ("_paid_at", "per_second")

    def __init__(self, per_second: int = 0) -> None:
        self.per_second = per_second
        self._paid_at = -math.inf
        """When everything that was used is paid off."""

    def charge(self, amount: float, now: float) -> bool:
        """Count what was used; return whether there is debt."""
        if not self.per_second:
            return False
        begin = max(now, self._paid_at)
        self._paid_at = paid_at = begin + amount / self.per_second
        if paid_at - now <= BURST_SECONDS:
            return False
        self._paid_at = min(paid_at, now + BURST_SECONDS + WAIT_SECONDS_MAX)
        return True

    def wait_seconds(self, now: float, amount: float = 0) -> float:
        """Return for how long there is debt once `amount` is used as well; 0 without debt."""
        if not self.per_second:
            return 0.0
        paid_at = max(self._paid_at, now) + amount / self.per_second
        return min(max(paid_at - BURST_SECONDS - now, 0.0), WAIT_SECONDS_MAX)

    def change(self, per_second: int, now: float) -> None:
        """Pay off at another rate from now on."""
        left = max(self._paid_at - now, 0.0) * self.per_second
        self.per_second, self._paid_at = per_second, -math.inf
        self.charge(left, now)


class Meter:
    """The use that one identity makes of its quota."""

    def __init__(self, subject: str, rules: QuotaRules) -> None:
        self.subject = subject
        self.rules = rules
        self.quota = quota = rules.of(subject)
        self.bytes_in = Rate(quota.bytes_in_per_s)
        self.bytes_out = Rate(quota.bytes_out_per_s)
        self.requests = Rate(quota.requests_per_s)
        self.connections: set[Peer] = set()
        self.is_free = True
        """Whether a frame may be handled: no debt and enough memory, as of the last `look`."""
        self._held_bytes = 0
        self._waiting: dict[Callable[[], None], None] = {}
        """Called when there is memory again."""
        self._throttled_at = -math.inf
        self._let_through_at = -math.inf

    def change(self, rules: QuotaRules, now: float) -> None:
        """Count by other rules from now on."""
        self.rules = rules
        self.quota = quota = rules.of(self.subject)
        self.bytes_in.change(quota.bytes_in_per_s, now)
        self.bytes_out.change(quota.bytes_out_per_s, now)
        self.requests.change(quota.requests_per_s, now)
        self.look(now)
        self._wake()

    @property
    def has_memory(self) -> bool:
        """Whether another request may be begun."""
        return not self.quota.memory_bytes or self._held_bytes < self.quota.memory_bytes

    def is_in_use(self, now: float) -> bool:
        """Whether anything would be forgotten with it."""
        return bool(self.connections or self._held_bytes or self.wait_seconds(now) > 0)

    def enter(self, connection: Peer) -> None:
        """Count a connection; if there are too many, an unused connection has to close.

        Raises ThrottledError if there are as many as there may be.
        """
        most = self.quota.connections
        if most and len(self.connections) >= most:
            spare_ms, spare = max(
                ((each.spare_ms(), each) for each in self.connections), key=itemgetter(0)
            )
            if spare_ms < 0:
                raise ThrottledError.of(
                    f"{self.subject} has {counted(len(self.connections), 'connection')} open"
                    " already, its quota at this server: close some, or raise connections in"
                    " [quotas] of the server"
                )
            self.connections.discard(spare)
            spare.go_away()
        self.connections.add(connection)

    def hold(self, size: int) -> None:
        """Count bytes of memory that a request takes; below 0 when it takes less."""
        self._held_bytes += size
        if size > 0:
            self.is_free = self.is_free and self.has_memory
        elif self._waiting and self.has_memory:
            self._wake()

    def when_memory(self, on_memory: Callable[[], None]) -> None:
        """Call `on_memory`, once, when another request may be begun."""
        self._waiting[on_memory] = None

    def lets_through(self, now: float) -> bool:
        """Return whether a frame at its last moment may be executed; False while there is debt.

        One frame in LET_THROUGH_SECONDS is an exception, for all connections together.
        """
        if self.wait_seconds(now) > 0:
            if now - self._let_through_at < LET_THROUGH_SECONDS:
                return False
            self._let_through_at = now
        return True

    def charge_request(self, size: int, now: float) -> None:
        """Count a request of `size` bytes."""
        has_debt = self.bytes_in.charge(size, now)
        if self.requests.charge(1, now) or has_debt:
            self.look(now)

    def charge_answer(self, size: int, now: float) -> None:
        """Count an answer of `size` bytes, or a part of it."""
        if self.bytes_out.charge(size, now):
            self.look(now)

    def wait_seconds(self, now: float, answer_bytes: int = 0) -> float:
        """Return for how long there is debt once `answer_bytes` are sent; 0 without debt."""
        return max(
            self.bytes_in.wait_seconds(now),
            self.bytes_out.wait_seconds(now, answer_bytes),
            self.requests.wait_seconds(now),
        )

    def look(self, now: float) -> float:
        """Update `is_free`; return for how long there is debt, 0 without debt."""
        wait_seconds = self.wait_seconds(now)
        self.is_free = not wait_seconds and self.has_memory
        if wait_seconds:
            if now - self._throttled_at > _LOG_SECONDS:
                _LOG.info(
                    "identity throttled identity=%s wait_ms=%d",
                    self.subject,
                    _milliseconds(wait_seconds),
                )
            self._throttled_at = now
        return wait_seconds

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for on_memory in waiting:
            on_memory()


class Allowance:
    """The part of one connection in what its identity may use; nothing is bounded before `bind`."""

    def __init__(self, quotas: Quotas | None = None) -> None:
        self._quotas = quotas or Quotas(lambda: 0.0)
        self._meter: Meter | None = None
        self._held_bytes = 0
        self._since: float | None = None
        """Since when a frame waits for debt to be paid off."""
        self._told_until = -math.inf
        """When the wait is over that an answer asked for last."""
        self._is_overdue = False
        """Whether the next frame has waited for as long as one may."""
        self._is_over = False

    def bind(self, subject: str | None, connection: Peer) -> None:
        """Count for an identity from now on; None is one without a quota.

        Raises ThrottledError if it has as many connections as it may have.
        """
        rules, meter = self._quotas.rules(), self._meter
        if not rules.has_any:
            subject = None
        if meter is not None and meter.subject == subject and connection in meter.connections:
            if meter.rules is not rules:
                meter.change(rules, self._quotas.monotonic())
            return
        self._leave(connection)
        if subject is None or self._is_over:
            return
        meter = self._quotas.meter_of(subject)
        try:
            meter.enter(connection)
        except ThrottledError:
            self._quotas.refused_count += 1
            raise
        self._meter = meter
        meter.hold(self._held_bytes)

    @property
    def is_off(self) -> bool:
        """Whether nothing is bounded."""
        return self._meter is None and not self._quotas.rules().has_any

    def end(self, connection: Peer) -> None:
        """The connection ends: it counts no longer, but for the memory of its requests."""
        self._is_over = True
        self._since = None
        if self._meter is not None:
            self._meter.connections.discard(connection)

    @property
    def is_open(self) -> bool:
        """Whether another frame may be handled; once it may not, until `look` finds that it may."""
        meter = self._meter
        return meter is None or meter.is_free or self._is_overdue or self._is_over

    def look(self) -> None:
        """See whether another frame may be handled by now."""
        meter = self._meter
        if meter is None:
            return
        now = self._quotas.monotonic()
        if meter.rules is not (rules := self._quotas.rules()):
            meter.change(rules, now)
        if not meter.look(now):
            self._since = None
        elif self._since is not None and now >= self._last_moment(self._since):
            self._is_overdue = meter.has_memory

    def maybe_wait_seconds(self) -> float | None:
        """Return after how long to look again while it is not open; None if memory is lacking."""
        meter, now = self._meter, self._quotas.monotonic()
        if meter is None or not (wait_seconds := meter.wait_seconds(now)):
            return 0.0 if meter is None or meter.has_memory else None
        if self._since is None:
            self._since = now
        return max(min(wait_seconds, self._last_moment(self._since) - now), 0.0)

    def _last_moment(self, since: float) -> float:
        """Return when a frame that waits is executed or refused, whatever debt there is."""
        return max(since + UNTOLD_SECONDS_MAX, self._told_until)

    def when_memory(self, on_memory: Callable[[], None]) -> None:
        """Call `on_memory`, once, if it is memory that is lacking, when there is some."""
        if self._meter is not None and not self._meter.has_memory:
            self._meter.when_memory(on_memory)

    def hold(self, size: int) -> None:
        """Count bytes of memory that a request takes; below 0 when it takes less."""
        self._held_bytes += size
        if self._meter is not None:
            self._meter.hold(size)

    def charge_request(self, size: int) -> None:
        """Count a request of `size` bytes.

        Raises ThrottledError if the request has waited to its last moment, and may not be executed.
        """
        meter = self._meter
        if meter is None:
            return
        now = self._quotas.monotonic()
        is_overdue, self._is_overdue = self._is_overdue, False
        if is_overdue and not meter.lets_through(now):
            # The client tries again, and should not wait from the beginning.
            self._since = now - UNTOLD_SECONDS_MAX + LOOK_SECONDS
            self._quotas.refused_count += 1
            raise ThrottledError.of(
                f"{meter.subject} is above its quota at this server, and requests wait on many of"
                f" its {counted(len(meter.connections), 'connection')}: use fewer, send less, or"
                " raise its rates in [quotas] of the server"
            )
        self._since = None
        meter.charge_request(size, now)

    def charge_answer(self, buffers: Sequence[Buffer]) -> None:
        """Count an answer, or a part of it."""
        if self._meter is not None and self._meter.bytes_out.per_second:
            self._meter.charge_answer(sum(map(len, buffers)), self._quotas.monotonic())

    def throttled(self, header: Any, payload: Sequence[Buffer]) -> object:
        """Return the header of an answer with this payload; above the quota it asks for a wait.

        The wait is the time in which nothing is read, unless the header asks for a longer wait.
        """
        meter = self._meter
        if meter is None or (meter.is_free and not (payload and meter.bytes_out.per_second)):
            return header
        now = self._quotas.monotonic()
        wait_seconds = meter.wait_seconds(now, sum(map(len, payload)))
        asked_ms = getattr(header, "throttle_time_ms", None) if wait_seconds else None
        if asked_ms is None:
            return header
        self._told_until = now + wait_seconds
        self._quotas.throttled_count += 1
        wait_ms = max(_milliseconds(wait_seconds), asked_ms)
        return replace(header, throttle_time_ms=wait_ms)

    def _leave(self, connection: Peer) -> None:
        if self._meter is not None:
            self._meter.connections.discard(connection)
            self._meter.hold(-self._held_bytes)
            self._meter = self._since = None


class Quotas:
    """The quotas of one server: `rules` returns what holds now, `monotonic` the time in seconds."""

    def __init__(
        self,
        monotonic: Callable[[], float],
        rules: Callable[[], QuotaRules] = lambda: NO_RULES,
        *,
        meters_kept: int = _METERS_KEPT,
    ) -> None:
        self.monotonic = monotonic
        self.rules = rules
        self._meters_kept = meters_kept
        self.throttled_count = 0
        """Answers that asked for a wait."""
        self.refused_count = 0
        """Requests that were refused: of connections, or at their last moment, beyond a quota."""
        self._meters: dict[str, Meter] = {}

    def meter_of(self, subject: str) -> Meter:
        """Return the meter of an identity, made if need be."""
        rules, now = self.rules(), self.monotonic()
        meter = self._meters.get(subject)
        if meter is None:
            if len(self._meters) >= self._meters_kept:
                self._meters = {
                    name: each for name, each in self._meters.items() if each.is_in_use(now)
                }
            meter = self._meters[subject] = Meter(subject, rules)
        elif meter.rules is not rules:
            meter.change(rules, now)
        return meter

    @property
    def over_count(self) -> int:
        """How many identities are above their quota now."""
        now = self.monotonic()
        return sum(each.wait_seconds(now) > 0 for each in self._meters.values())


def _milliseconds(seconds: float) -> int:
    return math.ceil(1000 * seconds)
