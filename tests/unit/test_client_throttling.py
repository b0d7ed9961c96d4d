"""Clients wait and retry when a server throttles them; the tests control their clock."""

from __future__ import annotations

import asyncio
import selectors
from functools import partial
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_core import limits
from sbp_core.access.credentials import Credentials
from sbp_core.client import AppendItem, RangeInfo, RetryPolicy
from sbp_core.client.connecting import Connecting
from sbp_core.client.io.aio_transport import AsyncCalls
from sbp_core.client.io.answer_limits import Ticket
from sbp_core.client.io.conversation import Conversation
from sbp_core.client.operations.appending import AppendKind, append
from sbp_core.client.operations.calls import Context, exchange
from sbp_core.client.operations.open_calls import Call
from sbp_core.client.operations.router import PlacementDrivers, Router
from sbp_core.errors import DeadlineExceededError, Outcome, StatusCode, ThrottledError
from sbp_core.session.connection import Connection
from sbp_core.session.negotiation import RequestedFeatures
from sbp_core.tls import Tls
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import (
    RESPONSE_TABLES,
    AppendResponse,
    AppendResult,
    DescribeRangesRequest,
    DescribeRangesResponse,
    HeartbeatResponse,
    Status,
    decode_header,
    encode_header,
    throttle_ms_in,
)
from sbp_core.wire.opcodes import Flag, Opcode

THROTTLE_MS = 300
CLIENTS = 200


class Time:
    """Passes when a call waits, and only then."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class JumpingSelector(selectors.DefaultSelector):
    """Lets a loop's time pass instead of waiting."""

    def __init__(self, time):
        super().__init__()
        self._time = time

    def select(self, timeout=None):
        self._time.now += timeout or 0
        return super().select(0)


class FakeConnection:
    """Takes everything at once."""

    may_write = True
    granted_ms = ()
    """By how much each of the next deadlines is extended."""

    async def drain(self):
        pass

    def extension_ms(self, ticket):
        return self.granted_ms.pop(0) if self.granted_ms else 0

    def expire(self, ticket, opcode):
        return DeadlineExceededError("too late")


class Server:
    """Throttles `refused_count` appends, accepts the next; records the arrival times, in ms."""

    def __init__(self, time, refused_count):
        self.came_at = []
        self._time = time
        self._refused_count = refused_count

    def start(self, call, sink):
        self.came_at.append(self._time.now * 1000)
        is_refused = len(self.came_at) <= self._refused_count
        code = StatusCode.TOO_MANY_REQUESTS if is_refused else StatusCode.NONE
        result = AppendResult(stream_id=1, base_offset=-1 if is_refused else 7, status=Status(code))
        header = AppendResponse(THROTTLE_MS if is_refused else 0, (result,), Status())
        sink(Frame(Opcode.APPEND, Flag.RESPONSE | Flag.END, 1, encode_header(header)))
        return FakeConnection(), Ticket(sink)


def run_to_end(work, time):
    loop = asyncio.SelectorEventLoop(JumpingSelector(time))
    loop.time = time
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


@pytest.fixture
def attempt():
    """Append once; return when it tried (ms), and its error."""

    def run(refused_count, seed=0, policy=None):
        time = Time()
        server = Server(time, refused_count)
        router = Router()
        router.learn(1, [RangeInfo(1, 0, 0, None, 0, ("server:1",))])
        drivers, policy = PlacementDrivers("pd:1"), policy or RetryPolicy()
        calls = partial(AsyncCalls, server, time)
        context = Context(
            drivers, router, policy, Random(seed), 30_000, calls, lambda: 1000 * time()
        )
        try:
            (outcome,) = run_to_end(append(context, [AppendItem(1, b"x")], AppendKind()), time)
        except ThrottledError as error:
            return server.came_at, error
        assert outcome.base_offset == 7
        return server.came_at, None

    return run


def waits(times):
    return [later - earlier for earlier, later in pairwise(times)]


def test_clients_that_were_refused_together_do_not_come_back_together(attempt):
    seconds = [attempt(1, seed)[0][1] for seed in range(CLIENTS)]
    tenths = [int((ms - THROTTLE_MS) * 10 / THROTTLE_MS) for ms in seconds]
    assert set(tenths) >= set(range(10))
    assert max(map(tenths.count, range(10))) < CLIENTS / 5


def test_the_time_that_the_caller_gives_is_kept(attempt):
    policy = RetryPolicy(budget_ms=2_000)
    times, error = attempt(10**6, policy=policy)
    assert times[-1] < policy.budget_ms
    assert 2 <= len(times) <= 7
    assert error.outcome is Outcome.NOT_APPLIED
    assert "given up after" in str(error)


class Asker:
    """A client's conversation, greeted, and the server's end of its connection."""

    def __init__(self, identity="none"):
        self.time = Time()
        self.client = Conversation(
            "h:1", "me", RequestedFeatures(), identity=identity, clock=self.time
        )
        self.server = Connection()
        self.requests = []
        self.answers = []
        self.to_server([*self.client.greeting(), *self.client.on_connected()])
        (greeting,) = self.requests
        self.requests = []
        self.answer(greeting, HeartbeatResponse(client_id="me", cluster_id="c", status=Status()))

    def to_server(self, buffers):
        self.server.decoder.receive_data(b"".join(buffers))
        self.requests += [each.frame for each in self.server.events()]

    def answer(self, request, header):
        data = b"".join(self.server.send_response(request, encode_header(header)))
        self.client.get_buffer()[: len(data)] = data
        self.client.buffer_updated(len(data))
        self.to_server(self.client.receive())

    def ask(self, stream_id=0, opcode=Opcode.DESCRIBE_RANGE):
        header = None if opcode is Opcode.PING else DescribeRangesRequest(timeout_ms=stream_id)
        call = Call("h:1", opcode, header, 30_000)
        ticket, buffers = self.client.start(call, self.answers.append)
        self.to_server(buffers)
        return ticket

    def throttle(self, wait_ms):
        """Answer the only request with a wait."""
        (request,) = self.requests
        self.requests = []
        self.answer(request, DescribeRangesResponse(throttle_time_ms=wait_ms, status=Status()))

    def asked(self):
        """The numbers of the requests that are with the server."""
        return [
            decode_header(DescribeRangesRequest, each.header).timeout_ms
            for each in self.requests
            if each.opcode == Opcode.DESCRIBE_RANGE
        ]


def test_calls_of_all_callers_are_held_as_long_as_the_server_asks_and_keep_their_order():
    asker = Asker()
    asker.ask()
    asker.throttle(400)
    for number in (1, 2):
        asker.ask(number)
    asker.ask(opcode=Opcode.PING)
    assert [each.opcode for each in asker.requests] == [Opcode.PING]
    asker.time.now = 0.399
    assert asker.client.resume() == []
    assert asker.client.throttling.maybe_seconds_left == pytest.approx(0.001)
    asker.time.now = 0.4
    asker.ask(3)
    assert asker.asked() == [1, 2, 3]
    assert asker.client.throttling.maybe_seconds_left is None
    assert asker.client.resume() == []


def test_open_calls_have_longer_by_each_wait_that_is_asked_for_and_no_more():
    asker = Asker()
    early, (request,) = asker.ask(1), asker.requests
    asker.requests = []
    asker.ask()
    asker.throttle(400)
    asker.time.now = 0.3
    late = asker.ask(2)
    assert asker.client.extension_ms(early) == pytest.approx(400)
    assert asker.client.extension_ms(early) == 0
    assert asker.client.extension_ms(late) == pytest.approx(100)
    asker.requests = [request]
    asker.throttle(200)
    assert asker.client.extension_ms(early) == pytest.approx(100), "400 ms overlap with 100 of it"
    assert asker.client.extension_ms(late) == pytest.approx(100)


def test_a_server_cannot_stop_a_client_for_ever():
    asker = Asker()
    asker.ask()
    asker.throttle(2**31 - 1)
    assert asker.client.throttling.until == limits.IDLE_CONNECTION_MS / 2000


def test_long_waits_are_reported_once_a_minute_with_who_and_how_long(caplog):
    asker = Asker("token file /run/etl.jwt")

    def throttled_until(seconds):
        while asker.time.now < seconds:
            asker.ask()
            asker.throttle(1_000)
            asker.time.now += 1
        found = [each for each in caplog.messages if each.startswith("throttled by the server for")]
        caplog.clear()
        return found

    assert throttled_until(4) == []
    (first,) = throttled_until(64)
    assert "server=h:1 identity=token file /run/etl.jwt waits_ms=5000 in_ms=5000: " in first
    (second,) = throttled_until(124)
    assert "waits_ms=65000 in_ms=65000: " in second
    asker.time.now += 61
    assert throttled_until(189) == [], "an episode without long waits"


@pytest.mark.parametrize(
    ("connecting", "shown"),
    [
        (Connecting(), "none"),
        (Connecting(tls=Tls("ca.pem")), "none"),
        (Connecting(tls=Tls("ca.pem", "etl.pem", "etl.key")), "certificate etl.pem"),
        (
            Connecting(
                tls=Tls("ca.pem", "etl.pem", "etl.key"), credentials=Credentials(token_env="T")
            ),
            "environment variable T",
        ),
    ],
)
def test_the_log_names_what_identifies_the_client(connecting, shown):
    assert connecting.shown_identity == shown


def test_a_deadline_is_extended_by_what_the_server_asked_for():
    time = Time()
    connection = FakeConnection()
    connection.granted_ms = [300.0, 50.0]

    class Silent:
        def start(self, call, sink):
            return connection, Ticket(sink)

    ping = Call("h:1", Opcode.PING, None, 1_000)
    with pytest.raises(DeadlineExceededError):
        run_to_end(exchange(partial(AsyncCalls, Silent(), time), ping), time)
    assert time.now == pytest.approx(1.35)


@pytest.mark.parametrize("opcode", RESPONSE_TABLES)
def test_the_wait_is_found_in_each_answer_that_has_one(opcode):
    table = RESPONSE_TABLES[opcode]
    has_one = "throttle_time_ms" in table.__struct_fields__
    header = table(throttle_time_ms=123_456) if has_one else table()
    assert throttle_ms_in(opcode, encode_header(header)) == (123_456 if has_one else 0)
    assert throttle_ms_in(opcode, encode_header(table())) == 0


@given(st.binary(max_size=64))
def test_bytes_that_are_no_answer_ask_for_any_wait_but_a_negative_one(data):
    assert throttle_ms_in(Opcode.APPEND, data) >= 0
