"""Servers that send more than was asked for, or read nothing: a client's memory is bounded."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from sbp_core import limits
from sbp_core.client import AppendItem, FetchItem
from sbp_core.client.operations import fetch_answer
from sbp_core.errors import ConnectionLostError, ProtocolError, SbpError
from sbp_core.record_sizes import DEFAULT
from sbp_core.wire.frame import encode_frame
from sbp_core.wire.headers import (
    DescribeRangeResult,
    DescribeRangesResponse,
    DescribeStreamsResponse,
    FetchResponse,
    FetchResult,
    ListRangesResponse,
    ListRangesResult,
    encode_header,
)
from sbp_core.wire.opcodes import Flag, Opcode
from sbp_core.wire.status import SUCCESS
from tests.support.clock import until
from tests.support.scripted_peer import NO_RETRY, Exchange, placed, ranges

PAST_CALL_ID = 1
"""The call id of the greeting, which has been answered."""


def frame(
    opcode: int, flags: int, call_id: int, header: bytes = b"", payload: bytes = b""
) -> bytes:
    return b"".join(encode_frame(opcode, flags, call_id, header, [payload] if payload else []))


def flood(exchange: Exchange, chunks: Iterator[bytes]) -> threading.Event:
    """Send, and read nothing, until the client has had enough."""
    is_over = threading.Event()

    def send() -> None:
        with contextlib.suppress(OSError):
            for chunk in chunks:
                exchange.link.socket.sendall(chunk)
        is_over.set()

    threading.Thread(target=send, daemon=True).start()
    return is_over


def pings(payload_bytes: int) -> Iterator[bytes]:
    for call_id in itertools.count(1):
        yield frame(Opcode.PING, Flag.REQUEST, call_id % 2**30, payload=bytes(payload_bytes))


def repeated(data: bytes) -> Callable[[Exchange], Iterator[bytes]]:
    return lambda _: itertools.repeat(data * 64)


def never_ending(exchange: Exchange) -> Iterator[bytes]:
    header = encode_header(DescribeStreamsResponse(status=SUCCESS))
    part = frame(exchange.opcode, Flag.RESPONSE, exchange.frame.call_id, header, bytes(10_000))
    return itertools.repeat(part)


def never_ending_empty(exchange: Exchange) -> Iterator[bytes]:
    part = frame(exchange.opcode, Flag.RESPONSE, exchange.frame.call_id)
    return itertools.repeat(part * 64)


FLOODS: dict[str, Callable[[Exchange], Iterator[bytes]]] = {
    "large pings": lambda _: pings(1_000_000),
    "small pings": lambda _: (b"".join(itertools.islice(pings(8), 64)) for _ in itertools.count()),
    "heartbeats": repeated(frame(Opcode.HEARTBEAT, Flag.REQUEST, 5)),
    "unknown requests": repeated(frame(Opcode.APPEND, Flag.REQUEST, 5)),
    "late answers": repeated(frame(Opcode.HEARTBEAT, Flag.RESPONSE | Flag.END, PAST_CALL_ID)),
    "unknown opcodes": repeated(frame(0x7FFF, Flag.REQUEST, 5)),
    "goaways": repeated(frame(Opcode.GOAWAY, Flag.REQUEST, 5)),
    "an answer without end": never_ending,
    "empty frames without end": never_ending_empty,
}


@pytest.fixture
def small_bounds(monkeypatch):
    """So that a test takes no minute; what is bounded is the same."""
    monkeypatch.setattr(limits, "UNASKED_BYTES_MAX", 32 * limits.MIB)


@pytest.mark.usefixtures("small_bounds")
@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_ends_the_connection(make, peer, name) -> None:
    ended: list[threading.Event] = []
    peer.script(Opcode.DESCRIBE_STREAMS, lambda each: ended.append(flood(each, FLOODS[name](each))))
    driver = make(peer.endpoint, retry=NO_RETRY)
    with pytest.raises(SbpError) as caught:
        driver.do("list_streams")
    assert isinstance(caught.value, ConnectionLostError | ProtocolError)
    assert ended[0].wait(60), "the client goes on reading"
    if "without end" in name:
        assert str(limits.ANSWER_BYTES_MAX) in str(caught.value)
    assert peer.links[0].is_over.wait(5)
    peer.faults.clear()  # answers to what it did not count as asked


def test_large_pings_are_echoed_while_the_server_reads(make, peer) -> None:
    driver = make(peer.endpoint)
    driver.do("ping")
    link = peer.links[0]
    for count in range(1, 4):
        link.ask(Opcode.PING, payload=[bytes(500_000)])
        until(lambda count=count: len(link.responses) == count, 20)
        assert len(link.responses[-1].payload) == 500_000
    driver.do("ping")
    assert len(peer.links) == 1


def test_a_server_that_reads_nothing_is_left(make, peer, monkeypatch) -> None:
    monkeypatch.setattr(limits, "WRITE_STALL_MS", 200)
    with socket.create_server(("127.0.0.1", 0)) as listener:  # never accepts what connects
        endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
        peer.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, endpoint)))
        driver = make(peer.endpoint, retry=NO_RETRY)
        with pytest.raises(ConnectionLostError, match="has read nothing for 200 ms"):
            driver.do("append", [AppendItem(1, bytes(limits.BATCH_BYTES_MAX))])


@pytest.mark.parametrize("kind", ["more bytes", "backwards", "implausible"])
def test_fetch_answers_that_cannot_be(make, peer, kind, monkeypatch) -> None:
    monkeypatch.setattr(fetch_answer, "LARGEST", DEFAULT)
    peer.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, peer.endpoint)))
    data = bytes(DEFAULT.batch_bytes + 2_000 if kind == "more bytes" else 10)
    next_offset = {"more bytes": 9, "backwards": 2, "implausible": 2**60}[kind]

    def answer(exchange: Exchange) -> None:
        result = FetchResult(1, 0, 1, SUCCESS, len(data), next_offset)
        exchange.answer(FetchResponse(fetch_responses=(result,)), [data])

    peer.script(Opcode.FETCH, answer)
    (outcome,) = make(peer.endpoint, retry=NO_RETRY).fetch([FetchItem(1, 3, None, 1_000)])
    assert isinstance(outcome.error, ProtocolError)
    assert "stream 1" in str(outcome.error)


def describe(next_offset: int, end_offset: int = -1) -> Callable[[Exchange], None]:
    def answer(exchange: Exchange) -> None:
        piece = placed(1, 0, 0, end_offset, exchange.link.peer.endpoint, next_offset)
        exchange.answer(DescribeRangesResponse(describe_responses=(DescribeRangeResult(1, piece),)))

    return answer


def test_a_tail_that_no_stream_can_have_names_stream_server_and_number(make, peer) -> None:
    peer.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, peer.endpoint)))
    peer.script(Opcode.DESCRIBE_RANGE, describe(2**60))
    with pytest.raises(ProtocolError) as caught:
        make(peer.endpoint, retry=NO_RETRY).do("stream_bounds", [1])
    for part in (peer.endpoint, "stream 1", str(2**60)):
        assert part in str(caught.value)


def test_ranges_that_no_stream_can_have(make, peer, monkeypatch) -> None:
    monkeypatch.setattr(limits, "LISTED_RANGES_MAX", 3)
    pieces = [placed(1, index, index, index + 1, peer.endpoint) for index in range(4)]
    far = [placed(1, 0, 0, 2**60, peer.endpoint)]
    negative = [placed(1, 0, -5, 2, peer.endpoint)]
    for wrong, reason in ((pieces, "lists 4 ranges"), (far, str(2**60)), (negative, "-5")):
        peer.script(Opcode.LIST_RANGES, ranges(*wrong))
        with pytest.raises(ProtocolError, match=reason):
            make(peer.endpoint, retry=NO_RETRY).do("list_ranges", [1])


def test_a_placement_that_never_stays(make, peer, monkeypatch) -> None:
    """The open range is sealed whenever its server is asked, and there is always a next one."""
    monkeypatch.setattr(limits, "CHANGES_FOLLOWED_MAX", 20)
    indexes = itertools.count()

    def list_next(exchange: Exchange) -> None:
        piece = placed(1, next(indexes), 0, -1, peer.endpoint)
        result = ListRangesResult(ranges=(piece,), status=SUCCESS, stream_id=1)
        exchange.answer(ListRangesResponse(list_responses=(result,)))

    peer.script(Opcode.LIST_RANGES, list_next)
    peer.script(Opcode.DESCRIBE_RANGE, describe(7, end_offset=7))
    with pytest.raises(ProtocolError, match="the placement had changed"):
        make(peer.endpoint, retry=NO_RETRY).do("stream_bounds", [1])


def test_the_bounds_are_worth_something() -> None:
    """None of them is so small that what servers do in earnest ends a connection."""
    assert limits.UNASKED_FRAMES_MAX > 8 * limits.CALLS_IN_FLIGHT_MAX
    assert limits.ANSWER_BYTES_MAX > 2 * limits.FRAME_BYTES_MAX
