"""A transaction stages each batch once and in order, whatever servers, seals and the network do.

The servers judge as real ones do, with their own code; what they lack is a disk and a wire.
"""

from __future__ import annotations

from itertools import chain
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_core.client import AppendItem, RangeInfo, RetryPolicy, Transaction
from sbp_core.client.operations.appending import AppendKind, AsyncAppender, append
from sbp_core.client.operations.calls import Context
from sbp_core.client.operations.router import PlacementDrivers, Router
from sbp_core.errors import (
    ConnectError,
    ConnectionLostError,
    SbpError,
    StatusCode,
    StatusError,
    ThrottledError,
)
from sbp_core.log.entry import Location
from sbp_core.log.states.staged_states import StagedStates
from sbp_core.rangeserver.appending.append_items import InFlight, Item
from sbp_core.rangeserver.appending.staging import Stagings
from sbp_core.rangeserver.hosted_ranges import HostedRange, RangeInput
from sbp_core.records import encode_envelope, peek_batch
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import (
    AppendResponse,
    AppendResult,
    ListRangesResponse,
    ListRangesResult,
    RangeServer,
    ReplicaServer,
    StreamRange,
    encode_header,
)
from sbp_core.wire.opcodes import Flag, Opcode
from sbp_core.wire.status import SUCCESS, status_for
from tests.support.scripted_client import AppendWorld, small_frames

STREAMS = (1, 2)
SERVERS = ("a:1", "b:1")
MOODS = ("answer", "answer", "answer", "answer", "lost after", "lost before", "no", "busy")


@pytest.fixture(autouse=True, scope="module")
def frames_are_small():
    """Several frames of each stream are in flight."""
    with small_frames():
        yield


def batch(number: int, record_count: int) -> bytes:
    body = [number.to_bytes(2, "big")]
    return encode_envelope(
        body, stream_id=0, record_count=record_count, base_timestamp_ms=0, encoding="opaque"
    )


class World(AppendWorld):
    """Two range servers with the ranges of streams in turn, and a placement driver."""

    def __init__(self, draw) -> None:
        super().__init__(draw)
        self.staged: dict[tuple[int, int], list[bytes]] = {}
        """The batches staged in each range, by stream id and range index."""
        self._states = {server: StagedStates() for server in SERVERS}
        self._ranges = {stream_id: [HostedRange(stream_id, 0, 0)] for stream_id in STREAMS}

    def reply(self, call):
        if call.opcode is Opcode.LIST_RANGES:
            return self._answer(call.opcode, self._listed(call.header))
        if call.opcode is Opcode.SEAL_RANGE:  # the next range is opened in any case, or late
            return ConnectError("x")
        mood = self._draw(st.sampled_from(MOODS))
        if mood == "no":
            return ConnectError("x")
        if mood == "lost before":
            return ConnectionLostError("x")
        answer = self._append(call, is_busy=mood == "busy")
        if mood == "lost after":
            return ConnectionLostError("x")
        return self._answer(call.opcode, answer)

    def _answer(self, opcode, header):
        return Frame(opcode, Flag.RESPONSE | Flag.END, 1, encode_header(header))

    def _listed(self, request):
        """List the ranges known to the placement driver, which may open the next range late."""
        results = []
        for owner in request.range_owners:
            ranges = self._ranges[owner.stream_id]
            if ranges[-1].end_offset is not None and self._draw(st.booleans()):
                ranges.append(HostedRange(owner.stream_id, len(ranges), 0))
            placed = tuple(
                StreamRange(
                    owner.stream_id,
                    each.range_index,
                    0,
                    -1 if each is ranges[-1] else 0,
                    0,
                    (ReplicaServer(RangeServer(1, self._server(each.range_index))),),
                )
                for each in ranges
            )
            results.append(ListRangesResult(owner, placed, SUCCESS, owner.stream_id))
        return ListRangesResponse(list_responses=tuple(results), status=SUCCESS)

    def _server(self, range_index):
        return SERVERS[range_index % len(SERVERS)]

    def _append(self, call, *, is_busy):
        states = self._states[call.endpoint]
        stagings = Stagings(states, InFlight())
        results = []
        for info, data in zip(call.header.append_requests, call.payload, strict=True):
            ranges = self._ranges[info.stream_id]
            if self._draw(st.sampled_from([False, False, False, True])):
                ranges[-1].receive(RangeInput.SEAL)
            item = Item(info, info.stream_id, info.stream_range.range_index, memoryview(data))
            try:
                if is_busy:
                    raise ThrottledError(StatusCode.TOO_MANY_REQUESTS, "busy")
                status = self._stage(states, stagings, item, self._latest(call.endpoint, ranges))
            except SbpError as error:
                status = status_for(error)
            results.append(AppendResult(info.stream_id, info.request_index, -1, 0, status))
        return AppendResponse(append_responses=tuple(results))

    def _latest(self, server, ranges):
        return [each for each in ranges if self._server(each.range_index) == server][-1]

    def _stage(self, states, stagings, item, latest):
        _, entries = stagings.accept(item, latest, peek_batch(item.batch).record_count)
        for entry in entries:
            key = (item.stream_id, item.range_index)
            self.staged.setdefault(key, []).append(bytes(item.batch))
            states.apply(entry, Location(0, entry.length), 0)
        return SUCCESS


Appends = st.lists(
    st.lists(st.tuples(st.sampled_from(STREAMS), st.integers(1, 3)), max_size=5), max_size=4
)


@given(st.data(), Appends, st.booleans())
def test_each_batch_is_staged_once_and_in_order(data, appends, is_gradual) -> None:
    world, router = World(data.draw), Router()
    for stream_id in STREAMS:
        router.learn(stream_id, [RangeInfo(stream_id, 0, 0, None, 0, SERVERS[:1])])
    policy = RetryPolicy(budget_ms=100, backoff_ms=10, backoff_ms_max=10)
    drivers, calls = PlacementDrivers("pd:1"), world.open_calls
    context = Context(drivers, router, policy, Random(1), 1000, calls, world.now_ms)
    transaction = Transaction("t")
    items = [AppendItem(each, batch(at, n)) for at, (each, n) in enumerate(chain(*appends))]
    given_items = iter(items)
    groups = [[next(given_items) for _ in group] for group in appends]
    failure: SbpError | None = None
    try:
        if is_gradual:
            kind = AppendKind(transaction=transaction)
            world.append(AsyncAppender(context, kind), groups)
        else:
            for group in groups:
                program = append(context, group, AppendKind(transaction=transaction))
                outcomes = world.run(program)
                assert [outcome.base_offset for outcome in outcomes] == [-1] * len(group)
    except SbpError as error:
        failure = error
    assert transaction.has_failed == (failure is not None)
    is_refused = isinstance(failure, StatusError) and not failure.retriable
    assert not is_refused, "no server has a reason to refuse anything for good"
    parts = {(part.stream_id, part.range_index): part for part in transaction.parts()}
    assert set(world.staged) <= set(parts)  # so that it can be dropped
    if transaction.has_failed:
        return
    assert set(world.staged) == set(parts)
    for stream_id in STREAMS:
        own = [part for key, part in parts.items() if key[0] == stream_id]
        staged = [batch for part in own for batch in world.staged[stream_id, part.range_index]]
        sent = [item.batch for item in items if item.stream_id == stream_id]
        assert staged == sent
        counts = [peek_batch(batch).record_count for batch in sent]
        assert sum(part.record_count for part in own) == sum(counts)
