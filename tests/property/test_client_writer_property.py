"""A writer's batches are there once and in order, whatever servers and the network do."""

from __future__ import annotations

from itertools import chain
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_core.client import AppendItem, RangeInfo, RetryPolicy, Writer
from sbp_core.client.operations import numbering
from sbp_core.client.operations.appending import AppendKind, AsyncAppender, append
from sbp_core.client.operations.calls import Context
from sbp_core.client.operations.router import PlacementDrivers, Router
from sbp_core.errors import ConnectError, ConnectionLostError, SbpError, StatusCode
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import AppendResponse, AppendResult, Status, encode_header
from sbp_core.wire.opcodes import Flag, Opcode
from tests.support.scripted_client import AppendWorld, small_frames

STREAMS = (1, 2)
BATCHES_KEPT = 3
MOODS = ("answer", "answer", "answer", "lost after", "lost before", "no", "busy")


@pytest.fixture(autouse=True, scope="module")
def frames_are_small():
    """Several frames of each stream are in flight; a server remembers few batches more."""
    with small_frames(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(numbering._WriterNumbering, "stream_batches_max", BATCHES_KEPT)
        yield


class Server(AppendWorld):
    """Appends what is next, and takes a repeat for what it says that it is."""

    def __init__(self, draw) -> None:
        super().__init__(draw)
        self.logs: dict[int, list[bytes]] = {stream_id: [] for stream_id in STREAMS}

    def reply(self, call):
        mood = self._draw(st.sampled_from(MOODS))
        if mood == "no":
            return ConnectError("x")
        if mood == "lost before":
            return ConnectionLostError("x")
        results = []
        for info, batch in zip(call.header.append_requests, call.payload, strict=True):
            is_busy = mood == "busy" and self._draw(st.booleans())
            code = StatusCode.TOO_MANY_REQUESTS if is_busy else self._take(info, batch)
            results.append(
                AppendResult(info.stream_id, info.request_index, info.sequence, 0, Status(code))
            )
        if mood == "lost after":
            return ConnectionLostError("x")
        header = encode_header(AppendResponse(append_responses=tuple(results)))
        return Frame(Opcode.APPEND, Flag.RESPONSE | Flag.END, 1, header)

    def _take(self, info, batch):
        log = self.logs[info.stream_id]
        if info.sequence > len(log):
            return StatusCode.WRITER_GAP if log else StatusCode.WRITER_UNKNOWN
        if info.sequence < len(log):
            assert log[info.sequence] == batch, "it would be lost"
            is_known = info.sequence >= len(log) - BATCHES_KEPT
            return StatusCode.NONE if is_known else StatusCode.WRITER_REPEAT
        log.append(batch)
        return StatusCode.NONE


def make_context(server: Server) -> Context:
    router = Router()
    for stream_id in STREAMS:
        router.learn(stream_id, [RangeInfo(stream_id, 0, 0, None, 0, ("a:1",))])
    router.forget = lambda stream_id: None  # type: ignore[method-assign]
    policy = RetryPolicy(budget_ms=30, backoff_ms=10, backoff_ms_max=10)
    drivers, calls = PlacementDrivers("pd:1"), server.open_calls
    return Context(drivers, router, policy, Random(1), 1000, calls, server.now_ms)


@given(st.data(), st.lists(st.lists(st.sampled_from(STREAMS), max_size=5), max_size=5))
def test_each_batch_is_appended_once_and_in_order(data, appends) -> None:
    server = Server(data.draw)
    context = make_context(server)
    items = [AppendItem(each, bytes([each, at])) for at, each in enumerate(chain(*appends))]
    given_items = iter(items)
    groups = iter([[next(given_items) for _ in group] for group in appends])
    kind = AppendKind(writer=Writer())
    left: list[AppendItem] = []
    failure: SbpError | None = None
    for _ in range(3):
        appender = AsyncAppender(context, kind)
        try:
            server.append(appender, chain([left], groups))
        except SbpError as error:
            failure = error
        else:
            failure = None
        left = appender.unacknowledged
        if failure is None:
            break
    assert failure is None or failure.retriable
    assert bool(left) == (failure is not None)
    for stream_id, log in server.logs.items():
        sent = [item.batch for item in items if item.stream_id == stream_id]
        assert log == (sent[: len(log)] if failure else sent)


ITEMS = st.builds(AppendItem, st.sampled_from(STREAMS), st.sampled_from([b"x", b"y"]))


@given(st.data(), st.lists(st.lists(ITEMS, max_size=5), max_size=5))
def test_an_append_that_failed_is_repeated_as_a_whole(data, calls) -> None:
    """Also where batches are alike: only the call after one that failed is its repeat."""
    server = Server(data.draw)
    context = make_context(server)
    kind = AppendKind(writer=Writer())
    done: list[AppendItem] = []
    for call in calls:
        for _ in range(5):
            try:
                outcomes = server.run(append(context, call, kind))
            except SbpError:
                continue
            break
        else:
            return
        done += call
        assert [each.stream_id for each in outcomes] == [each.stream_id for each in call]
        for stream_id, log in server.logs.items():
            assert log == [each.batch for each in done if each.stream_id == stream_id]
