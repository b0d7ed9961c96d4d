"""The client's pure parts: endpoints, retry decisions, inbox, conversation."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from sbp_core.client import (
    EARLIEST,
    LATEST,
    RangeInfo,
    RetryPolicy,
    parse_endpoint,
    parse_endpoints,
)
from sbp_core.client.io.aio_transport import AsyncCalls
from sbp_core.client.io.conversation import Conversation, Phase, connect_failed, lost
from sbp_core.client.operations.open_calls import Arrival, Call, Reply, Sink, gather, pause
from sbp_core.client.operations.router import Router
from sbp_core.errors import (
    ConfigurationError,
    ConnectError,
    ConnectionLostError,
    DeadlineExceededError,
    InvalidRequestError,
    NotFoundError,
    RangeSealedError,
    SbpError,
    StatusCode,
    ThrottledError,
)
from sbp_core.session.connection import Connection
from sbp_core.session.negotiation import RequestedFeatures
from sbp_core.wire.frame import Frame
from sbp_core.wire.opcodes import Flag, Opcode
from tests.support.scripted_client import AppendWorld, at_once


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:1", ("localhost", 1)),
        ("10.0.0.1:65535", ("10.0.0.1", 65535)),
        ("[::1]:12378", ("::1", 12378)),
        ("[fe80::1%eth0]:5", ("fe80::1%eth0", 5)),
    ],
)
def test_endpoints(text, expected) -> None:
    assert parse_endpoint(text) == expected


@pytest.mark.parametrize(
    "text", ["", ":1", "h", "h:", "h:x", "h:-1", "h:0", "h:65536", "::1:80", "[]:1", "http://h:1",
             "h:1\n", "a,b:1", "h:\u0661"],
)  # fmt: skip
def test_no_endpoints(text) -> None:
    with pytest.raises(ConfigurationError, match=r"\[::1\]:12378"):
        parse_endpoint(text)


def test_several_endpoints() -> None:
    assert parse_endpoints("a:1, [::1]:2,a:1") == ("a:1", "[::1]:2")
    for text in ("", "a:1,", "a:1,b", ",".join(f"h{number}:1" for number in range(17))):
        with pytest.raises(ConfigurationError):
            parse_endpoints(text)


def decide(error: SbpError, *, is_repeatable: bool = True, elapsed_ms: float = 0) -> float | None:
    return RetryPolicy(budget_ms=1000, backoff_ms=10, backoff_ms_max=100).maybe_wait_ms(
        error,
        is_repeatable=is_repeatable,
        attempt_count=1,
        elapsed_ms=elapsed_ms,
        random=Random(1),
    )


@pytest.mark.parametrize(
    ("error", "reads", "appends"),
    [
        (ConnectError("x"), True, True),
        (RangeSealedError(StatusCode.RANGE_ALREADY_SEALED, "x"), True, True),
        (ThrottledError(StatusCode.TOO_MANY_REQUESTS, "x"), True, True),
        (ConnectionLostError("x"), True, False),
        (DeadlineExceededError("x"), True, False),
        (ConfigurationError("x"), False, False),
        (NotFoundError(StatusCode.NOT_FOUND, "x"), False, False),
        (InvalidRequestError(StatusCode.INVALID_REQUEST, "x"), False, False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, SbpError) else None,
)
def test_errors_that_are_retried(error, reads, appends) -> None:
    assert (decide(error) is not None) is reads
    assert (decide(error, is_repeatable=False) is not None) is appends


def test_throttling_sets_the_shortest_wait() -> None:
    error = ThrottledError(StatusCode.TOO_MANY_REQUESTS, "x")
    error.throttle_time_ms = 600
    assert decide(error) >= 600
    assert decide(error, elapsed_ms=400) is None


def test_the_last_try_comes_when_the_budget_ends() -> None:
    assert decide(ConnectError("x"), elapsed_ms=999.5) == 0.5
    assert decide(ConnectError("x"), elapsed_ms=1000) is None


@pytest.mark.parametrize("values", [(-1, 1, 1, 1), (1, -1, 1, 1), (1, 1, -1, 1), (1, 1, 2, 1)])
def test_contradictory_policies(values) -> None:
    with pytest.raises(ConfigurationError, match="no negative times"):
        RetryPolicy(*values)


def frame(*, is_end: bool) -> Frame:
    return Frame(Opcode.PING, Flag.RESPONSE | (Flag.END if is_end else 0), 1)


class Pool:
    """A pool, and its only connection, which sends nothing."""

    may_write = True

    def __init__(self) -> None:
        self.sinks: list[Sink] = []

    def start(self, call, sink):
        self.sinks.append(sink)
        return self, len(self.sinks)

    def abandon(self, ticket) -> None:
        pass


def test_arrivals_are_kept_for_who_asks() -> None:
    async def body() -> None:
        pool, ping = Pool(), Call("a:1", Opcode.PING, None, 60_000)
        part, last = frame(is_end=False), frame(is_end=True)
        with AsyncCalls(pool) as calls:
            first, second, third = [await calls.start(ping) for _ in range(3)]
            for number, content in ((first, part), (second, last), (third, part)):
                pool.sinks[number](content)
            pool.sinks[second](ConnectError("behind the end"))
            calls.abandon(third)
            pool.sinks[third](last)
            assert await calls.receive({second}) == Arrival(second, last)
            assert await calls.receive({second, third}, calls.now_ms()) is None
            assert await calls.receive({first}) == Arrival(first, part)

    asyncio.run(body())


class Scripted(AppendWorld):
    """Has these arrivals, in this order; records what was waited for."""

    def __init__(self, *arrivals) -> None:
        super().__init__(draw=None)
        self.started: list[Call] = []
        self.waited: list[tuple[set[int], float | None]] = []
        self._coming = list(arrivals)

    async def start(self, call) -> int:
        self.started.append(call)
        return 5 * len(self.started)

    async def receive(self, numbers, until_ms=None):
        self.waited.append((set(numbers), until_ms))
        return self._coming.pop(0)


def test_gather_returns_replies_in_the_order_of_calls() -> None:
    calls = [Call("a:1", Opcode.PING, None, 5), Call("b:1", Opcode.PING, None, 5)]
    part, last, error = frame(is_end=False), frame(is_end=True), ConnectError("x")
    world = Scripted(Arrival(10, part), Arrival(5, error), Arrival(10, last))
    replies = at_once(gather(world.open_calls, calls))
    assert replies == [Reply((), error), Reply((part, last))]
    assert world.started == calls
    assert world.waited == [({5, 10}, None), ({5, 10}, None), ({10}, None)]


def test_pause_waits_for_nothing_but_time() -> None:
    world = Scripted(None)
    at_once(pause(world.open_calls, 30))
    assert world.waited == [(set(), 30.0)]


PING = Call("h:1", Opcode.PING, None, 5)


def feed(conversation: Conversation, buffers: list) -> list:
    data = b"".join(buffers)
    conversation.get_buffer()[: len(data)] = data
    conversation.buffer_updated(len(data))
    return conversation.receive()


def test_a_deadline_on_a_connection_retires_it() -> None:
    conversation = Conversation("h:1", "me", RequestedFeatures())
    conversation.phase = Phase.OPEN
    other: list = []
    expired, _ = conversation.start(PING, lambda _: None)
    conversation.start(PING, other.append)
    assert isinstance(conversation.expire(expired, Opcode.PING), DeadlineExceededError)
    assert (conversation.is_usable, conversation.is_finished) == (False, False)
    conversation.end(lost("h:1", "gone"))
    assert conversation.is_finished
    assert isinstance(other[0], ConnectionLostError)


def test_the_reason_of_a_failed_connection_is_reported_to_later_calls() -> None:
    conversation = Conversation("h:1", "me", RequestedFeatures())
    conversation.end(connect_failed("h:1", OSError(111, "whatever"), 5))
    with pytest.raises(ConnectError, match="Connection refused"):
        conversation.start(PING, lambda _: None)


def test_a_client_refuses_the_requests_that_it_does_not_serve() -> None:
    conversation, server = Conversation("h:1", "me", RequestedFeatures()), Connection()
    _, buffers = server.start_call(Opcode.APPEND, b"", [b"x"])
    server.decoder.receive_data(b"".join(feed(conversation, buffers)))
    (event,) = server.events()
    assert event.frame.is_system_error


def piece(index: int, start: int, end: int | None) -> RangeInfo:
    return RangeInfo(1, index, start, end, 0, ("h:1",))


def test_router_finds_ranges() -> None:
    router = Router()
    router.learn(1, [piece(2, 10, None), piece(0, 3, 10), piece(1, 10, 10)])
    assert [router.maybe_range_at(1, offset).range_index for offset in (3, 9, 10, 99)] == [
        0,
        0,
        2,
        2,
    ]
    assert router.maybe_range_at(1, 2) is None
    assert router.maybe_range_at(1, EARLIEST).range_index == 0
    assert router.maybe_range_at(1, LATEST).range_index == 2
    assert router.maybe_open_range(1).range_index == 2
    router.forget(1)
    assert router.maybe_range_at(1, 3) is None
    assert router.unknown([1, 2, 1]) == [1, 2]


def test_router_without_an_open_range() -> None:
    router = Router()
    router.learn(1, [piece(0, 0, 10)])
    assert router.maybe_open_range(1) is None
    assert router.maybe_range_at(1, 10).range_index == 0
    assert router.maybe_range_at(1, 11) is None
    router.learn(1, [])
    assert router.maybe_range_at(1, LATEST) is None
    assert router.maybe_open_range(1) is None


def test_router_knows_a_revision_only_if_it_is_that_of_all() -> None:
    router = Router()
    router.learn(1, [], 5)
    router.learn(2, [], 5)
    router.learn(3, [], 6)
    router.learn(4, [])
    assert router.maybe_revision([1, 2]) == 5
    assert router.maybe_revision([1, 3]) is None
    assert router.maybe_revision([4]) is None
    assert router.maybe_revision([1, 9]) is None
