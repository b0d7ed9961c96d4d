"""Calls with retries: what every operation is made of."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from sbp_core.client.fetches.places import LocalReads
from sbp_core.client.io.leader import PlacementDrivers, reachable_nodes
from sbp_core.client.io.patience_log import PatienceLog
from sbp_core.client.programs.program import Call, Now, Program, Reply, gather, pause
from sbp_core.client.programs.retry import RetryPolicy
from sbp_core.client.programs.router import Router
from sbp_core.client.types import PlacementDriverInfo
from sbp_core.errors import (
    DeadlineExceededError,
    NotLeaderError,
    Outcome,
    ProtocolError,
    SbpError,
    StatusError,
    TransportError,
)
from sbp_core.session.negotiation import FeatureName
from sbp_core.wire.dialect import Dialect, dialect_of
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import (
    AppendResponse,
    AppendResult,
    DescribePlacementDriverClusterRequest,
    DescribePlacementDriverClusterResponse,
    FetchResponse,
    FetchResult,
    PlacementDriverCluster,
    RangeServer,
    decode_header,
    decode_system_error,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error

T = TypeVar("T")
R = TypeVar("R", AppendResult, FetchResult)


@dataclass(frozen=True, slots=True)
class Context:
    """What the operations of one client share. `timeout_ms` bounds each call.

    With `maybe_local` they may read the files of servers on this machine.
    """

    drivers: PlacementDrivers
    router: Router
    policy: RetryPolicy
    random: Random
    timeout_ms: int
    maybe_local: LocalReads | None = None
    patience_log: PatienceLog = field(default_factory=PatienceLog)


class Attempts:
    """How often and how long one operation failed since it last made progress."""

    def __init__(self, context: Context, now_ms: float) -> None:
        self._context = context
        self._since_ms = now_ms
        self._count = 0

    def on_progress(self, now_ms: float) -> None:
        """Start counting anew."""
        self._since_ms = now_ms
        self._count = 0

    def on_failure(self) -> None:
        """Count one more try that failed."""
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

        `endpoint` is the one that was asked, None when `error` says so itself or nobody was asked.
        """
        policy = self._context.policy
        wait_ms = policy.maybe_wait_ms(
            error,
            is_repeatable=is_repeatable,
            attempt_count=self._count,
            elapsed_ms=max(0, now_ms - self._since_ms),
            random=self._context.random,
        )
        if wait_ms is not None:
            self._context.patience_log.on_wait(
                _asked(operation, endpoint),
                error,
                since_ms=self._since_ms,
                now_ms=now_ms,
                budget_ms=policy.budget_ms,
            )
        return wait_ms

    def explain(self, error: SbpError, operation: str, endpoint: str | None) -> SbpError:
        """Return `error` with what was tried and what to do in its message."""
        tries = f" (given up after {self._count} tries)" if self._count > 1 else ""
        remedy = ""
        if endpoint is not None and isinstance(error, TransportError | DeadlineExceededError):
            remedy = f"; is `sbp serve` running at {endpoint}, and reachable from here?"
        elif endpoint is not None and isinstance(error, NotLeaderError):
            known = ", ".join(self._context.drivers.known)
            remedy = f"; the placement drivers that are known: {known}"
        return with_message(error, f"{_asked(operation, endpoint)}{tries}: ", remedy)


def _asked(operation: str, endpoint: str | None) -> str:
    return operation if endpoint is None else f"{operation} at {endpoint}"


def with_message(error: SbpError, before: str, after: str = "") -> SbpError:
    """Return a copy of `error` whose message has text around it."""
    if isinstance(error, StatusError):
        text = f"{before}{error.message}{after}"
        status_error = type(error)(error.code, text, error.detail)
        status_error.throttle_time_ms = error.throttle_time_ms
        fresh: SbpError = status_error
    else:
        fresh = type(error)(f"{before}{error}{after}")
    fresh.outcome = error.outcome
    fresh.__cause__ = error
    return fresh


def unanswered(what: str) -> ProtocolError:
    """Return the error of an item that the peer's complete answer does not mention."""
    error = ProtocolError(f"the server's answer says nothing about {what}")
    error.outcome = Outcome.UNKNOWN
    return error


def check_system_error(frame: Frame) -> None:
    """Raise what a system error frame stands for (SPEC "System Error Frame")."""
    if frame.is_system_error:
        status = decode_system_error(frame.header).status
        error = maybe_error(status)
        raise error or ProtocolError("a system error frame without an error status")


def decode_answer(frame: Frame, table: type[T]) -> T:
    """Return the header of a response frame.

    Raises StatusError when the whole frame stands for a failure, ProtocolError when it is none.
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


def answered_items(
    answer: AppendResponse | FetchResponse, results: Sequence[R], asked: Collection[int]
) -> list[tuple[int, R]]:
    """Return the request index that each result answers; `asked` are those without an answer yet.

    ElasticStream's servers leave every index at 0 and answer all requests in their order. Raises
    ProtocolError when there are more or less of those than requests.
    """
    indexes = [result.request_index for result in results]
    if dialect_of(answer.status) is not Dialect.SPECIFICATION and not any(indexes):
        if len(results) != len(asked):
            error = ProtocolError(
                f"{len(results)} results for {len(asked)} requests, and none says which it answers"
            )
            error.outcome = Outcome.UNKNOWN
            raise error
        indexes = sorted(asked)
    return list(zip(indexes, results, strict=True))


def decode_reply(reply: Reply, table: type[T]) -> list[T]:
    """Return the headers of all frames of a reply. Raises the error that ends it or is in it."""
    if reply.error is not None:
        raise reply.error
    return [decode_answer(frame, table) for frame in reply.frames]


def ask(
    context: Context,
    opcode: Opcode,
    header: object,
    table: type[T],
    *,
    is_repeatable: bool = True,
    feature: FeatureName | None = None,
) -> Program[list[T]]:
    """Ask the placement driver, again where that may help; return the headers of the answer.

    One that does not lead names the one that does: that one is asked then, and from then on. The
    outcome of the error that it raises speaks of all tries. What needs a `feature` is sent only
    where that was agreed on.
    """
    attempts = Attempts(context, (yield Now()))
    is_untouched = True
    while True:
        asked = context.drivers.endpoint
        (reply,) = yield from gather(
            [Call(asked, opcode, header, context.timeout_ms, feature=feature)]
        )
        try:
            return decode_reply(reply, table)
        except SbpError as error:
            context.drivers.on_error(asked, error)
            now_ms = yield Now()
            attempts.on_failure()
            is_untouched = is_untouched and error.outcome is Outcome.NOT_APPLIED
            wait_ms = attempts.maybe_wait_ms(
                error, opcode.name, asked, now_ms, is_repeatable=is_repeatable
            )
            if wait_ms is None:
                failure = attempts.explain(error, opcode.name, asked)
                failure.outcome = error.outcome if is_untouched else Outcome.UNKNOWN
                raise failure from error
        yield from pause(wait_ms)


def placement_drivers(
    context: Context, asker: RangeServer | None = None
) -> Program[list[PlacementDriverInfo]]:
    """Return the placement drivers of the cluster (SPEC "DESCRIBE_PD_CLUSTER").

    They are remembered, and asked when the leader is gone.
    """
    header = DescribePlacementDriverClusterRequest(asker, context.timeout_ms)
    answers = yield from ask(
        context, Opcode.DESCRIBE_PD_CLUSTER, header, DescribePlacementDriverClusterResponse
    )
    cluster = answers[-1].cluster or PlacementDriverCluster()
    context.drivers.learn(cluster)
    return [PlacementDriverInfo(*node) for node in reachable_nodes(cluster)]


def exchange(call: Call) -> Program[list[Frame]]:
    """Make one call once; return its frames. Raises its error, also a system error."""
    (reply,) = yield from gather([call])
    if reply.error is not None:
        raise reply.error
    for frame in reply.frames:
        check_system_error(frame)
    return list(reply.frames)


def ping(context: Context) -> Program[float]:
    """Measure a round trip to the placement driver in ms (SPEC "PING"). Not tried again."""
    begin_ms: float = yield Now()
    asked = context.drivers.endpoint
    try:
        yield from exchange(Call(asked, Opcode.PING, None, context.timeout_ms))
    except SbpError as error:
        context.drivers.on_error(asked, error)
        raise Attempts(context, begin_ms).explain(error, "PING", asked) from error
    end_ms: float = yield Now()
    return end_ms - begin_ms
