"""Calls at a server: answered as they arrive where nothing is waited for, and exactly once."""

import asyncio
import logging
import time
import weakref
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from sbp_core import limits
from sbp_core.errors import NotFoundError, RequestTimeoutError, StatusCode
from sbp_core.server.audit import AuditTrail
from sbp_core.server.budget import Budget, Intake
from sbp_core.server.dispatch import Dispatcher, Response, ServerCall
from sbp_core.server.line_file import LineFile
from sbp_core.server.metrics import RequestTimes
from sbp_core.server.outgoing import Unread
from sbp_core.server.peer import Peer as ConnectedPeer
from sbp_core.server.peer import Work
from sbp_core.server.runtime import SystemClock, Turns
from sbp_core.server.trust import ServerRole, Standing
from sbp_core.session.connection import Payload
from sbp_core.session.negotiation import NO_FEATURES, NOTHING, accept, offer
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import (
    AppendRequest,
    AppendResponse,
    AppendResult,
    decode_header,
    encode_header,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import SUCCESS

ANSWER = AppendResponse(0, (AppendResult(stream_id=5, base_offset=7, status=SUCCESS),), SUCCESS)
TOO_LARGE = AppendResponse(0, ANSWER.append_responses * (limits.HEADER_BYTES_MAX // 32), SUCCESS)


class Peer:
    """Keeps what is sent to it, while it has room."""

    def __init__(self) -> None:
        self.agreement = accept(offer(NO_FEATURES), 1)[0]
        self.room = asyncio.Event()
        self.room.set()
        self.sent: list[object] = []
        self.ends: list[Exception | None] = []
        self.standing = Standing()
        self.name = "a peer"

    async def send_response(
        self, request: Frame, header: bytes, payload: Payload, *, is_end: bool
    ) -> None:
        await self.room.wait()
        self.sent.append((decode_header(AppendResponse, header), is_end))

    async def send_system_error(self, request: Frame, error: Exception) -> None:
        self.sent.append(error)

    def throttled(self, header: object, payload: Payload) -> object:
        return header


def run(
    handler,
    body: Callable[[Peer, asyncio.Task[None] | None], Awaitable[None]],
    timeout_ms=0,
    expected_end=None,
):
    """Begin a call, run `body` with its task, and see that the call ends once."""

    async def main():
        peer = Peer()
        dispatcher = Dispatcher(
            {Opcode.APPEND: handler}, role=ServerRole.RANGE_SERVER, clock=SystemClock()
        )
        request = Frame(Opcode.APPEND, 0, 1, encode_header(AppendRequest(timeout_ms=timeout_ms)))
        received_at = asyncio.get_running_loop().time()
        task = dispatcher.begin(request, peer, received_at=received_at, on_end=peer.ends.append)
        await asyncio.wait_for(body(peer, task), 30)
        assert [each and type(each) for each in peer.ends] == [expected_end]

    asyncio.run(main())


def test_a_call_that_waits_for_nothing_is_answered_without_a_task():
    async def handle(call: ServerCall):
        return Response(ANSWER)

    async def body(peer, task):
        assert task is None
        assert peer.sent == [(ANSWER, True)]

    run(handle, body)


def test_a_peer_without_room_is_waited_for():
    async def handle(call: ServerCall):
        await asyncio.sleep(0)
        call.peer.room.clear()
        return Response(ANSWER)

    async def body(peer, task):
        for _ in range(3):
            await asyncio.sleep(0)
        assert peer.sent == []
        peer.room.set()
        await task
        assert peer.sent == [(ANSWER, True)]

    run(handle, body)


@pytest.mark.parametrize("is_stuck_in_the_answer", [False, True])
def test_past_the_deadline_a_call_is_refused_and_what_it_holds_is_given_back(
    is_stuck_in_the_answer,
):
    held: list[str] = []

    @asynccontextmanager
    async def kept():
        held.append("kept")
        try:
            yield
        finally:
            held.remove("kept")

    async def frames():
        async with kept():
            yield Response(ANSWER, is_end=False)

    async def handle(call: ServerCall):
        call.decode(AppendRequest)
        if is_stuck_in_the_answer:
            call.peer.room.clear()
            return frames()
        async with kept():
            return await asyncio.get_running_loop().create_future()

    async def body(peer, task):
        assert held == ["kept"]
        await task
        (error,) = peer.sent
        assert isinstance(error, RequestTimeoutError)
        assert held == []

    run(handle, body, timeout_ms=20)


@pytest.mark.parametrize("has_run", [False, True])
def test_a_call_that_is_cancelled_with_its_connection_ends_without_an_answer(has_run):
    ended: list[BaseException] = []

    async def handle(call: ServerCall):
        call.decode(AppendRequest)
        try:
            await asyncio.get_running_loop().create_future()
        except BaseException as error:
            await asyncio.sleep(0)  # as a generator does that is closed
            ended.append(error)
            raise

    async def body(peer, task):
        if has_run:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert peer.sent == []
        assert [type(each) for each in ended] == [asyncio.CancelledError]

    run(handle, body, timeout_ms=20_000)


def test_a_payload_is_not_kept_while_the_next_frame_waits():
    payloads: list[weakref.ref[object]] = []

    class Buffer(bytearray):
        """Bytes that can be referred to weakly."""

    async def frames():
        payload = Payload([Buffer(10)])
        payloads.append(weakref.ref(payload.parts[0]))
        yield Response(ANSWER, payload, is_end=False)
        del payload
        await may_go_on.wait()
        yield Response(ANSWER)

    async def handle(call: ServerCall):
        return frames()

    async def body(peer, task):
        assert peer.sent == [(ANSWER, False)]
        assert payloads[0]() is None
        may_go_on.set()
        await task

    may_go_on = asyncio.Event()
    run(handle, body)


def test_a_deadline_that_has_passed_on_arrival_is_refused_without_a_task(monkeypatch):
    async def handle(call: ServerCall):
        call._received_at -= 60
        call.decode(AppendRequest)
        raise AssertionError("no caller waits for it")

    async def body(peer, task):
        assert task is None
        assert isinstance(peer.sent[0], RequestTimeoutError)

    run(handle, body, timeout_ms=20_000)


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(
    ("outcome", "code", "message"),
    [
        (NotFoundError(StatusCode.NOT_FOUND, "gone"), StatusCode.NOT_FOUND, "gone"),
        (ValueError("a mistake"), StatusCode.UNKNOWN, "failed unexpectedly; see its log"),
        (TOO_LARGE, StatusCode.UNKNOWN, "the answer cannot be sent"),
    ],
)
def test_a_failure_of_a_handler_is_answered_with_a_code(outcome, code, message, waits):
    async def handle(call: ServerCall):
        if waits:
            await asyncio.sleep(0)
        if isinstance(outcome, Exception):
            raise outcome
        return Response(outcome)

    async def body(peer, task):
        if task is not None:
            await task
        (error,) = peer.sent
        assert error.code is code
        assert message in error.message

    run(handle, body)


@pytest.mark.parametrize("waits", [False, True])
def test_a_call_ends_also_when_not_even_its_error_can_be_sent(waits):
    async def handle(call: ServerCall):
        if waits:
            await asyncio.sleep(0)
        call.peer.send_system_error = None
        raise ValueError("a mistake")

    async def body(peer, task):
        if task is not None:
            await task

    run(handle, body, expected_end=TypeError)


def broken(*args: object, **kwargs: object) -> None:
    raise ValueError("a defect")


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("part", ["audit event", "metrics", "error metrics"])
def test_a_call_ends_also_when_its_audit_event_or_its_metrics_fail(part, waits, caplog):
    async def handle(call: ServerCall):
        if waits:
            await asyncio.sleep(0)
        if part == "audit event":
            call._audited = AuditTrail("a server").maybe_call(Opcode.CREATE_STREAMS, b"", "a peer")
            call._audited.end = broken
        else:
            call._times = RequestTimes()
            call._times.add = broken
        if part == "error metrics":
            call._times.add_failed = broken
        return Response(ANSWER)

    async def body(peer, task):
        if task is not None:
            await task
        lost = [each for each in caplog.messages if each.startswith("audit event lost")]
        assert len(lost) == (part == "audit event")
        assert [each == (ANSWER, True) for each in peer.sent] == {
            "audit event": [True],
            "metrics": [False],
            "error metrics": [],
        }[part]

    run(handle, body, expected_end=ValueError if part == "error metrics" else None)


def test_a_request_gives_back_its_memory_when_its_call_cannot_begin():
    async def main():
        budget = Budget(1_000_000)
        dispatcher = Dispatcher({}, role=ServerRole.RANGE_SERVER, clock=SystemClock())
        dispatcher.begin = broken
        peer = ConnectedPeer(
            dispatcher,
            SystemClock(),
            lambda _: None,
            budget=budget,
            unread=Unread(1_000_000, time.monotonic),
            turns=Turns(),
            connection_id=1,
        )
        request = Frame(Opcode.APPEND, 0, 1, encode_header(AppendRequest()))
        held = Intake(budget, lambda: None).begin(1_000)
        assert budget.taken_bytes == 1_000
        with pytest.raises(ValueError, match="a defect"):
            peer.serve(request, held)
        assert budget.taken_bytes == 0

    asyncio.run(main())


def test_a_request_leaves_those_in_progress_when_giving_back_its_memory_fails():
    async def main():
        work = Work(SystemClock(), lambda _: None)
        budget = Budget(1_000_000)
        held = Intake(budget, lambda: None, on_hold=lambda size: None if size > 0 else broken())
        request = held.begin(1_000)
        work.go_on(asyncio.create_task(asyncio.sleep(0)), request)
        with pytest.raises(ValueError, match="a defect"):
            work.end(request, True, None)
        assert not work.has_tasks
        assert budget.taken_bytes == 0

    asyncio.run(main())


def test_a_request_gives_back_its_quota_when_a_request_that_waited_fails():
    budget = Budget(1_000)
    held_bytes: list[int] = []
    defects: list[object] = []
    first = Intake(budget, lambda: None, on_hold=held_bytes.append).begin(900)
    second = Intake(budget, lambda: defects and broken()).begin(900)
    assert second.is_waiting
    defects.append("from now on")
    with pytest.raises(ValueError, match="a defect"):
        first.end()
    assert not second.is_waiting
    assert sum(held_bytes) == 0


def test_a_line_file_that_cannot_format_an_event_does_not_fail_its_caller(tmp_path, capsys):
    file = LineFile(tmp_path / "lines")
    logger = logging.getLogger("a logger of a line file")
    logger.propagate = False
    logger.addHandler(file)
    logger.error("%d", "not a number")
    logger.error("the next event")
    logger.removeHandler(file)
    file.close()
    assert (tmp_path / "lines").read_text() == "the next event\n"
    assert "not a number" in capsys.readouterr().err


def test_without_deadlines_agreed_on_a_call_waits_as_long_as_it_takes():
    async def handle(call: ServerCall):
        call.agreement = NOTHING
        call._received_at -= 60
        call.decode(AppendRequest)
        return Response(ANSWER)

    async def body(peer, task):
        assert peer.sent == [(ANSWER, True)]

    run(handle, body, timeout_ms=20)
