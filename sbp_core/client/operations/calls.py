"""Calls with retries: every operation is made of them. Read `Attempts` and `ask` first.

This module does no I/O: times and random numbers are passed in.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final, TypeVar

from sbp_core import limits
from sbp_core.client.operations.open_calls import Call, OpenCalls, Reply, gather, pause
from sbp_core.client.operations.replicas import Replicas
from sbp_core.client.operations.router import PlacementDrivers, Router
from sbp_core.errors import (
    ClientClosedError,
    ConfigurationError,
    DeadlineExceededError,
    NotLeaderError,
    Outcome,
    ProtocolError,
    SbpError,
    StatusError,
    TlsError,
    TransportError,
)
from sbp_core.session.negotiation import FeatureName
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import (
    RESULT_FIELDS,
    AppendResult,
    FetchResult,
    decode_header,
    decode_system_error,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error, with_message

_LOG: Final = logging.getLogger("sbp_core.client")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long (ms) a client retries a failed operation, and how long it waits between tries.

    The error is raised after `budget_ms` without progress; 0 disables retries, and with `math.inf`
    they never end. Until a placement driver has answered the client once, the budget is `first_ms`
    at most, so that a wrong address is reported soon. The wait before retry n = 0, 1, 2 is random,
    from 0 to the smaller of backoff_ms * 2**n and `backoff_ms_max`, plus the wait that a server
    asks for. Only `retriable` errors are retried, and only calls that may be repeated.

        Client(endpoint, retry=RetryPolicy(budget_ms=5_000))

    Raises ConfigurationError for a negative value, and for backoff_ms above backoff_ms_max.
    """

    budget_ms: float = limits.RETRY_BUDGET_MS
    first_ms: float = math.inf
    backoff_ms: int = limits.RETRY_BACKOFF_MS
    backoff_ms_max: int = limits.RETRY_BACKOFF_MS_MAX

    def __post_init__(self) -> None:
        is_time = min(self.budget_ms, self.first_ms) >= 0
        if not (is_time and 0 <= self.backoff_ms <= self.backoff_ms_max):
            raise ConfigurationError(
                f"{self}: expected no negative times, and backoff_ms <= backoff_ms_max"
            )

    def maybe_wait_ms(
        self,
        error: SbpError,
        *,
        is_repeatable: bool,
        attempt_count: int,
        elapsed_ms: float,
        random: Random,
        is_first: bool = False,
    ) -> float | None:
        """Return the wait before the next try, None to give up.

        `is_repeatable`: a second execution does no harm (a read, or an append whose caller accepts
        duplicates); other calls are retried only if the failed one had no effect. `attempt_count`
        tries failed in `elapsed_ms` since the last progress. `is_first`: no placement driver has
        answered yet.
        """
        if not error.retriable:
            return None
        if not is_repeatable and error.outcome is not Outcome.NOT_APPLIED:
            return None
        doublings = min(max(attempt_count - 1, 0), 30)
        throttle_ms = error.throttle_time_ms if isinstance(error, StatusError) else 0
        # Full jitter, on top of the server's throttle time: otherwise all calls that were refused
        # together would be repeated together.
        spread_ms = max(self.backoff_ms << doublings, throttle_ms)
        wait_ms = throttle_ms + random.uniform(0, min(spread_ms, self.backoff_ms_max))
        left_ms = self.budget(is_first=is_first) - elapsed_ms
        # The last try comes at the end of the budget, so that the caller gets all of it.
        return min(wait_ms, left_ms) if left_ms > throttle_ms else None

    def budget(self, *, is_first: bool) -> float:
        """Return the time (ms) without progress after which an error is raised."""
        return min(self.budget_ms, self.first_ms) if is_first else self.budget_ms


class PatienceLog:
    """Logs operations without progress, at most one line in RETRY_LOG_INTERVAL_MS for a client.

    Times are in ms, of any clock that runs evenly.
    """

    def __init__(self) -> None:
        self._logged_at_ms: float | None = None

    def on_wait(
        self, what: str, error: SbpError, *, since_ms: float, now_ms: float, budget_ms: float
    ) -> bool:
        """Log that `what` fails with `error` and is retried, without progress since `since_ms`.

        Return whether a line was logged.
        """
        logged_at_ms = since_ms if self._logged_at_ms is None else self._logged_at_ms
        if now_ms - max(since_ms, logged_at_ms) < limits.RETRY_LOG_INTERVAL_MS:
            return False
        self._logged_at_ms = now_ms
        elapsed_ms = now_ms - since_ms
        left = f"for {(budget_ms - elapsed_ms) / 1000:.0f} s more"
        _LOG.warning(
            "%s has failed for %.0f s and is tried %s: %s",
            what,
            elapsed_ms / 1000,
            left if budget_ms < math.inf else "until it succeeds",
            error,
        )
        return True


R = TypeVar("R", AppendResult, FetchResult)


def monotonic_ms() -> float:
    """Return the time of the monotonic clock in ms."""
    return time.monotonic() * 1000


@dataclass(frozen=True, slots=True)
class Context:
    """State that the operations of one client share. `timeout_ms` bounds each call."""

    drivers: PlacementDrivers
    router: Router
    policy: RetryPolicy
    random: Random
    timeout_ms: int
    open_calls: OpenCalls
    now_ms: Callable[[], float] = monotonic_ms
    patience_log: PatienceLog = field(default_factory=PatienceLog)
    replicas: Replicas = field(default_factory=Replicas)

    def impatient(self, timeout_ms: int = limits.CONNECT_TIMEOUT_MS) -> Context:
        """Return a context for calls that are not retried, and have `timeout_ms` at most."""
        policy = RetryPolicy(budget_ms=0)
        return replace(self, policy=policy, timeout_ms=min(self.timeout_ms, timeout_ms))


class Attempts:
    """How often and how long one operation failed since its last progress, for its retries."""

    def __init__(self, context: Context, now_ms: float) -> None:
        self._context = context
        self._since_ms = now_ms
        self._count = 0
        self._is_logged = False

    def on_progress(self, now_ms: float) -> None:
        """Count from zero again. If the outage was logged, log its end."""
        if self._is_logged:
            _LOG.warning("servers answer again after %.0f s", (now_ms - self._since_ms) / 1000)
            self._is_logged = False
        self._since_ms = now_ms
        self._count = 0

    @property
    def is_first(self) -> bool:
        """Whether no try has failed since the last progress."""
        return not self._count

    def on_failure(self) -> None:
        """Count one more failed try."""
        self._count += 1

    def maybe_wait_ms(
        self,
        error: SbpError,
        operation: str,
        endpoint: str | None,
        now_ms: float,
        *,
        is_repeatable: bool = True,
    ) -> float | None:
        """Return the wait before another try after `error`, None to give up.

        `endpoint` was asked; None if `error` names the server, or if no server was asked.
        """
        policy, is_first = self._context.policy, not self._context.drivers.have_answered
        wait_ms = policy.maybe_wait_ms(
            error,
            is_repeatable=is_repeatable,
            attempt_count=self._count,
            elapsed_ms=max(0, now_ms - self._since_ms),
            random=self._context.random,
            is_first=is_first,
        )
        if wait_ms is not None and not self._is_logged:
            self._is_logged = self._context.patience_log.on_wait(
                _asked(operation, endpoint),
                error,
                since_ms=self._since_ms,
                now_ms=now_ms,
                budget_ms=policy.budget(is_first=is_first),
            )
        return wait_ms

    def explain(self, error: SbpError, operation: str, endpoint: str | None) -> SbpError:
        """Return `error` with the operation, the number of tries and a remedy in its message."""
        tries = f" (given up after {self._count} tries)" if self._count > 1 else ""
        remedy = ""
        drivers = self._context.drivers
        is_silent = isinstance(error, TransportError | DeadlineExceededError)
        if isinstance(error, ClientClosedError | TlsError):
            is_silent = False
        elif isinstance(error.__cause__, ProtocolError):
            is_silent = False  # the peer has answered with a reason
        if endpoint is not None and is_silent:
            remedy = "; is `sbp serve` running there, and reachable from here?"
            if len(drivers.known) > 1 and endpoint in drivers.known:
                remedy = (
                    f"{remedy} The placement drivers that are known: {', '.join(drivers.known)}"
                )
        elif endpoint is not None and isinstance(error, NotLeaderError):
            remedy = f"; the placement drivers that are known: {', '.join(drivers.known)}"
        return with_message(error, f"{_asked(operation, endpoint)}{tries}: ", remedy)


def _asked(operation: str, endpoint: str | None) -> str:
    return operation if endpoint is None else f"{operation} at {endpoint}"


def unanswered(what: str) -> ProtocolError:
    """Return the error of an item that a complete answer leaves out."""
    error = ProtocolError(f"the server's answer says nothing about {what}")
    error.outcome = Outcome.UNKNOWN
    return error


def check_system_error(frame: Frame) -> None:
    """Raise the error of a system error frame (SPEC "Errors that end a connection")."""
    if frame.is_system_error:
        status = decode_system_error(frame.header).status
        error = maybe_error(status)
        raise error or ProtocolError("a system error frame without an error status")


def decode_answer(frame: Frame, table: type[T]) -> T:
    """Return the header of a response frame.

    Raises StatusError if the whole frame is an error, ProtocolError if the frame is not valid.
    """
    try:
        check_system_error(frame)
        answer = decode_header(table, frame.header)
    except ProtocolError as error:
        error.outcome = Outcome.UNKNOWN
        raise
    failure = maybe_error(getattr(answer, "status", None))
    if failure is not None:
        failure.throttle_time_ms = max(getattr(answer, "throttle_time_ms", 0), 0)
        raise failure
    return answer


def decode_reply(reply: Reply, table: type[T]) -> list[T]:
    """Return the headers of all frames of a reply. Raises the error of the reply or of a frame."""
    if reply.error is not None:
        raise reply.error
    return [decode_answer(frame, table) for frame in reply.frames]


async def ask(
    context: Context,
    opcode: Opcode,
    header: object,
    table: type[T],
    *,
    is_repeatable: bool = True,
    feature: FeatureName | None = None,
) -> list[T]:
    """Ask the leading placement driver, with retries; return the headers of the answer.

    A placement driver that does not lead names the leader, which is asked from then on. If the
    client was given several, it passes over a placement driver that is down, or that is silent for
    the timeout of a repeatable call. The outcome of a raised error covers all tries. A call with a
    `feature` is sent only on connections that agreed on the feature.
    """
    attempts = Attempts(context, context.now_ms())
    is_untouched = True
    tried: set[str] = set()
    while True:
        asked = context.drivers.endpoint
        (reply,) = await gather(
            context.open_calls, [Call(asked, opcode, header, context.timeout_ms, feature=feature)]
        )
        try:
            found = decode_reply(reply, table)
        except SbpError as error:
            context.drivers.on_error(asked, error)
            now_ms = context.now_ms()
            attempts.on_failure()
            is_untouched = is_untouched and error.outcome is Outcome.NOT_APPLIED
            tried.add(asked)
            if context.drivers.is_passed_over(error, tried, is_repeatable=is_repeatable):
                continue
            wait_ms = attempts.maybe_wait_ms(
                error, opcode.name, asked, now_ms, is_repeatable=is_repeatable
            )
            if wait_ms is None:
                failure = attempts.explain(error, opcode.name, asked)
                failure.outcome = error.outcome if is_untouched else Outcome.UNKNOWN
                raise failure from error
        else:
            context.drivers.have_answered = True
            if not attempts.is_first:
                attempts.on_progress(context.now_ms())
            return found
        await pause(context.open_calls, wait_ms)
        tried.clear()


async def ask_for_each(
    context: Context,
    opcode: Opcode,
    header: object,
    table: type[T],
    wanted: tuple[int, str],
    *,
    is_repeatable: bool = True,
    feature: FeatureName | None = None,
) -> list[Any]:
    """Ask about several items as `ask` does; return their results.

    `wanted` has the number and the name of the items, such as (2, "streams to trim"). Raises
    ProtocolError for another number of results.
    """
    answers = await ask(
        context, opcode, header, table, is_repeatable=is_repeatable, feature=feature
    )
    results = [each for answer in answers for each in getattr(answer, RESULT_FIELDS[table])]
    count, what = wanted
    if len(results) != count:
        raise unanswered(f"{count - len(results)} of the {count} {what}")
    return results


async def exchange(open_calls: OpenCalls, call: Call) -> list[Frame]:
    """Make a call once; return the frames of its answer. Raises its error, also a system error."""
    (reply,) = await gather(open_calls, [call])
    if reply.error is not None:
        raise reply.error
    for frame in reply.frames:
        check_system_error(frame)
    return list(reply.frames)


async def ping(context: Context) -> float:
    """Return the time in ms of one round trip to the placement driver."""
    # SPEC "PING"
    tried: set[str] = set()
    while True:
        begin_ms = context.now_ms()
        asked = context.drivers.endpoint
        try:
            await exchange(context.open_calls, Call(asked, Opcode.PING, None, context.timeout_ms))
        except SbpError as error:
            context.drivers.on_error(asked, error)
            tried.add(asked)
            if not context.drivers.is_passed_over(error, tried, is_repeatable=True):
                raise Attempts(context, begin_ms).explain(error, "PING", asked) from error
        else:
            context.drivers.have_answered = True
            end_ms = context.now_ms()
            return end_ms - begin_ms
