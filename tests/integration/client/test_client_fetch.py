"""Fetches of the blocking and the asyncio client."""

from __future__ import annotations

import pytest

from sbp_core import limits
from sbp_core.client import EARLIEST, LATEST, FetchItem, RetryPolicy
from sbp_core.client.operations.fetch_answer import bounded_selections
from sbp_core.errors import (
    ConfigurationError,
    DeadlineExceededError,
    InvalidRequestError,
    NotFoundError,
    OffsetOutOfRangeError,
    ProtocolError,
    StatusCode,
)
from sbp_core.records import ColumnBounds, batch_filter
from sbp_core.wire.headers import (
    DescribeRangeResult,
    DescribeRangesResponse,
    FetchInfo,
    FetchRequest,
    FetchResponse,
    FetchResult,
    Projection,
    Status,
    encode_header,
)
from sbp_core.wire.opcodes import Opcode
from tests.support.scripted_peer import (
    NO_RETRY,
    Exchange,
    fetch_empty,
    fetch_refused,
    fetched,
    item,
    placed,
    ranges,
    reset,
    silent,
    status,
)


def test_fetch_yields_before_the_answer_is_complete(make, peer) -> None:
    peer.script(
        Opcode.LIST_RANGES,
        ranges(placed(1, 0, 0, -1, peer.endpoint), placed(2, 0, 0, -1, peer.endpoint)),
    )

    def half(exchange: Exchange) -> None:
        result = FetchResult(1, 0, 1, Status(), 1, 5)
        exchange.answer(FetchResponse(fetch_responses=(result,)), [b"a"], is_end=False)

    peer.script(Opcode.FETCH, half)
    driver = make(peer.endpoint)
    outcome = driver.fetch_first([item(1), item(2)], max_wait_ms=1000)
    assert (outcome.item_index, bytes(outcome.payload)) == (0, b"a")
    driver.do("ping")
    assert len(peer.links) == 1, "a fetch that is given up does not cost the connection"


def test_fetch_repeats_only_what_was_not_answered(make, peer) -> None:
    peer.script(
        Opcode.LIST_RANGES,
        ranges(placed(1, 0, 0, -1, peer.endpoint), placed(2, 0, 0, -1, peer.endpoint)),
    )

    def half(exchange: Exchange) -> None:
        result = FetchResult(2, 1, 1, Status(), 1, 5)
        exchange.answer(FetchResponse(fetch_responses=(result,)), [b"b"], is_end=False)
        exchange.link.close()

    peer.script(Opcode.FETCH, half, fetched)
    outcomes = make(peer.endpoint).fetch([item(1), item(2)])
    assert sorted((each.item_index, bytes(each.payload)) for each in outcomes) == [
        (0, b"data"),
        (1, b"b"),
    ]


def test_fetch_failure_of_one_item_leaves_the_others_alone(make, peer) -> None:
    peer.script(
        Opcode.LIST_RANGES,
        ranges(placed(1, 0, 0, -1, peer.endpoint), placed(2, 0, 0, -1, peer.endpoint)),
    )

    def mixed(exchange: Exchange) -> None:
        results = (
            FetchResult(1, 0, status=status(StatusCode.INVALID_REQUEST)),
            FetchResult(2, 1, 1, Status(), 4, 5),
        )
        exchange.answer(FetchResponse(fetch_responses=results), [b"data"])

    peer.script(Opcode.FETCH, mixed)
    bad, good, absent = sorted(
        make(peer.endpoint).fetch([item(1), item(2), item(3)]), key=lambda each: each.item_index
    )
    assert isinstance(bad.error, InvalidRequestError)
    assert peer.endpoint in str(bad.error)
    assert (bytes(good.payload), good.error) == (b"data", None)
    assert isinstance(absent.error, NotFoundError)


def test_fetch_follows_a_moved_range(make, peers) -> None:
    pd, old, new = peers(), peers(), peers()
    pd.script(
        Opcode.LIST_RANGES,
        ranges(placed(1, 0, 0, -1, old.endpoint)),
        ranges(placed(1, 0, 0, -1, new.endpoint)),
    )
    old.script(Opcode.FETCH, fetch_refused(StatusCode.RANGE_NOT_FOUND))
    new.script(Opcode.FETCH, fetched)
    (outcome,) = make(pd.endpoint).fetch([item(1)])
    assert bytes(outcome.payload) == b"data"


def test_fetch_goes_on_behind_a_range_that_was_sealed(make, peers) -> None:
    pd, old, new = peers(), peers(), peers()
    pd.script(
        Opcode.LIST_RANGES,
        ranges(placed(1, 0, 0, -1, old.endpoint)),
        ranges(placed(1, 0, 0, 5, old.endpoint), placed(1, 1, 5, -1, new.endpoint)),
    )
    old.script(Opcode.FETCH, fetch_empty)
    new.script(Opcode.FETCH, fetched)
    (outcome,) = make(pd.endpoint).fetch([item(1, 5)], max_wait_ms=60_000)
    assert bytes(outcome.payload) == b"data"
    assert new.seen(Opcode.FETCH)[0].header.fetch_requests[0].fetch_offset == 5


def test_fetch_at_the_tail_is_an_empty_answer(make, peer) -> None:
    peer.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, peer.endpoint)))
    peer.script(Opcode.FETCH, fetch_empty)
    (outcome,) = make(peer.endpoint).fetch([item(1, 5)])
    assert (bytes(outcome.payload), outcome.next_offset, outcome.error) == (b"", 5, None)


def test_an_empty_answer_holds_while_the_placement_driver_is_away(make, peers) -> None:
    pd, server = peers(), peers()
    pd.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, server.endpoint)), reset)
    server.script(Opcode.FETCH, fetch_empty)
    (outcome,) = make(pd.endpoint, retry=RetryPolicy()).fetch([item(1, 5)])
    assert (outcome.next_offset, outcome.error) == (5, None)
    assert len(pd.seen(Opcode.LIST_RANGES)) == 2


def test_fetch_of_nothing_sends_no_request(make, peer) -> None:
    driver = make(peer.endpoint)
    assert driver.fetch([]) == []
    (outcome,) = driver.fetch([item(1, 7, end=7)])
    assert (outcome.next_offset, outcome.error) == (7, None)
    assert not peer.requests


def test_fetch_from_either_end(make, peers) -> None:
    pd, old, new = peers(), peers(), peers()
    pd.script(
        Opcode.LIST_RANGES,
        ranges(placed(1, 0, 0, 5, old.endpoint), placed(1, 1, 5, -1, new.endpoint)),
    )
    old.script(Opcode.FETCH, lambda each: fetched(each, b"old"))
    new.script(Opcode.FETCH, lambda each: fetched(each, b"new"))
    outcomes = make(pd.endpoint).fetch([item(1, EARLIEST), item(1, LATEST)])
    assert {each.item_index: bytes(each.payload) for each in outcomes} == {0: b"old", 1: b"new"}


def test_an_offset_out_of_range_is_checked_once_more_then_told(make, peer) -> None:
    peer.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, peer.endpoint)))
    detail = OffsetOutOfRangeError.encode_bounds(3, 9)
    peer.script(Opcode.FETCH, fetch_refused(StatusCode.OFFSET_OUT_OF_RANGE, detail))
    (outcome,) = make(peer.endpoint).fetch([item(1, 1)])
    assert isinstance(outcome.error, OffsetOutOfRangeError)
    assert outcome.error.bounds == (3, 9)
    assert len(peer.seen(Opcode.FETCH)) == len(peer.seen(Opcode.LIST_RANGES)) == 2


def test_an_offset_before_all_ranges(make, peer) -> None:
    """The placement driver knows where the stream begins, the server where it ends."""
    tail = placed(1, 2, 50, -1, peer.endpoint, 75)
    peer.script(Opcode.LIST_RANGES, ranges(placed(1, 2, 50, -1, peer.endpoint, 60)))
    peer.script(
        Opcode.DESCRIBE_RANGE,
        lambda exchange: exchange.answer(
            DescribeRangesResponse(describe_responses=(DescribeRangeResult(1, tail),))
        ),
    )
    (outcome,) = make(peer.endpoint).fetch([item(1, 10)])
    assert isinstance(outcome.error, OffsetOutOfRangeError)
    assert outcome.error.bounds == (50, 75)


def test_a_fetch_answer_without_an_item_is_an_error(make, peer) -> None:
    peer.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, peer.endpoint)))
    peer.script(Opcode.FETCH, lambda each: each.answer(FetchResponse()))
    (outcome,) = make(peer.endpoint).fetch([item(1)])
    assert isinstance(outcome.error, ProtocolError)


def test_a_fetch_that_gets_no_answer_ends_at_its_deadline(make, peer) -> None:
    peer.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, peer.endpoint)))
    peer.script(Opcode.FETCH, silent)
    (outcome,) = make(peer.endpoint, timeout_ms=100, retry=NO_RETRY).fetch([item(1)])
    assert isinstance(outcome.error, DeadlineExceededError)


def test_a_throttled_fetch_is_repeated(make, peer) -> None:
    peer.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, peer.endpoint)))
    busy = FetchResponse(throttle_time_ms=2, status=status(StatusCode.TOO_MANY_REQUESTS))
    peer.script(Opcode.FETCH, lambda each: each.answer(busy), fetched)
    (outcome,) = make(peer.endpoint).fetch([item(1)])
    assert bytes(outcome.payload) == b"data"


@pytest.mark.parametrize(
    ("bad", "options"),
    [
        (item(1, -3), {}),
        (FetchItem(1, 0, None, 0), {}),
        (item(1), {"max_wait_ms": -1}),
        (item(1), {"max_wait_ms": 60_001}),
        (item(1), {"min_bytes": 0}),
    ],
)
def test_unusable_fetch_arguments(make, peer, bad, options) -> None:
    with pytest.raises(ConfigurationError):
        make(peer.endpoint).fetch([bad], **options)
    assert not peer.requests


def test_projections_are_left_out_where_they_would_be_too_long_together():
    """A server that does not know them refuses a header most of which it cannot read."""
    few, many = (Projection("s", bytes(1), bytes(size), "k") for size in (1, 20_000))
    infos = [FetchInfo(projections=each) for each in ((few,), (many,), (many,), (few,))]
    sent = [each.projections for each in bounded_selections(infos)]
    assert sent == [(few,), (many,), (), ()]
    header = encode_header(FetchRequest(fetch_requests=tuple(bounded_selections(infos))))
    assert len(header) < limits.HEADER_UNUSED_BYTES_MAX


def test_filters_are_left_out_where_they_would_be_too_long_together():
    bounds = [ColumnBounds(f"{at}" * 20, bytes(32), bytes(32), False) for at in range(64)]
    info = FetchInfo(filters=(batch_filter("s" * 32, bounds),))
    sent = list(bounded_selections([info] * 9))
    kept = [bool(each.filters) for each in sent]
    assert kept == sorted(kept, reverse=True)
    assert kept[0]
    assert not kept[-1]
    header = encode_header(FetchRequest(fetch_requests=tuple(sent)))
    assert len(header) < limits.HEADER_UNUSED_BYTES_MAX
