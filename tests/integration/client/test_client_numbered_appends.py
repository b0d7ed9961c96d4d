"""Writers of the blocking and the asyncio client: each batch is appended once, or in doubt."""

from __future__ import annotations

import pytest

from sbp_core import limits
from sbp_core.client import AppendItem, RangeInfo, Writer
from sbp_core.errors import (
    ConfigurationError,
    ConnectionLostError,
    Outcome,
    SbpError,
    StatusCode,
    StatusError,
    UnsupportedError,
    WriterGapError,
)
from sbp_core.wire.headers import Feature, HeartbeatResponse
from sbp_core.wire.opcodes import Opcode
from tests.support.scripted_peer import NO_RETRY, append_handler, placed, ranges, reset


@pytest.fixture
def server(peer):
    """A server that knows writers, with one stream."""
    peer.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, peer.endpoint)))
    accepted = (Feature("idempotent-append"),)
    peer.script(Opcode.HEARTBEAT, lambda each: each.answer(HeartbeatResponse(features=accepted)))
    peer.script(Opcode.APPEND, append_handler())
    return peer


def numbers(server):
    """(writer id, sequence) of the batches of each APPEND frame."""
    return [
        [(info.writer_id, info.sequence) for info in exchange.header.append_requests]
        for exchange in server.seen(Opcode.APPEND)
    ]


PIECE = RangeInfo(1, 0, 0, None, 0, ("127.0.0.1:1",))


def items(*data):
    return [AppendItem(1, each) for each in data]


def test_a_server_that_does_not_know_writers_is_not_asked(make, peer) -> None:
    peer.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, peer.endpoint)))
    writer = Writer()
    with pytest.raises(UnsupportedError, match="does not know idempotent appends") as caught:
        make(peer.endpoint).do("append", items(b"a"), writer=writer)
    assert caught.value.outcome is Outcome.NOT_APPLIED
    assert peer.seen(Opcode.APPEND) == []
    numbering = writer._begin()
    numbering.add(items(b"another"))
    assert numbering.marks(0, PIECE).sequence == 0


def test_batches_in_doubt_are_sent_first(make, server) -> None:
    writer = Writer("me")
    driver = make(server.endpoint)
    driver.do("append", items(b"a"), writer=writer)
    server.script(Opcode.APPEND, reset)
    impatient = make(server.endpoint, retry=NO_RETRY)
    with pytest.raises(ConnectionLostError) as caught:
        impatient.do("append", items(b"b", b"c"), writer=writer)
    assert caught.value.outcome is Outcome.UNKNOWN
    server.script(Opcode.APPEND, append_handler())
    for other in ([b"x"], [b"b", b"x"]):
        with pytest.raises(ConfigurationError, match="in doubt"):
            driver.do("append", items(*other), writer=writer)
    driver.do("append", items(b"b"), writer=writer)
    with pytest.raises(ConfigurationError, match="in doubt"):
        driver.do("append", items(b"x"), writer=writer)
    driver.do("append", items(b"c", b"d"), writer=writer)
    assert [sequence for frame in numbers(server)[2:] for _, sequence in frame] == [1, 2, 3]


def test_a_refused_batch_leaves_its_number_to_the_next_one(make, server) -> None:
    refused = append_handler(n1=StatusCode.INVALID_REQUEST, n2=StatusCode.WRITER_GAP)
    server.script(Opcode.APPEND, refused, append_handler())
    writer = Writer("me")
    driver = make(server.endpoint)
    with pytest.raises(Exception, match="item 1 of 3"):
        driver.do("append", items(b"a", b"b", b"c"), writer=writer)
    driver.do("append", items(b"x"), writer=writer)
    assert numbers(server)[-1] == [("me", 1)]


@pytest.mark.parametrize("first_of_two", [StatusCode.INVALID_REQUEST, None])
def test_a_failed_append_is_made_again_as_a_whole(make, server, peers, first_of_two) -> None:
    """Its batches in other streams, and those before the failure, are not appended again."""
    other = peers()
    other.script(Opcode.HEARTBEAT, *server._scripts[Opcode.HEARTBEAT])
    lost = reset if first_of_two is None else append_handler(n0=first_of_two)
    other.script(Opcode.APPEND, append_handler(), lost, append_handler())
    pieces = placed(1, 0, 0, -1, server.endpoint), placed(2, 0, 0, -1, other.endpoint)
    server.script(Opcode.LIST_RANGES, ranges(*pieces))
    writer = Writer("me")
    driver = make(server.endpoint, retry=NO_RETRY)
    kept = limits.WRITER_BATCHES_KEPT
    first, *rest = [AppendItem(2, b"%d" % each) for each in range(kept + 1)]
    call = [*items(b"a"), first, *rest, *items(b"b")]
    with pytest.raises(SbpError, match=f"{kept + 2} of {kept + 3} batches were appended"):
        driver.do("append", call, writer=writer)
    made = driver.do("append", call, writer=writer)
    assert [each.base_offset for each in made if each.stream_id == 1] == [100, 101]
    assert numbers(server) == [[("me", 0), ("me", 1)]]
    assert numbers(other)[1:] == [[("me", kept)]] * 2
    driver.do("append", call, writer=writer)
    assert numbers(server)[1:] == [[("me", 2), ("me", 3)]], "the same again is new"


def test_a_gap_is_for_the_caller(make, server) -> None:
    server.script(Opcode.APPEND, append_handler(n0=StatusCode.WRITER_GAP))
    with pytest.raises(WriterGapError) as caught:
        make(server.endpoint).do("append", items(b"a"), writer=Writer())
    assert caught.value.outcome is Outcome.NOT_APPLIED
    assert len(server.seen(Opcode.APPEND)) == 1


def test_a_refused_call_does_not_change_the_writer(make, server) -> None:
    writer = Writer("me")
    first = writer._begin()
    first.add(items(b"a", b"b"))
    first.end({0, 1}, is_complete=False)
    driver = make(server.endpoint)
    with pytest.raises(ConfigurationError, match="in doubt"):
        driver.do("append", [*items(b"a"), AppendItem(2, b"x"), *items(b"c")], writer=writer)
    assert server.seen(Opcode.APPEND) == []
    driver.do("append", items(b"a", b"b", b"c"), writer=writer)
    assert numbers(server) == [[("me", 0), ("me", 1), ("me", 2)]]


@pytest.mark.parametrize("code", [StatusCode.WRITER_GAP, StatusCode.WRITER_UNKNOWN])
def test_a_batch_in_doubt_is_not_reported_as_absent(make, server, code) -> None:
    writer = Writer()
    server.script(Opcode.APPEND, reset, append_handler(n0=code))
    driver = make(server.endpoint, retry=NO_RETRY)
    with pytest.raises(ConnectionLostError):
        driver.do("append", items(b"a"), writer=writer)
    with pytest.raises(StatusError) as caught:
        driver.do("append", items(b"a"), writer=writer)
    assert caught.value.outcome is Outcome.UNKNOWN
