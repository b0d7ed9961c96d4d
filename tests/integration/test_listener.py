"""The listener of both servers over real sockets: dispatch, idleness, draining, bounds."""

import asyncio
import socket

import pytest

from sbp_core import limits
from sbp_core.errors import ConfigurationError
from sbp_core.server.accepting import Acceptor
from sbp_core.server.dispatch import Response
from sbp_core.server.listener import Listener
from sbp_core.server.runtime import SystemClock
from sbp_core.server.trust import ServerRole
from sbp_core.settings.listening import Exposure
from sbp_core.wire.headers import (
    AppendRequest,
    AppendResponse,
    IdAllocationRequest,
    IdAllocationResponse,
    Status,
    TrimStreamsResponse,
    decode_system_error,
    encode_header,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import SUCCESS
from tests.support.wire import RawClient


class Service:
    """Answers ALLOCATE_ID when the test lets it, and fails at DESCRIBE_STREAMS."""

    def __init__(self):
        self.gate = asyncio.Event()
        self.started = asyncio.Event()
        self.started_count = 0

    def handlers(self):
        return {
            Opcode.ALLOCATE_ID: self.allocate,
            Opcode.DESCRIBE_STREAMS: self.fail,
            Opcode.TRIM_STREAMS: self.say_too_much,
            Opcode.APPEND: self.append,
        }

    async def allocate(self, call):
        call.decode(IdAllocationRequest)
        self.started_count += 1
        self.started.set()
        await self.gate.wait()
        return Response(IdAllocationResponse(id=7, status=SUCCESS))

    async def append(self, call):
        await self.gate.wait()
        return Response(AppendResponse(throttle_time_ms=len(call.payload)))

    async def fail(self, call):
        raise RuntimeError("a bug")

    async def say_too_much(self, call):
        detail = bytes(limits.HEADER_BYTES_MAX)
        return Response(TrimStreamsResponse(status=Status(detail=detail)))


def run(body, **options):
    async def main():
        service = Service()
        listener = Listener(
            service.handlers(),
            role=ServerRole.RANGE_SERVER,
            clock=SystemClock(),
            **options,
        )
        port = await listener.start("127.0.0.1", 0)
        try:
            await asyncio.wait_for(body(service, listener, port), 30)
        finally:
            await listener.drain(timeout_ms=100)

    asyncio.run(main())


def status_of(frame):
    assert frame.is_system_error
    return decode_system_error(frame.header).status


def test_draining_gives_up_on_a_call_that_never_ends():
    async def body(service, listener, port):
        async with RawClient("127.0.0.1", port) as client:
            stuck = asyncio.create_task(client.call(Opcode.ALLOCATE_ID, IdAllocationRequest()))
            await service.started.wait()
            await listener.drain(timeout_ms=1)
            await client.wait_closed()
            await asyncio.gather(stuck, return_exceptions=True)
            assert stuck.exception() is not None

    run(body)


def test_an_idle_connection_is_closed_and_a_busy_one_is_not():
    async def body(service, listener, port):
        async with RawClient("127.0.0.1", port) as idle, RawClient("127.0.0.1", port) as busy:
            waiting = asyncio.create_task(busy.ask(Opcode.ALLOCATE_ID, IdAllocationRequest()))
            await service.started.wait()
            await idle.wait_closed()
            assert idle.was_sent_away
            service.gate.set()
            (answer,) = await waiting
            assert answer.id == 7

    run(body, idle_connection_ms=50)


def test_requests_beyond_the_bound_are_not_even_read(monkeypatch):
    monkeypatch.setattr(limits, "CONNECTION_IN_FLIGHT_BYTES_MAX", 1 << 20)

    async def body(service, listener, port):
        async with RawClient("127.0.0.1", port) as client, RawClient("127.0.0.1", port) as other:
            calls = [
                asyncio.create_task(client.ask(Opcode.APPEND, AppendRequest(), [bytes(600_000)]))
                for _ in range(30)
            ]
            while not listener._budget.taken_bytes:
                await other.call(Opcode.PING)
            for _ in range(20):
                await other.call(Opcode.PING)
                assert listener._budget.taken_bytes <= 3 * 700_000
            service.gate.set()
            answers = await asyncio.gather(*calls)
            assert [answer.throttle_time_ms for (answer,) in answers] == [600_000] * 30

    run(body)


def test_a_request_counts_for_what_was_decoded_of_it():
    """Neither padding nor a payload that is of no use is kept while a request is worked on."""

    async def body(service, listener, port):
        header = encode_header(IdAllocationRequest()) + bytes(limits.HEADER_UNUSED_BYTES_MAX // 2)
        async with RawClient("127.0.0.1", port) as client:
            calls = [
                asyncio.create_task(client.ask(Opcode.ALLOCATE_ID, header, [bytes(10 << 20)]))
                for _ in range(20)
            ]
            while service.started_count < 20:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert listener._budget.taken_bytes <= 20 * 2 * limits.REQUEST_OVERHEAD_BYTES
            service.gate.set()
            assert [answer.id for (answer,) in await asyncio.gather(*calls)] == [7] * 20
            assert listener._budget.taken_bytes == 0

    run(body)


def test_a_header_that_is_padding_for_the_most_part_is_refused():
    async def body(service, listener, port):
        header = encode_header(IdAllocationRequest()) + bytes(2 * limits.HEADER_UNUSED_BYTES_MAX)
        async with RawClient("127.0.0.1", port) as client:
            (frame,) = await client.call(Opcode.ALLOCATE_ID, header)
            assert "send it without the padding" in status_of(frame).message
            assert listener._budget.taken_bytes == 0

    run(body)


def test_a_taken_port_is_a_clear_error():
    async def body(service, listener, port):
        other = Listener({}, role=ServerRole.RANGE_SERVER, clock=SystemClock())
        with pytest.raises(
            ConfigurationError, match=f"127.0.0.1:{port}: Address already in use; choose"
        ):
            await other.start("127.0.0.1", port)

    run(body)


@pytest.mark.parametrize("exposure", Exposure)
def test_the_addresses_of_a_name_decide_whether_others_reach_it(monkeypatch, caplog, exposure):
    """A name that means this machine today may mean another address tomorrow."""

    async def main():
        addresses = ["127.0.0.1", "0.0.0.0"]
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0)) for each in addresses]

        async def resolve(host, port, **_):
            return found

        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "getaddrinfo", resolve)
        acceptor = Acceptor(lambda *_: None)
        try:
            await acceptor.start("pd.example.org", 0, exposure)
        finally:
            acceptor.close()

    if exposure is Exposure.NOBODY:
        with pytest.raises(ConfigurationError, match=r"pd.example.org \(0.0.0.0\) can be reached"):
            asyncio.run(main())
        return
    asyncio.run(main())
    warned = "listening on 0.0.0.0; clients are not authenticated" in caplog.text
    assert warned == (exposure is Exposure.ANYBODY)
