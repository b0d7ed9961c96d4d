"""Properties of the router and of retry waits, and of append order against any server."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from sbp_core.client import AppendItem, RangeInfo, RetryPolicy
from sbp_core.client.operations.appending import AppendKind, append
from sbp_core.client.operations.calls import Context
from sbp_core.client.operations.router import PlacementDrivers, Router
from sbp_core.errors import (
    ConnectError,
    ConnectionLostError,
    Outcome,
    SbpError,
    StatusCode,
    ThrottledError,
)
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import AppendResponse, AppendResult, Status, encode_header
from sbp_core.wire.opcodes import Flag, Opcode
from tests.support.scripted_client import AppendWorld, small_frames


@given(
    st.integers(0, 5), st.lists(st.integers(0, 4), max_size=6), st.booleans(), st.integers(0, 40)
)
def test_an_offset_is_in_the_range_that_the_router_finds(start, lengths, is_open, offset) -> None:
    pieces, position = [], start
    for index, length in enumerate(lengths):
        pieces.append(RangeInfo(1, index, position, position + length, 0, ()))
        position += length
    if is_open:
        pieces.append(RangeInfo(1, len(pieces), position, None, 0, ()))
    router = Router()
    router.learn(1, reversed(pieces))
    found = router.maybe_range_at(1, offset)
    if found is None:
        assert not pieces or offset < start or (not is_open and offset > position)
    else:
        assert found.start_offset <= offset
        assert found.end_offset is None or offset <= found.end_offset
        assert offset != found.end_offset or found is pieces[-1]


@given(
    st.integers(1, 1000),
    st.integers(0, 100_000),
    st.integers(0, 5000),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_waits_are_bounded(attempt_count, elapsed_ms, throttle_ms, seed, is_throttled) -> None:
    policy = RetryPolicy(budget_ms=10_000, backoff_ms=10, backoff_ms_max=500)
    error: SbpError = ConnectError("x")
    if is_throttled:
        error = ThrottledError(StatusCode.TOO_MANY_REQUESTS, "x")
        error.throttle_time_ms = throttle_ms
    wait_ms = policy.maybe_wait_ms(
        error,
        is_repeatable=True,
        attempt_count=attempt_count,
        elapsed_ms=elapsed_ms,
        random=Random(seed),
    )
    least_ms = throttle_ms if is_throttled else 0
    if wait_ms is None:
        assert elapsed_ms + least_ms + 500 >= policy.budget_ms
    else:
        assert least_ms <= wait_ms <= least_ms + 500
        assert elapsed_ms + wait_ms <= policy.budget_ms


class MoodyServer(AppendWorld):
    """Any item may fail in any way, at any try.

    An orderly one refuses what follows a refused batch of the same stream in the same frame.
    """

    def __init__(self, draw, *, is_orderly: bool) -> None:
        super().__init__(draw)
        self.log: list[bytes] = []
        self._is_orderly = is_orderly

    def reply(self, call):
        mood = self._draw(st.sampled_from(["answer", "answer", "lost after", "lost before", "no"]))
        if mood == "no":
            return ConnectError("x")
        if mood == "lost before":
            return ConnectionLostError("x")
        results = []
        refused: set[int] = set()
        for info, batch in zip(call.header.append_requests, call.payload, strict=True):
            code = self._draw(st.sampled_from([0, 0, 0, 1429, 1400]))
            if self._is_orderly and info.stream_id in refused:
                code = 1429
            if code == 0:
                self.log.append(batch)
            else:
                refused.add(info.stream_id)
            results.append(
                AppendResult(info.stream_id, info.request_index, len(self.log), 0, Status(code))
            )
        if mood == "lost after":
            return ConnectionLostError("x")
        header = encode_header(AppendResponse(append_responses=tuple(results)))
        return Frame(Opcode.APPEND, Flag.RESPONSE | Flag.END, 1, header)


@given(st.data(), st.lists(st.integers(1, 2), max_size=6), st.booleans(), st.booleans())
def test_appends_are_never_reordered_and_duplicated_only_on_request(
    data, stream_ids, retry_unknown, is_orderly
) -> None:
    router = Router()
    for stream_id in (1, 2):
        router.learn(stream_id, [RangeInfo(stream_id, 0, 0, None, 0, ("h:1",))])
    router.forget = lambda stream_id: None  # type: ignore[method-assign]
    items = [AppendItem(each, bytes([each, index])) for index, each in enumerate(stream_ids)]
    server = MoodyServer(data.draw, is_orderly=is_orderly)
    drivers, policy = PlacementDrivers("pd:1"), RetryPolicy(500, 10, 100)
    context = Context(drivers, router, policy, Random(0), 1000, server.open_calls, server.now_ms)
    outcomes = []
    failure: SbpError | None = None
    try:
        with small_frames():
            outcomes = server.run(append(context, items, AppendKind(retry_unknown)))
    except SbpError as error:
        failure = error
    if failure is None:
        assert len(outcomes) == len(items)
    elif failure.outcome is Outcome.NOT_APPLIED:
        assert not server.log
    if not retry_unknown:
        assert len(set(server.log)) == len(server.log)
    for stream_id in (1, 2):
        offsets = [each.base_offset for each in outcomes if each.stream_id == stream_id]
        assert offsets == sorted(offsets)
        landed = [batch[1] for batch in server.log if batch[0] == stream_id]
        firsts = list(dict.fromkeys(landed))
        if is_orderly or not retry_unknown:
            assert firsts == sorted(firsts)
