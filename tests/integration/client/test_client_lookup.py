"""Lookups by time of both clients: answers of several servers, and changes during a lookup."""

from __future__ import annotations

import pytest

from sbp_core.client.operations.time_lookup import TimedOffset, first_found
from sbp_core.client.types import RangeInfo
from sbp_core.errors import (
    NotFoundError,
    ProtocolError,
    RangeNotFoundError,
    StatusCode,
    UnsupportedError,
)
from sbp_core.wire.headers import LookupOffsetResult, LookupOffsetsResponse
from sbp_core.wire.opcodes import Opcode
from tests.support.scripted_peer import (
    NO_RETRY,
    Exchange,
    Handler,
    placed,
    ranges,
    reset,
    silent,
    status,
)


def answer(offset: int, time_ms: int = -1, code: StatusCode = StatusCode.NONE) -> Handler:
    """A handler: the same answer to each item."""

    def handle(exchange: Exchange) -> None:
        results = tuple(
            LookupOffsetResult(each.stream_id, each.request_index, offset, status(code), time_ms)
            for each in exchange.header.lookup_requests
        )
        exchange.answer(LookupOffsetsResponse(lookup_responses=results))

    return handle


@pytest.fixture
def servers(peers, peer):
    """The placement driver, and two range servers."""
    return peer, peers(), peers()


def test_all_servers_of_a_stream_are_asked(make, servers):
    driver_peer, one, other = servers
    pieces = (placed(5, 0, 0, 10, one.endpoint), placed(5, 1, 10, -1, other.endpoint))
    driver_peer.script(Opcode.LIST_RANGES, ranges(*pieces, revision=3))
    one.script(Opcode.LOOKUP_OFFSETS, answer(10), answer(4, 7_000))
    other.script(Opcode.LOOKUP_OFFSETS, answer(12, 8_000))
    driver = make(driver_peer.endpoint)
    assert driver.do("lookup_offsets", {5: 6_999_500}) == {5: 12}
    assert driver.do("lookup_offsets", {5: 6_999_500}) == {5: 4}
    (asked,) = one.seen(Opcode.LOOKUP_OFFSETS)[0].header.lookup_requests
    assert (asked.stream_id, asked.timestamp_us, asked.start_offset) == (5, 6_999_500, 0)
    assert driver.do("append_times", {5: 3}) == {5: 7_000}
    (asked,) = one.seen(Opcode.LOOKUP_OFFSETS)[2].header.lookup_requests
    assert (asked.timestamp_us, asked.start_offset) == (0, 3)


def test_a_stream_that_went_on_elsewhere_is_asked_for_again(make, servers):
    """Where a server hosts a later range too, its record there may not be the stream's first."""
    driver_peer, one, other = servers
    before = (placed(5, 0, 0, -1, one.endpoint),)
    after = (
        placed(5, 0, 0, 10, one.endpoint),
        placed(5, 1, 10, 20, other.endpoint),
        placed(5, 2, 20, -1, one.endpoint),
    )
    driver_peer.script(Opcode.LIST_RANGES, ranges(*before, revision=3), ranges(*after, revision=4))
    one.script(Opcode.LOOKUP_OFFSETS, answer(25, 9_000))
    other.script(Opcode.LOOKUP_OFFSETS, answer(12, 8_000))
    assert make(driver_peer.endpoint).do("lookup_offsets", {5: 1}) == {5: 12}
    assert len(one.seen(Opcode.LOOKUP_OFFSETS)) == 2


def test_another_replica_of_a_sealed_range_is_asked(make, peers):
    """The open range is asked for at its primary, even if that fails for a while."""
    pd, tail, *sealed = (peers() for _ in range(4))
    endpoints = [each.endpoint for each in sealed]
    pd.script(
        Opcode.LIST_RANGES,
        ranges(
            placed(5, 0, 0, 10, endpoints[0], secondaries=endpoints[1:]),
            placed(5, 1, 10, -1, tail.endpoint, secondaries=endpoints),
            revision=3,
        ),
    )
    for each in sealed:
        each.script(Opcode.LOOKUP_OFFSETS, answer(0, code=StatusCode.RANGE_NOT_FOUND))
    sealed[1].script(Opcode.LOOKUP_OFFSETS, answer(4, 7_000))
    tail.script(Opcode.LOOKUP_OFFSETS, reset, answer(12, 8_000))
    assert make(pd.endpoint).do("lookup_offsets", {5: 1}) == {5: 4}
    assert len(sealed[0].seen(Opcode.LOOKUP_OFFSETS)) <= 1
    sealed[1].script(Opcode.LOOKUP_OFFSETS, answer(0, code=StatusCode.RANGE_NOT_FOUND))
    with pytest.raises(RangeNotFoundError) as caught:
        make(pd.endpoint, retry=NO_RETRY).do("lookup_offsets", {5: 1})
    assert all(each in str(caught.value) for each in endpoints)


def test_a_replica_that_lacks_records_is_not_believed(make, peers):
    """It may not know yet that the range was sealed behind what it has."""
    pd, tail, *sealed = (peers() for _ in range(4))
    first, *others = (each.endpoint for each in sealed)
    pieces = (placed(5, 0, 0, 10, first, secondaries=others), placed(5, 1, 10, -1, tail.endpoint))
    pd.script(Opcode.LIST_RANGES, ranges(*pieces, revision=3))
    tail.script(Opcode.LOOKUP_OFFSETS, answer(12, 8_000))
    for each in sealed:
        each.script(Opcode.LOOKUP_OFFSETS, answer(9))
    with pytest.raises(RangeNotFoundError, match=r"up to offset 9, although .* ends at 10"):
        make(pd.endpoint, retry=NO_RETRY).do("lookup_offsets", {5: 1})
    sealed[1].script(Opcode.LOOKUP_OFFSETS, answer(9, 7_000))
    assert make(pd.endpoint).do("lookup_offsets", {5: 1}) == {5: 9}


@pytest.mark.parametrize(
    "trouble", [reset, answer(0, code=StatusCode.RANGE_NOT_FOUND)], ids=["reset", "moved"]
)
def test_retriable_errors_are_retried_for_the_streams_that_failed(make, servers, trouble):
    driver_peer, one, other = servers
    pieces = (placed(5, 0, 0, -1, one.endpoint), placed(6, 0, 0, -1, other.endpoint))
    driver_peer.script(Opcode.LIST_RANGES, ranges(*pieces, revision=3))
    one.script(Opcode.LOOKUP_OFFSETS, trouble, answer(4, 7_000))
    other.script(Opcode.LOOKUP_OFFSETS, answer(8))
    assert make(driver_peer.endpoint).do("lookup_offsets", {5: 1, 6: 1}) == {5: 4, 6: 8}
    assert len(one.seen(Opcode.LOOKUP_OFFSETS)) == 2
    assert len(other.seen(Opcode.LOOKUP_OFFSETS)) == 1


def test_other_errors_are_raised_with_their_server(make, servers):
    driver_peer, one, _ = servers
    driver_peer.script(Opcode.LIST_RANGES, ranges(placed(5, 0, 0, -1, one.endpoint), revision=3))
    driver = make(driver_peer.endpoint)
    one.script(Opcode.LOOKUP_OFFSETS, answer(0, code=StatusCode.UNSUPPORTED_OPERATION))
    with pytest.raises(UnsupportedError, match=f"LOOKUP_OFFSETS at {one.endpoint}"):
        driver.do("lookup_offsets", {5: 1})
    one.script(Opcode.LOOKUP_OFFSETS, lambda exchange: exchange.answer(LookupOffsetsResponse()))
    with pytest.raises(ProtocolError, match="says nothing about stream 5"):
        driver.do("lookup_offsets", {5: 1})
    one.script(Opcode.LOOKUP_OFFSETS, silent)
    with pytest.raises(NotFoundError, match="stream 6"):
        driver.do("lookup_offsets", {6: 1})


def test_a_trim_that_a_server_did_not_hear_of_counts():
    pieces = [RangeInfo(5, 0, 7, 10, 10, ("a",)), RangeInfo(5, 1, 10, None, 10, ("b",))]
    found = first_found(pieces, {"a": TimedOffset(2, 50), "b": TimedOffset(15, None)})
    assert found == TimedOffset(7, 50)
    assert first_found([], {}) == TimedOffset(0, None)


def test_servers_of_ranges_before_the_start_are_not_asked(make, servers):
    driver_peer, one, other = servers
    pieces = (placed(5, 0, 0, 10, one.endpoint), placed(5, 1, 10, -1, other.endpoint))
    sealed = placed(6, 0, 0, 10, one.endpoint)
    driver_peer.script(Opcode.LIST_RANGES, ranges(*pieces, sealed, revision=3))
    other.script(Opcode.LOOKUP_OFFSETS, answer(12, 8_000))
    driver = make(driver_peer.endpoint)
    starts = {5: 10, 6: 10}
    assert driver.do("lookup_offsets", {5: 1, 6: 1}, start_offsets=starts) == {5: 12, 6: 10}
    assert driver.do("append_times", {5: 11}) == {5: 8_000}
    assert not one.seen(Opcode.LOOKUP_OFFSETS)
    asked, _ = (each.header.lookup_requests for each in other.seen(Opcode.LOOKUP_OFFSETS))
    assert [each.start_offset for each in asked] == [10]


@pytest.mark.parametrize(
    "trouble",
    [reset, silent, answer(0, code=StatusCode.RANGE_NOT_FOUND)],
    ids=["reset", "silent", "moved"],
)
def test_streams_of_a_server_past_its_timeout_are_left_out(make, servers, trouble):
    driver_peer, one, other = servers
    pieces = (placed(5, 0, 0, -1, one.endpoint), placed(6, 0, 0, -1, other.endpoint))
    driver_peer.script(Opcode.LIST_RANGES, ranges(*pieces, revision=3))
    one.script(Opcode.LOOKUP_OFFSETS, trouble)
    other.script(Opcode.LOOKUP_OFFSETS, answer(8, 7_000))
    driver = make(driver_peer.endpoint)
    assert driver.do("lookup_offsets", {5: 1, 6: 1}, timeout_ms=100) == {6: 8}
    assert driver.do("append_times", {5: 1, 6: 1}, timeout_ms=100) == {6: 7_000}
    assert len(one.seen(Opcode.LOOKUP_OFFSETS)) == 2


def test_permanent_errors_are_raised_all_the_same(make, servers):
    driver_peer, one, other = servers
    pieces = (placed(5, 0, 0, -1, one.endpoint), placed(6, 0, 0, -1, other.endpoint))
    driver_peer.script(Opcode.LIST_RANGES, ranges(*pieces, revision=3))
    one.script(Opcode.LOOKUP_OFFSETS, answer(0, code=StatusCode.UNSUPPORTED_OPERATION))
    other.script(Opcode.LOOKUP_OFFSETS, reset)
    with pytest.raises(UnsupportedError, match=f"LOOKUP_OFFSETS at {one.endpoint}"):
        make(driver_peer.endpoint).do("lookup_offsets", {5: 1, 6: 1}, timeout_ms=100)
