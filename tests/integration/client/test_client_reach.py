"""How far both clients find streams readable while some of their servers are down."""

from __future__ import annotations

import pytest

from sbp_core.client import Reach, RetryPolicy
from sbp_core.errors import (
    ConnectError,
    ConnectionLostError,
    DeadlineExceededError,
    NoRangeServerError,
    NotFoundError,
    RangeNotFoundError,
    StatusCode,
    StorageError,
)
from sbp_core.wire.headers import DescribeRangeResult, DescribeRangesResponse, StreamRange
from sbp_core.wire.opcodes import Opcode
from tests.support.scripted_peer import Exchange, Handler, placed, ranges, reset, silent, status


def described(code: StatusCode = StatusCode.NONE, **tails: int) -> Handler:
    """A handler: open ranges end at `tails["s<stream id>"]`, or all fail with `code`."""

    def handle(exchange: Exchange) -> None:
        results = tuple(
            DescribeRangeResult(
                each.stream_id,
                StreamRange(each.stream_id, each.range_index, 0, -1, tails[f"s{each.stream_id}"]),
                status(code),
            )
            for each in exchange.header.ranges
        )
        exchange.answer(DescribeRangesResponse(describe_responses=results))

    return handle


@pytest.fixture
def servers(peers, peer):
    """The placement driver, and two range servers."""
    return peer, peers(), peers()


def reach(driver, positions, *, timeout_ms=2_000, spared=()):
    errors = dict.fromkeys(spared, ConnectError("known to be down"))
    return driver.do("reach", positions, timeout_ms=timeout_ms, spared=errors)


def test_a_server_that_is_down_stops_its_streams_only(make, servers):
    pd, one, other = servers
    pieces = (placed(1, 0, 3, -1, one.endpoint), placed(2, 0, 4, -1, other.endpoint))
    pd.script(Opcode.LIST_RANGES, ranges(*pieces, revision=3))
    one.script(Opcode.DESCRIBE_RANGE, described(s1=9))
    other.script(Opcode.DESCRIBE_RANGE, reset, described(s2=8))
    driver = make(pd.endpoint)
    found = reach(driver, {1: 5, 2: None})
    assert found[1] == Reach(1, 3, 9)
    (down,) = found[2].unavailable
    assert (found[2].start_offset, found[2].next_offset) == (4, None)
    assert (down.start_offset, down.end_offset, down.server) == (4, None, other.endpoint)
    assert isinstance(down.error, ConnectionLostError)
    assert reach(driver, {1: 5, 2: None})[2] == Reach(2, 4, 8)
    assert len(pd.seen(Opcode.LIST_RANGES)) == 2
    assert len(pd.seen(Opcode.LIST_RANGES)[1].header.range_owners) == 0


def test_servers_of_sealed_ranges_are_asked_if_those_lie_ahead(make, servers):
    pd, one, other = servers
    pieces = [
        placed(1, 0, 0, 10, other.endpoint),
        placed(1, 1, 10, 20, one.endpoint),
        placed(1, 2, 20, 30, other.endpoint),
        placed(1, 3, 30, -1, one.endpoint),
    ]
    pd.script(Opcode.LIST_RANGES, ranges(*pieces, revision=3))
    one.script(Opcode.DESCRIBE_RANGE, described(s1=35))
    other.script(Opcode.DESCRIBE_RANGE, reset)
    driver = make(pd.endpoint)
    for position, blocked in ((None, [0, 20]), (9, [0, 20]), (10, [20]), (29, [20]), (30, [])):
        found = reach(driver, {1: position})[1]
        assert (found.start_offset, found.next_offset) == (0, 35)
        assert [down.start_offset for down in found.unavailable] == blocked
    assert len(other.seen(Opcode.DESCRIBE_RANGE)) == 4


def test_a_spared_server_is_not_asked(make, servers):
    pd, one, other = servers
    pieces = [placed(1, 0, 0, 10, other.endpoint), placed(1, 1, 10, -1, one.endpoint)]
    pd.script(Opcode.LIST_RANGES, ranges(*pieces, placed(2, 0, 4, -1, other.endpoint)))
    one.script(Opcode.DESCRIBE_RANGE, described(s1=12))
    found = reach(make(pd.endpoint), {1: 0, 2: 5}, spared=[other.endpoint])
    assert not other.requests
    assert [str(each.unavailable[0].error) for each in found.values()] == ["known to be down"] * 2
    assert [each.next_offset for each in found.values()] == [12, None]


def test_a_server_that_is_silent_is_waited_for_as_long_as_told(make, peer):
    peer.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, peer.endpoint)))
    peer.script(Opcode.DESCRIBE_RANGE, silent)
    (down,) = reach(make(peer.endpoint), {1: 0}, timeout_ms=50)[1].unavailable
    assert isinstance(down.error, DeadlineExceededError)


def test_a_range_without_a_server_and_one_that_its_server_does_not_know(make, peer):
    nowhere = StreamRange(1, 0, 7, -1, 0, ())
    peer.script(Opcode.LIST_RANGES, ranges(nowhere, placed(2, 0, 0, -1, peer.endpoint)))
    peer.script(Opcode.DESCRIBE_RANGE, described(StatusCode.RANGE_NOT_FOUND, s2=0))
    found = reach(make(peer.endpoint), {1: 8, 2: 0})
    assert isinstance(found[1].unavailable[0].error, NoRangeServerError)
    assert found[1].unavailable[0].server is None
    assert isinstance(found[2].unavailable[0].error, RangeNotFoundError)


def test_permanent_errors_are_raised(make, peer):
    peer.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, peer.endpoint)))
    peer.script(Opcode.DESCRIBE_RANGE, described(StatusCode.RS_DATA_CORRUPTED, s1=0))
    driver = make(peer.endpoint)
    with pytest.raises(StorageError):
        reach(driver, {1: 0})
    with pytest.raises(NotFoundError, match="stream 9"):
        reach(driver, {1: 0, 9: 0})


def test_a_range_that_was_sealed_is_followed(make, servers):
    pd, one, other = servers
    sealed = DescribeRangeResult(1, StreamRange(1, 0, 0, 10, 10))
    pd.script(
        Opcode.LIST_RANGES,
        ranges(placed(1, 0, 0, -1, one.endpoint)),
        ranges(placed(1, 0, 0, 10, one.endpoint), placed(1, 1, 10, -1, other.endpoint)),
    )
    one.script(
        Opcode.DESCRIBE_RANGE,
        lambda exchange: exchange.answer(DescribeRangesResponse(describe_responses=(sealed,))),
    )
    other.script(Opcode.DESCRIBE_RANGE, described(s1=12), reset)
    driver = make(pd.endpoint)
    assert reach(driver, {1: 0}) == {1: Reach(1, 0, 12)}
    assert [down.start_offset for down in reach(driver, {1: 0})[1].unavailable] == [10]


def test_a_probe_tells_who_does_not_answer(make, servers):
    pd, one, other = servers
    other.script(Opcode.PING, silent)
    driver = make(pd.endpoint)
    missing = driver.do("probe", [one.endpoint, other.endpoint], timeout_ms=1_000)
    assert missing.keys() == {other.endpoint}


def test_a_sealed_range_can_be_read_while_one_of_its_replicas_is_up(make, peers):
    pd, tail, one, other = (peers() for _ in range(4))
    pieces = (
        placed(1, 0, 0, 10, one.endpoint, secondaries=[other.endpoint]),
        placed(1, 1, 10, -1, tail.endpoint),
    )
    pd.script(Opcode.LIST_RANGES, ranges(*pieces, revision=3))
    tail.script(Opcode.DESCRIBE_RANGE, described(s1=12))
    one.close()
    other.script(Opcode.DESCRIBE_RANGE, described(s1=10))
    driver = make(pd.endpoint)
    assert reach(driver, {1: None}) == {1: Reach(1, 0, 12)}
    other.script(Opcode.DESCRIBE_RANGE, reset)
    (down,) = reach(driver, {1: None})[1].unavailable
    assert (down.start_offset, down.end_offset) == (0, 10)
    assert all(each.endpoint in str(down.error) for each in (one, other))
    assert reach(driver, {1: None}, spared=[one.endpoint])[1].unavailable
    other.script(Opcode.DESCRIBE_RANGE, described(s1=10))
    assert reach(driver, {1: None}, spared=[one.endpoint]) == {1: Reach(1, 0, 12)}


def test_a_silent_placement_driver_is_passed_over_without_a_retry(make, peers) -> None:
    hung, pd = peers(), peers()
    hung.script(Opcode.LIST_RANGES, silent)
    hung.script(Opcode.PING, silent)
    pd.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, "h:1")))
    given = f"{hung.endpoint},{pd.endpoint}"
    for operation, *asked in (("ping",), ("list_ranges", [1])):
        driver = make(given, timeout_ms=200, retry=RetryPolicy(budget_ms=0))
        assert driver.do(operation, *asked)
