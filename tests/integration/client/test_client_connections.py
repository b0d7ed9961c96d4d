"""Connections of the blocking and the asyncio client: made, lost, drained, replaced, shared."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from unittest.mock import ANY

import pytest

from sbp_core.client import AppendItem, AppendOutcome, FetchItem, StreamInfo, StreamSpec, Writer
from sbp_core.client.connecting import Connecting
from sbp_core.client.facades import loop_thread
from sbp_core.client.io.aio_connection import AsyncConnection
from sbp_core.client.operations.open_calls import Call
from sbp_core.errors import (
    ClientClosedError,
    ConfigurationError,
    ConnectError,
    ConnectionLostError,
    DeadlineExceededError,
    Outcome,
    ProtocolError,
    ShuttingDownError,
    StatusCode,
)
from sbp_core.session.negotiation import FeatureName
from sbp_core.wire.headers import DescribeStreamsResponse
from sbp_core.wire.opcodes import Opcode
from tests.support.client import BlockingDriver
from tests.support.clock import until
from tests.support.cluster import rows_batch
from tests.support.scripted_peer import (
    NO_RETRY,
    Exchange,
    append_handler,
    placed,
    ranges,
    reset,
    silent,
)


def test_ping_measures_and_the_first_call_is_a_heartbeat(make, peer) -> None:
    driver = make(peer.endpoint)
    assert driver.do("ping") >= 0
    assert [each.opcode for each in peer.requests] == [Opcode.HEARTBEAT, Opcode.PING]
    assert peer.requests[0].header.client_id


def test_refused_connection_names_endpoint_reason_and_remedy(make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        endpoint = f"127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(ConnectError) as caught:
        make(endpoint, retry=NO_RETRY).do("list_streams")
    for part in (endpoint, "refused", "DESCRIBE_STREAMS", "sbp serve"):
        assert part in str(caught.value)
    assert caught.value.outcome is Outcome.NOT_APPLIED


def test_unknown_host_is_a_connect_error(make, monkeypatch) -> None:
    def fail(*_: object, **__: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(ConnectError, match=r"nowhere\.invalid:1.*not known"):
        make("nowhere.invalid:1", retry=NO_RETRY).do("ping")


@pytest.mark.parametrize(
    "endpoint", ["", "host", "host:", "host:0", "host:65536", "::1:5", "a b:1"]
)
def test_a_bad_endpoint_is_refused_at_once(make, endpoint) -> None:
    with pytest.raises(ConfigurationError, match="host:port"):
        make(endpoint)


def test_a_closed_idle_connection_is_replaced(make, peer) -> None:
    driver = make(peer.endpoint)
    driver.do("ping")
    peer.links[0].close()
    assert peer.links[0].is_over.wait(5)
    peer.script(Opcode.DESCRIBE_STREAMS, lambda each: each.answer(DescribeStreamsResponse()))
    assert driver.do("list_streams") == []
    assert len(peer.links) == 2


def test_goaway_finishes_open_calls_and_moves_on(make, peer) -> None:
    def drain(exchange: Exchange) -> None:
        exchange.link.goaway()
        exchange.answer(DescribeStreamsResponse())

    peer.script(Opcode.DESCRIBE_STREAMS, drain, lambda each: each.answer(DescribeStreamsResponse()))
    driver = make(peer.endpoint, retry=NO_RETRY)
    assert driver.do("list_streams") == []
    assert driver.do("list_streams") == []
    assert len(peer.links) == 2
    assert peer.links[0].is_over.wait(5), "the drained connection is closed by the client"


def test_a_shutting_down_server_is_asked_again(make, peer) -> None:
    error = ShuttingDownError(StatusCode.RS_SHUTTING_DOWN, "draining")
    peer.script(
        Opcode.DESCRIBE_STREAMS,
        lambda each: each.fail(error),
        lambda each: each.answer(DescribeStreamsResponse()),
    )
    assert make(peer.endpoint).do("list_streams") == []


def test_a_deadline_ends_the_call_and_retires_the_connection(make, peer) -> None:
    peer.script(
        Opcode.DESCRIBE_STREAMS, silent, lambda each: each.answer(DescribeStreamsResponse())
    )
    driver = make(peer.endpoint, timeout_ms=50, retry=NO_RETRY)
    with pytest.raises(DeadlineExceededError, match="DESCRIBE_STREAMS"):
        driver.do("list_streams")
    assert peer.links[0].is_over.wait(5)
    assert make(peer.endpoint).do("list_streams") == []


def test_garbage_from_the_peer_is_an_error_not_a_hang(make, peer) -> None:
    def garbage(exchange: Exchange) -> None:
        exchange.link.send([b"HTTP/1.1 400 Bad Request\r\n\r\n"])

    peer.script(Opcode.DESCRIBE_STREAMS, garbage)
    with pytest.raises(ConnectionLostError, match="does not speak SBP"):
        make(peer.endpoint, retry=NO_RETRY).do("list_streams")


def test_an_unreadable_header_is_an_error(make, peer) -> None:
    def broken(exchange: Exchange) -> None:
        exchange.link.send(exchange.link.session.send_response(exchange.frame, b"\xff" * 9))

    peer.script(Opcode.DESCRIBE_STREAMS, broken)
    with pytest.raises(ProtocolError):
        make(peer.endpoint).do("list_streams")


def test_calls_after_close_are_refused(make, peer) -> None:
    driver = make(peer.endpoint, retry=NO_RETRY)
    driver.do("ping")
    driver.do("close")
    with pytest.raises(ClientClosedError, match="the client is closed") as raised:
        driver.do("ping")
    assert "sbp serve" not in str(raised.value), "the server may be all right"
    assert not raised.value.retriable
    assert peer.links[0].is_over.wait(5)


def test_threads_share_a_blocking_client(peers) -> None:
    peer = peers()
    peer.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, peer.endpoint)))
    peer.script(Opcode.APPEND, append_handler())
    driver = BlockingDriver(peer.endpoint)
    made: list[AppendOutcome] = []

    def work() -> None:
        for _ in range(20):
            made.extend(driver.do("append", [AppendItem(1, b"x" * 100_000)]))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    driver.close()
    assert made == [AppendOutcome(1, 100, 7)] * 120
    assert len(peer.links) == 1


def test_a_forked_process_makes_its_own_connection(peer) -> None:
    driver = BlockingDriver(peer.endpoint)
    driver.do("ping")
    child = os.fork()
    if child == 0:
        try:
            driver.do("ping")
        finally:
            os._exit(int(len(driver.client.on_loop._pool._left) != 1))
    assert os.waitpid(child, 0)[1] == 0
    driver.do("ping")
    assert len(peer.links) == 2
    assert not peer.links[0].is_over.is_set(), "the parent's connection is left alone"
    driver.close()


def test_a_call_on_a_connection_that_died_ungreeted_was_not_sent(peer) -> None:
    """It may die between the look at it and the call: no answer is no refusal of a feature."""
    peer.script(Opcode.HEARTBEAT, reset)

    async def body() -> None:
        connection = AsyncConnection(peer.endpoint, "me", Connecting())
        await asyncio.to_thread(until, lambda: connection.is_over)
        call = Call(peer.endpoint, Opcode.APPEND, None, 5_000, (), FeatureName.IDEMPOTENT_APPEND)
        with pytest.raises(ConnectError, match="nothing was sent"):
            connection.start(call, lambda _: None)
        await connection.close()

    asyncio.run(body())


def test_code_on_the_loop_may_not_wait_for_the_loop(client) -> None:
    async def body() -> None:
        for call in (client.list_streams, lambda: list(client.fetch([FetchItem(1, 0, None, 1)]))):
            with pytest.raises(RuntimeError, match="would wait for itself"):
                call()

    loop_thread().run(body())


def test_callbacks_run_where_the_client_can_be_used(client) -> None:
    def call_back(*outcome) -> None:
        called.append((threading.current_thread(), outcome[-1], client.list_streams()))

    called: list[tuple[threading.Thread, StreamInfo | AppendOutcome, list[StreamInfo]]] = []
    (info,) = client.create_streams([StreamSpec(None)], on_created=call_back)
    with client.appender(writer=Writer(), on_appended=call_back) as appender:
        appender.append([AppendItem(info.stream_id, rows_batch([b"x"]))])
        appender.finish()
    assert [outcome for _, outcome, _ in called] == [info, AppendOutcome(info.stream_id, 0, ANY)]
    assert all(thread is threading.current_thread() for thread, _, _ in called)
    assert all(info in streams for _, _, streams in called)


def test_a_callback_that_raises_ends_the_call(client) -> None:
    def call_back(_: StreamInfo) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        client.create_streams([StreamSpec(None)], on_created=call_back)
    assert client.ping() > 0
