"""Reads and appends of a client whose servers fail in any way, with a clock that is simulated."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from itertools import pairwise
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sbp_core import limits
from sbp_core.client import AppendItem, FetchItem, RangeInfo, RetryPolicy, Writer
from sbp_core.client.operations.appending import AppendKind, append
from sbp_core.client.operations.calls import Context
from sbp_core.client.operations.fetching import fetch
from sbp_core.client.operations.open_calls import Arrival
from sbp_core.client.operations.range_placement import range_info
from sbp_core.client.operations.replicas import Replicas
from sbp_core.client.operations.router import PlacementDrivers, Router
from sbp_core.errors import (
    ConnectError,
    ConnectionLostError,
    DeadlineExceededError,
    SbpError,
    StatusCode,
)
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import (
    AppendResponse,
    AppendResult,
    FetchResponse,
    FetchResult,
    ListRangesResponse,
    ListRangesResult,
    RangeServer,
    ReplicaServer,
    SealRangesResponse,
    SealRangesResult,
    Status,
    StreamRange,
    encode_header,
)
from sbp_core.wire.opcodes import Flag, Opcode
from tests.support.clock import examples
from tests.support.scripted_client import at_once

SERVERS = ("a:1", "b:1", "c:1")
UP, REFUSED, LOST, SILENT = "up", "refused", "lost", "silent"
LOST_AFTER = "lost after"
ELSEWHERE = {
    "not settled": StatusCode.RANGE_NOT_FOUND,
    "damaged": StatusCode.RS_DATA_CORRUPTED,
    "stopping": StatusCode.RS_SHUTTING_DOWN,
    "behind": StatusCode.OFFSET_OUT_OF_RANGE,
    "nothing there": StatusCode.NONE,
}
POLICY = RetryPolicy(budget_ms=60_000, backoff_ms=50, backoff_ms_max=2_000)
CALL_MS = 30_000
NO_ANSWER = {REFUSED: ConnectError, LOST: ConnectionLostError, SILENT: DeadlineExceededError}


def framed(opcode: Opcode, header: object, payload: bytes = b"") -> Frame:
    return Frame(opcode, Flag.RESPONSE | Flag.END, 1, encode_header(header), payload)


class _Calls:
    """The calls of one operation in a cluster."""

    def __init__(self, cluster):
        self._cluster = cluster
        self._count = 0
        self._arrivals = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._arrivals.clear()

    def now_ms(self):
        return self._cluster.now_ms

    async def start(self, call):
        number, self._count = self._count, self._count + 1
        content, takes_ms = self._cluster.reply(call)
        self._arrivals.append((Arrival(number, content), self.now_ms() + takes_ms))
        return number

    def abandon(self, number):
        self._arrivals = [each for each in self._arrivals if each[0].number != number]

    async def receive(self, numbers, until_ms=None):
        cluster = self._cluster
        if not numbers:
            cluster.now_ms = max(cluster.now_ms, until_ms)
            return None
        arrival, at_ms = next(each for each in self._arrivals if each[0].number in numbers)
        self._arrivals.remove((arrival, at_ms))
        cluster.now_ms = max(cluster.now_ms, at_ms)
        return arrival


class Cluster:
    """Runs operations against servers that answer at once, or fail as they are told to.

    A server that is silent costs the timeout of the call.
    """

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.moods = dict.fromkeys(SERVERS, UP)
        self.asked: dict[int, list[tuple[str, bool]]] = {}
        """By offset: the servers that were asked for it, and whether they failed."""
        self.log: list[int] = []
        self.ranges = [(0, SERVERS)]
        """The first offset and the servers of each range."""
        self.seal_times: list[float] = []
        self.is_sealing = True
        """Whether the placement driver can seal."""

    def run(self, work):
        """Run an operation; return what it yields, and its result."""
        if not isinstance(work, AsyncGenerator):
            return [], at_once(work)
        yielded = []
        try:
            while True:
                yielded.append(at_once(work.asend(None)))
        except StopAsyncIteration:
            return yielded, None

    def open_calls(self):
        return _Calls(self)

    def placed(self) -> list[StreamRange]:
        ends = [start for start, _ in self.ranges[1:]] + [-1]
        return [
            StreamRange(
                1,
                index,
                start,
                end,
                end,
                tuple(
                    ReplicaServer(RangeServer(SERVERS.index(each), each), each == servers[0])
                    for each in servers
                ),
            )
            for index, ((start, servers), end) in enumerate(zip(self.ranges, ends, strict=True))
        ]

    def seal(self, range_index: int) -> None:
        """End a range if it is open; the next one begins at a server that is up, if one is."""
        if range_index == len(self.ranges) - 1:
            primary = next((each for each in SERVERS if self.moods[each] == UP), SERVERS[0])
            others = tuple(each for each in SERVERS if each != primary)
            self.ranges.append((len(self.log), (primary, *others)))

    def reply(self, call):
        if call.opcode is Opcode.LIST_RANGES:
            listed = ListRangesResult(ranges=tuple(self.placed()), stream_id=1)
            return framed(call.opcode, ListRangesResponse(list_responses=(listed,))), 1
        if call.opcode is Opcode.SEAL_RANGE:
            return framed(call.opcode, self._sealed(call.header)), 1
        mood = self.moods[call.endpoint]
        if call.opcode is Opcode.FETCH:
            for each in call.header.fetch_requests:
                self.asked.setdefault(each.fetch_offset, []).append((call.endpoint, mood != UP))
        if mood in NO_ANSWER:
            return NO_ANSWER[mood]("x"), call.timeout_ms if mood == SILENT else 1
        if call.opcode is Opcode.APPEND:
            answer = framed(call.opcode, self._appended(call))
            return (ConnectionLostError("x") if mood == LOST_AFTER else answer), 1
        return framed(call.opcode, *self._fetched(call.header, mood)), 1

    def _sealed(self, request):
        self.seal_times.append(self.now_ms)
        code = StatusCode.NONE if self.is_sealing else StatusCode.SEAL_NO_SERVER_ANSWERED
        for each in request.ranges if self.is_sealing else ():
            self.seal(each.range_index)
        result = SealRangesResult(self.placed()[-1], Status(code, "scripted"), 1)
        return SealRangesResponse(seal_responses=(result,))

    def _fetched(self, request, mood):
        results, payload = [], b""
        for item in request.fetch_requests:
            code = ELSEWHERE.get(mood, StatusCode.NONE)
            data = b"" if mood in ELSEWHERE else b"data"
            next_offset = item.fetch_offset + len(data)
            results.append(
                FetchResult(
                    1, item.request_index, 1, Status(code, "scripted"), len(data), next_offset
                )
            )
            payload += data
        return FetchResponse(fetch_responses=tuple(results)), payload

    def _appended(self, call):
        results = []
        for info, batch in zip(call.header.append_requests, call.payload, strict=True):
            number, code, offset = batch[0], StatusCode.NONE, -1
            if number in self.log and info.writer_id is not None:
                offset = self.log.index(number)
            elif info.stream_range.range_index != len(self.ranges) - 1:
                code = StatusCode.RANGE_ALREADY_SEALED
            else:
                self.log.append(number)
                offset = len(self.log) - 1
            results.append(AppendResult(1, info.request_index, offset, 0, Status(code, "scripted")))
        return AppendResponse(append_responses=tuple(results))


class _Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster()
        self.context = Context(
            PlacementDrivers("pd:1"),
            Router(),
            POLICY,
            Random(1),
            CALL_MS,
            self.cluster.open_calls,
            lambda: self.cluster.now_ms,
            replicas=Replicas(1, lambda endpoint: endpoint == "b:1"),
        )

    @rule(passed_ms=st.integers(1, 3 * limits.REPLICA_PAUSE_MS))
    def time_passes(self, passed_ms):
        self.cluster.now_ms += passed_ms


class Reads(_Machine):
    """One range is sealed at offset 100, and read while its replicas fail."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster.ranges = [(0, SERVERS), (100, SERVERS)]

    @rule(server=st.sampled_from(SERVERS), mood=st.sampled_from([UP, *NO_ANSWER, *ELSEWHERE]))
    def change(self, server, mood):
        self.cluster.moods[server] = mood

    @rule(offsets=st.lists(st.integers(0, 99), min_size=1, max_size=3, unique=True))
    def read(self, offsets):
        cluster, began_ms = self.cluster, self.cluster.now_ms
        items = [FetchItem(1, offset, None, 1000) for offset in offsets]
        outcomes, _ = cluster.run(fetch(self.context, items, max_wait_ms=0, min_bytes=1))
        assert sorted(each.item_index for each in outcomes) == list(range(len(items)))
        is_one_up = UP in cluster.moods.values()
        for each in outcomes:
            assert (each.error is None) == is_one_up
            if each.error is None:
                assert bytes(each.payload) == b"data"
            else:
                known = str(each.error)
                is_gone = set(cluster.moods.values()) == {"behind"}
                assert is_gone or all(server in known for server in SERVERS)
        round_ms = 2 * limits.REPLICA_TIMEOUT_MS + CALL_MS
        assert cluster.now_ms - began_ms <= POLICY.budget_ms + round_ms + 100
        if is_one_up:
            assert cluster.now_ms - began_ms <= 2 * limits.REPLICA_TIMEOUT_MS + 100

    @invariant()
    def no_server_is_asked_twice_in_a_row_that_failed(self):
        for asked in self.cluster.asked.values():
            for (before, has_failed), (after, _) in pairwise(asked):
                assert not has_failed or before != after
        self.cluster.asked.clear()


class Appends(_Machine):
    """Numbered and other appends, while primaries fail and ranges are sealed."""

    def __init__(self) -> None:
        super().__init__()
        self.writer = Writer()
        self.next = 0
        self.left: list[AppendItem] = []
        self.maybe: set[int] = set()
        """Batches without numbers of an append that failed."""
        self.acknowledged: list[int] = []

    @rule(
        server=st.sampled_from(SERVERS),
        mood=st.sampled_from([UP, UP, REFUSED, LOST, SILENT, LOST_AFTER]),
    )
    def change(self, server, mood):
        self.cluster.moods[server] = mood

    @rule(is_sealing=st.booleans())
    def change_driver(self, is_sealing):
        self.cluster.is_sealing = is_sealing

    @rule()
    def driver_seals(self):
        self.cluster.seal(len(self.cluster.ranges) - 1)

    @precondition(lambda self: self.next < 200)
    @rule(count=st.integers(1, 3))
    def append_numbered(self, count):
        items = [*self.left, *self._new(count)]
        try:
            self._append(items, AppendKind(writer=self.writer))
        except SbpError:
            self.left = items
        else:
            self.left = []
            self.acknowledged += [each.batch[0] for each in items]

    @precondition(lambda self: self.next < 200)
    @rule(count=st.integers(1, 3))
    def append_plainly(self, count):
        items = self._new(count)
        try:
            self._append(items, AppendKind())
        except SbpError:
            self.maybe |= {each.batch[0] for each in items}
        else:
            self.acknowledged += [each.batch[0] for each in items]

    @invariant()
    def nothing_is_lost_or_doubled(self):
        log = self.cluster.log
        assert len(log) == len(set(log))
        assert set(self.acknowledged) <= set(log)
        unsure = self.maybe | {each.batch[0] for each in self.left}
        assert set(log) <= set(self.acknowledged) | unsure

    @invariant()
    def seals_are_not_asked_for_by_each_try(self):
        times, self.cluster.seal_times = self.cluster.seal_times, []
        pauses = [after - before for before, after in pairwise(times)]
        assert all(each >= 0 for each in pauses)
        if not self.cluster.is_sealing:
            assert all(each >= limits.PRIMARY_PATIENCE_MS for each in pauses)

    def _new(self, count: int) -> list[AppendItem]:
        begin, self.next = self.next, self.next + count
        return [AppendItem(1, bytes([number])) for number in range(begin, self.next)]

    def _append(self, items, kind):
        cluster, began_ms = self.cluster, self.cluster.now_ms
        is_well = set(cluster.moods.values()) <= {UP, REFUSED}
        may_go_on = is_well and UP in cluster.moods.values() and cluster.is_sealing
        try:
            cluster.run(append(self.context, items, kind))
        except SbpError:
            assert not may_go_on, "a server is up, and the driver seals"
            raise
        finally:
            assert cluster.now_ms - began_ms <= POLICY.budget_ms + CALL_MS + 15_000


TestReads = Reads.TestCase
TestReads.settings = settings(max_examples=examples(40), stateful_step_count=20)
TestAppends = Appends.TestCase
TestAppends.settings = settings(max_examples=examples(40), stateful_step_count=20)


def test_the_model_lists_ranges_as_the_client_sees_them():
    cluster = Cluster()
    cluster.seal(0)
    first, last = map(range_info, cluster.placed())
    assert first == RangeInfo(1, 0, 0, 0, 0, SERVERS)
    assert (last.end_offset, last.servers) == (None, SERVERS)
