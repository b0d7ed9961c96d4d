"""Calls at a server: answered as they arrive where nothing is waited for, and exactly once."""

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from sbp_core import limits
from sbp_core.errors import NotFoundError, RequestTimeoutError, StatusCode
from sbp_core.server.dispatch import Dispatcher, Response, ServerCall
from sbp_core.server.runtime import SystemClock
from sbp_core.server.trust import ServerRole
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
        task = dispatcher.begin(
            request, peer, "a peer", received_at=received_at, on_end=peer.ends.append
        )
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


@pytest.mark.parametrize("timeout_ms", [0, 20_000])
def test_a_call_that_waits_is_answered_by_its_task(timeout_ms):
    async def handle(call: ServerCall):
        call.decode(AppendRequest)
        await asyncio.sleep(0)
        handled_in.append(asyncio.current_task())
        async with asyncio.timeout(30):  # which needs a task
            await asyncio.sleep(0)
        return Response(ANSWER)

    async def body(peer, task):
        assert peer.sent == []
        await task
        assert handled_in == [task]
        assert peer.sent == [(ANSWER, True)]

    handled_in: list[asyncio.Task[None] | None] = []
    run(handle, body, timeout_ms)


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


def test_a_future_that_fails_or_is_awaited_twice_reaches_the_handler():
    async def handle(call: ServerCall):
        for _ in range(2):
            failing = asyncio.get_running_loop().create_future()
            failing.set_exception(OSError("the disk is gone"))
            with pytest.raises(OSError, match="gone"):
                await failing
            await asyncio.sleep(0)
        return Response(ANSWER)

    async def body(peer, task):
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


def test_without_deadlines_agreed_on_a_call_waits_as_long_as_it_takes():
    async def handle(call: ServerCall):
        call.agreement = NOTHING
        call._received_at -= 60
        call.decode(AppendRequest)
        return Response(ANSWER)

    async def body(peer, task):
        assert peer.sent == [(ANSWER, True)]

    run(handle, body, timeout_ms=20)
