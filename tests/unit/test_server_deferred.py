"""Calls that are answered later, without a task: when, by what, and once."""

import asyncio
import gc
import inspect
from collections.abc import Callable

import pytest

from sbp_core import limits
from sbp_core.errors import NotFoundError, RequestTimeoutError, StatusCode
from sbp_core.server.dispatch import Dispatcher, PromptHandler
from sbp_core.server.later import Deferred, Later
from sbp_core.server.runtime import SystemClock
from sbp_core.server.trust import ServerRole
from sbp_core.session.connection import Payload
from sbp_core.session.negotiation import NO_WISHES, NOTHING, accept, offer
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
    """Keeps what is sent to it."""

    def __init__(self, agreement=NOTHING) -> None:
        self.agreement = agreement
        self.room = asyncio.Event()
        self.room.set()
        self.sent: list[object] = []

    @property
    def has_room(self) -> bool:
        return self.room.is_set()

    def send_now(self, request: Frame, header: bytes, payload: Payload, *, is_end: bool) -> None:
        assert self.has_room
        assert is_end
        self.sent.append(decode_header(AppendResponse, header))

    async def send_response(
        self, request: Frame, header: bytes, payload: Payload, *, is_end: bool
    ) -> None:
        await self.room.wait()
        self.send_now(request, header, payload, is_end=is_end)

    async def send_system_error(self, request: Frame, error: Exception) -> None:
        self.sent.append(error)

    def throttled(self, header: object, payload: Payload) -> object:
        return header

    def pack(self, parts, crc32=None) -> Payload:
        return Payload(parts, crc32=crc32)


class Appends(PromptHandler):
    """Answers with what `make` returns, once `ready` is over."""

    def __init__(self, ready: asyncio.Future[None], make: Callable[[], object]) -> None:
        self.ready = ready
        self.make = make

    def begin(self, call):
        call.decode(AppendRequest)
        return Later(self.ready, self.make)


def run(body, *, make=lambda: ANSWER, timeout_ms=0):
    """Begin one call of a peer that knows deadlines, and run `body` with what is left of it."""

    async def main():
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        agreement, _ = accept(offer(NO_WISHES), 1)
        peer = Peer(agreement)
        dispatcher = Dispatcher(
            {Opcode.APPEND: Appends(ready, make)},
            role=ServerRole.RANGE_SERVER,
            clock=SystemClock(),
        )
        request = Frame(Opcode.APPEND, 0, 1, encode_header(AppendRequest(timeout_ms=timeout_ms)))
        deferred = dispatcher.begin(request, peer, "a peer", loop.time())
        assert isinstance(deferred, Deferred)
        due: asyncio.Queue[None] = asyncio.Queue()
        deferred.when_due(lambda: due.put_nowait(None))
        await asyncio.wait_for(body(deferred, peer, ready, due), 30)
        assert due.empty(), "it was due twice"

    asyncio.run(main())


def test_it_is_answered_at_once_when_it_is_ready():
    async def body(deferred, peer, ready, due):
        ready.set_result(None)
        await due.get()
        assert deferred.finish() is None
        assert peer.sent == [ANSWER]

    run(body)


def test_a_peer_without_room_is_waited_for():
    async def body(deferred, peer, ready, due):
        peer.room.clear()
        ready.set_result(None)
        await due.get()
        rest = deferred.finish()
        assert inspect.iscoroutine(rest)
        waiting = asyncio.create_task(rest)
        await asyncio.sleep(0)
        assert peer.sent == []
        peer.room.set()
        await waiting
        assert peer.sent == [ANSWER]

    run(body)


def test_when_its_time_is_over_it_is_refused_and_never_answered():
    async def body(deferred, peer, ready, due):
        await due.get()
        await deferred.finish()
        (error,) = peer.sent
        assert isinstance(error, RequestTimeoutError)
        ready.set_result(None)
        await asyncio.sleep(0)

    def make():
        raise AssertionError("no caller waits for it")

    run(body, make=make, timeout_ms=20)


def test_a_result_that_is_ready_in_time_is_not_refused_later():
    async def body(deferred, peer, ready, due):
        ready.set_result(None)
        await due.get()
        assert deferred.finish() is None
        assert deferred._timer.cancelled()
        assert peer.sent == [ANSWER]

    run(body, timeout_ms=20_000)


@pytest.mark.parametrize(
    ("outcome", "code", "message"),
    [
        (NotFoundError(StatusCode.NOT_FOUND, "gone"), StatusCode.NOT_FOUND, "gone"),
        (ValueError("a mistake"), StatusCode.UNKNOWN, "failed unexpectedly; see its log"),
        (TOO_LARGE, StatusCode.UNKNOWN, "the answer cannot be sent"),
    ],
)
def test_a_failure_of_a_handler_is_answered_with_a_code(outcome, code, message):
    async def body(deferred, peer, ready, due):
        ready.set_result(None)
        await due.get()
        await deferred.finish()
        (error,) = peer.sent
        assert error.code is code
        assert message in error.message

    def make():
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    run(body, make=make)


def test_a_failure_without_a_waiter_is_not_reported_to_the_loop(caplog):
    async def body(deferred, peer, ready, due):
        await due.get()
        await deferred.finish()
        ready.set_exception(OSError("the disk is gone"))
        await asyncio.sleep(0)

    run(body, timeout_ms=20)
    gc.collect()
    assert "never retrieved" not in caplog.text
