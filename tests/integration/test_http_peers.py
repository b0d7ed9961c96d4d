"""Peers of HTTP that are slow: the listener, on real sockets, with limits that end soon."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from sbp_core.settings.listening import Exposure
from sbp_core.web.http_listener import HttpLimits, HttpListener

PATIENT = HttpLimits(
    connections_max=4,
    head_bytes_max=4096,
    arrival_seconds=60.0,
    body_seconds=60.0,
    answer_seconds=None,
    stall_seconds=60.0,
)
SOON = 0.2
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"


async def echo(scope, receive, send):
    """Answer with the body of a request, when it is whole."""
    body, is_whole = b"", False
    while not is_whole:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message["body"]
        is_whole = not message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


async def endless(scope, receive, send):
    """Answer without an end, as fast as the peer accepts it."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while True:
        await send({"type": "http.response.body", "body": bytes(65_536), "more_body": True})
        await asyncio.sleep(0)


@asynccontextmanager
async def listening(limits, app=echo):
    """Yield a function that connects to a listener."""
    listener = HttpListener(app, limits, None, name="test", port_name="port")
    port = await listener.start("127.0.0.1", 0, Exposure.NOBODY)
    try:
        yield lambda: asyncio.open_connection("127.0.0.1", port)
    finally:
        await listener.stop()


def run(body):
    asyncio.run(asyncio.wait_for(body, 60))


async def rest_of(reader):
    """Return what is sent until the connection is closed, also by an abort."""
    found = b""
    try:
        while data := await reader.read(65_536):
            found += data
    except ConnectionResetError:
        pass
    return found


@pytest.mark.parametrize(
    ("limits", "sent"),
    [
        (replace(PATIENT, arrival_seconds=SOON), b""),
        (replace(PATIENT, arrival_seconds=SOON), b"POST / HTTP/1.1\r\nHost: x\r\n"),
        (replace(PATIENT, body_seconds=SOON), HEAD + b"abc"),
    ],
    ids=["nothing", "half a head", "half a body"],
)
def test_a_request_that_does_not_arrive_is_not_waited_for(limits, sent):
    async def body():
        async with listening(limits) as connect:
            reader, writer = await connect()
            writer.write(sent)
            assert await rest_of(reader) == b""
            writer.close()

    run(body())


def test_a_head_that_has_no_end_is_refused():
    async def body():
        async with listening(PATIENT) as connect:
            reader, writer = await connect()
            writer.write(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 2000)
            assert (await rest_of(reader)).startswith(b"HTTP/1.1 400 ")
            writer.close()

    run(body())


def test_a_request_with_two_lengths_is_refused_and_its_connection_closed():
    async def body():
        async with listening(PATIENT) as connect:
            reader, writer = await connect()
            writer.write(
                b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n"
            )
            answer = await rest_of(reader)
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert answer.count(b"HTTP/1.1") == 1
            writer.close()

    run(body())


def test_a_peer_that_accepts_nothing_of_an_answer_is_cut_off():
    ended = asyncio.Event()

    async def app(scope, receive, send):
        sending = asyncio.ensure_future(endless(scope, receive, send))
        while (await receive())["type"] != "http.disconnect":
            pass
        sending.cancel()
        ended.set()
        await asyncio.gather(sending, return_exceptions=True)

    async def body():
        async with listening(replace(PATIENT, stall_seconds=SOON), app) as connect:
            _, writer = await connect()
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await ended.wait()
            writer.close()

    run(body())


def test_an_answer_may_take_long_while_its_peer_accepts_it():
    limits = replace(PATIENT, arrival_seconds=SOON, body_seconds=SOON, stall_seconds=SOON)

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(5 * SOON)
        await send({"type": "http.response.body", "body": b"late"})

    async def body():
        async with listening(limits, app) as connect:
            reader, writer = await connect()
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await rest_of(reader)).endswith(b"late\r\n0\r\n\r\n")
            writer.close()

    run(body())


def test_idle_connections_leave_their_place_to_a_request():
    async def body():
        async with listening(PATIENT) as connect:
            idle = [await connect() for _ in range(PATIENT.connections_max)]
            reader, writer = await connect()
            writer.write(HEAD + b"abcd")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            rests = [asyncio.create_task(rest_of(each)) for each, _ in idle]
            ended, _ = await asyncio.wait(rests, return_when=asyncio.FIRST_COMPLETED)
            assert {each.result() for each in ended} == {b""}
            for each in rests:
                each.cancel()
            for _, each in [*idle, (reader, writer)]:
                each.close()

    run(body())
