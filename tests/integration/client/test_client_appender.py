"""Appending while the next batches are made, with the blocking and the asyncio client."""

from __future__ import annotations

from random import Random

import pytest

from sbp_core import limits
from sbp_core.client import AppendItem, RangeInfo, RetryPolicy, Transaction, TxnPart, Writer
from sbp_core.client.operations.appending import AppendKind, AsyncAppender
from sbp_core.client.operations.calls import Context
from sbp_core.client.operations.router import PlacementDrivers, Router
from sbp_core.errors import (
    ConfigurationError,
    ConnectError,
    InvalidRequestError,
    Outcome,
    StatusCode,
    UnsupportedError,
)
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import (
    AppendResponse,
    AppendResult,
    Feature,
    HeartbeatResponse,
    Status,
    encode_header,
)
from sbp_core.wire.opcodes import Flag, Opcode
from tests.support.client import BlockingDriver
from tests.support.clock import until
from tests.support.cluster import rows_batch
from tests.support.scripted_client import AppendWorld
from tests.support.scripted_peer import append_handler, appended, placed, ranges, silent

BUSY = StatusCode.TOO_MANY_REQUESTS
GAP = StatusCode.WRITER_GAP


@pytest.fixture
def server(peer):
    """A server that knows writers and transactions, with two streams."""
    peer.script(
        Opcode.LIST_RANGES,
        ranges(placed(1, 0, 0, -1, peer.endpoint), placed(2, 0, 0, -1, peer.endpoint)),
    )
    accepted = (Feature("idempotent-append"), Feature("transactions"))
    peer.script(Opcode.HEARTBEAT, lambda each: each.answer(HeartbeatResponse(features=accepted)))
    peer.script(Opcode.APPEND, append_handler())
    return peer


class Appending:
    """An appender of either client."""

    def __init__(self, driver, **kind) -> None:
        self._driver = driver
        self.appender = driver.client.appender(**kind)

    def do(self, method, *arguments):
        result = getattr(self.appender, method)(*arguments)
        return result if isinstance(self._driver, BlockingDriver) else self._driver._run(result)


@pytest.fixture
def start(make):
    """Return what starts an appender, which is closed in the end."""
    started = []

    def begin(endpoint, *, retry=None, **kind):
        options = {} if retry is None else {"retry": retry}
        started.append(Appending(make(endpoint, **options), **kind))
        return started[-1]

    yield begin
    for each in started:
        each.do("close")


def items(*values, stream_id=1):
    return [AppendItem(stream_id, rows_batch([value])) for value in values]


def sequences(server):
    return [
        [info.sequence for info in each.header.append_requests]
        for each in server.seen(Opcode.APPEND)
    ]


def hold(exchange):
    """Leave a request without an answer, for now."""


def until_seen(server, count):
    until(lambda: len(server.seen(Opcode.APPEND)) >= count)
    return server.seen(Opcode.APPEND)


@pytest.mark.parametrize("numberer", ["writer", "nothing"])
def test_each_outcome_is_reported_by_its_number(start, server, numberer) -> None:
    kind = {"writer": Writer()} if numberer == "writer" else {}
    found = {}
    appending = start(server.endpoint, on_appended=found.__setitem__, **kind)
    appending.do("append", items(b"a", b"b"))
    appending.do("flush")
    assert sorted(found) == [0, 1]
    appending.do("append", items(b"c", stream_id=2))
    appending.do("finish")
    assert {number: each.stream_id for number, each in found.items()} == {0: 1, 1: 1, 2: 2}


def test_what_was_appended_before_a_failure_is_reported(start, server) -> None:
    server.script(Opcode.APPEND, append_handler(), append_handler(n0=StatusCode.INVALID_REQUEST))
    found = {}
    appending = start(server.endpoint, on_appended=found.__setitem__, writer=Writer())
    appending.do("append", items(b"a"))
    appending.do("flush")
    appending.do("append", items(b"b"))
    with pytest.raises(InvalidRequestError):
        appending.do("flush")
    assert list(found) == [0]


def test_more_is_sent_before_the_last_is_answered(start, server) -> None:
    server.script(Opcode.APPEND, hold)
    appending = start(server.endpoint, transaction=Transaction("t"))
    for value in (b"a", b"b", b"c"):
        appending.do("append", items(value))
    for exchange in until_seen(server, 3):
        appended(exchange)
    server.script(Opcode.APPEND, append_handler())
    appending.do("finish")
    assert sequences(server) == [[0], [1], [2]]


def test_a_failure_is_raised_when_more_is_given_or_in_the_end(start, server) -> None:
    refused = append_handler(n0=StatusCode.INVALID_REQUEST)
    server.script(Opcode.APPEND, append_handler(), refused, append_handler(n0=GAP))
    transaction = Transaction("t")
    appending = start(server.endpoint, transaction=transaction)
    appending.do("append", items(b"a"))
    appending.do("append", items(b"b"))
    with pytest.raises(InvalidRequestError, match="item 1 of") as caught:  # noqa: PT012
        appending.do("append", items(b"c"))
        appending.do("finish")
    assert caught.value.outcome is Outcome.UNKNOWN
    with pytest.raises(ConfigurationError, match="is over"):
        appending.do("finish")
    assert transaction.has_failed
    assert transaction.parts() == (TxnPart("t", 1, 0, 1, 1),)


@pytest.mark.parametrize("numberer", ["writer", "transaction"])
def test_a_stream_that_fails_can_be_given_up(start, server, numberer) -> None:
    server.script(Opcode.APPEND, append_handler(n0=StatusCode.INVALID_REQUEST), append_handler())
    number = Writer() if numberer == "writer" else Transaction("t")
    failed = []
    kind = {numberer: number, "on_failed": lambda *failure: failed.append(failure)}
    appending = start(server.endpoint, **kind)
    appending.do("append", items(b"a") + items(b"b", stream_id=2))
    appending.do("flush")
    assert [(stream_id, each.outcome) for stream_id, each in failed] == [(1, Outcome.NOT_APPLIED)]
    appending.do("append", items(b"c", stream_id=2))
    appending.do("flush")
    assert appending.appender.unacknowledged == []
    with pytest.raises(ConfigurationError, match="an earlier batch of stream 1 failed"):
        appending.do("append", items(b"d"))
    assert numberer == "writer" or number.has_failed


def test_unacknowledged_batches_can_be_appended_another_way(start, peer) -> None:
    peer.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, peer.endpoint)))
    peer.script(Opcode.APPEND, append_handler())
    numbered = start(peer.endpoint, writer=Writer())
    with pytest.raises(UnsupportedError):  # noqa: PT012
        numbered.do("append", items(b"a", b"b"))
        numbered.do("finish")
    assert numbered.appender.unacknowledged == items(b"a", b"b")
    plain = start(peer.endpoint, retry_unknown=True)
    plain.do("append", numbered.appender.unacknowledged)
    plain.do("finish")
    assert len(peer.seen(Opcode.APPEND)) == 1


def test_one_that_is_closed_leaves_its_batches_in_doubt(start, server) -> None:
    server.script(Opcode.APPEND, silent)
    writer, transaction = Writer(), Transaction("t")
    for kind in ({"writer": writer}, {"transaction": transaction}):
        appending = start(server.endpoint, **kind)
        appending.do("append", items(b"a"))
        appending.do("close")
        assert appending.appender.unacknowledged == items(b"a")
    assert transaction.has_failed
    server.script(Opcode.APPEND, append_handler())
    again = start(server.endpoint, writer=writer)
    with pytest.raises(ConfigurationError, match="in doubt"):
        again.do("append", items(b"x"))
    once_more = start(server.endpoint, writer=writer)
    once_more.do("append", items(b"a", b"x"))
    once_more.do("finish")
    assert sequences(server)[-1] == [0, 1]


def test_a_writer_and_a_transaction_are_at_work_until_it_is_finished(start, server) -> None:
    writer, transaction = Writer(), Transaction("t")
    for kind in ({"writer": writer}, {"transaction": transaction}):
        first = start(server.endpoint, **kind)
        first.do("append", items(b"a"))
        with pytest.raises(ConfigurationError, match="one append at a time"):
            start(server.endpoint, **kind).do("append", items(b"b"))
        first.do("finish")
        second = start(server.endpoint, **kind)
        second.do("append", items(b"b"))
        second.do("finish")
    assert sequences(server) == [[0], [1]] * 2


def test_nothing_is_given_to_one_that_is_over(start, server) -> None:
    finished, closed = start(server.endpoint), start(server.endpoint)
    finished.do("append", items(b"a"))
    finished.do("finish")
    closed.do("close")
    for appending in (finished, closed):
        with pytest.raises(ConfigurationError, match="is over"):
            appending.do("append", items(b"b"))
        with pytest.raises(ConfigurationError, match="is over"):
            appending.do("finish")
        appending.do("close")
    assert len(server.seen(Opcode.APPEND)) == 1


def test_an_unusable_batch_sends_nothing_of_its_group(start, server) -> None:
    appending = start(server.endpoint, writer=Writer())
    appending.do("append", items(b"a"))
    with pytest.raises(ConfigurationError, match="item 2"):
        appending.do("append", [*items(b"b"), AppendItem(1, b"")])
    until_seen(server, 1)
    assert sequences(server) == [[0]]


class CountingServer(AppendWorld):
    """Answers at once, but is heard only when the program waits: so frames pile up on their way.

    `on_way` has for each frame how many were, it included. The first one may be refused.
    """

    def __init__(self, first=StatusCode.NONE) -> None:
        super().__init__(draw=None)
        self.on_way = []
        self._code = first

    def reply(self, call):
        self.on_way.append(len(self._arrivals) + 1)
        code, self._code = self._code, StatusCode.NONE
        return success(call, code)


def success(call, code=StatusCode.NONE):
    """The answer that all batches of a frame have this status."""
    results = tuple(
        AppendResult(info.stream_id, info.request_index, 0, 0, Status(code))
        for info in call.header.append_requests
    )
    header = encode_header(AppendResponse(append_responses=results))
    return Frame(Opcode.APPEND, Flag.RESPONSE | Flag.END, 1, header)


def run_in(world, groups, **kind):
    """Append groups of batches in a world where all streams are on one server."""
    router = Router()
    for stream_id in (1, 2):
        router.learn(stream_id, [RangeInfo(stream_id, 0, 0, None, 0, ("a:1",))])
    router.forget = lambda stream_id: None  # type: ignore[method-assign]
    policy = RetryPolicy(budget_ms=1_000, backoff_ms=1, backoff_ms_max=1)
    drivers, timeout_ms = PlacementDrivers("pd:1"), 1000
    context = Context(
        drivers, router, policy, Random(1), timeout_ms, world.open_calls, world.now_ms
    )
    world.append(AsyncAppender(context, AppendKind(**kind)), groups)


def one_by_one(*values, stream_id=1):
    return [items(value, stream_id=stream_id) for value in values]


def test_without_numbers_a_stream_s_batches_wait_for_each_other() -> None:
    """The second would be there without the first, if that was refused."""
    world = CountingServer()
    run_in(world, one_by_one(b"a", b"b", b"c"), retry_unknown=True)
    assert world.on_way == [1, 1, 1]
    numbered = CountingServer()
    run_in(numbered, one_by_one(b"a", b"b", b"c"), writer=Writer())
    assert numbered.on_way == [1, 2, 3]


@pytest.mark.parametrize(
    ("value_bytes", "most"),
    [
        (1, limits.APPENDS_ON_WAY_MAX),
        # The last append on its way may exceed the limit in bytes.
        (limits.APPENDS_ON_WAY_BYTES * 2 // 3, 2),
    ],
)
def test_only_so_much_is_on_its_way(value_bytes, most) -> None:
    world = CountingServer()
    count = most + 3
    values = [bytes([number]) * value_bytes for number in range(count)]
    run_in(world, one_by_one(*values), transaction=Transaction("t"))
    assert world.on_way == [min(number, most) for number in range(1, count + 1)]


def test_a_server_that_had_no_room_gets_one_frame_at_a_time() -> None:
    world = CountingServer(first=BUSY)
    groups = [*one_by_one(b"a"), *one_by_one(b"b", b"c", b"d", stream_id=2)]
    many = [*groups, *one_by_one(*(bytes([number]) for number in range(20)), stream_id=2)]
    run_in(world, many, transaction=Transaction("t"))
    first_alone = world.on_way.index(1, 1)
    assert max(world.on_way[:first_alone]) > 1
    assert set(world.on_way[first_alone:]) == {1}


class SlowCaller(AppendWorld):
    """Takes a minute for each group of batches, and has no connection when one is first sent."""

    def __init__(self) -> None:
        super().__init__(draw=None, caller_takes_ms=60_000)
        self.log = []
        self._refused = set()

    def reply(self, call):
        if not self._refused.issuperset(call.payload):
            self._refused.update(call.payload)
            return ConnectError("x")
        self.log += call.payload
        return success(call)


def test_patience_counts_from_when_there_is_something_to_do() -> None:
    world = SlowCaller()
    run_in(world, one_by_one(b"a", b"b", b"c"), transaction=Transaction("t"))
    assert world.log == [item.batch for item in items(b"a", b"b", b"c")]
