"""Appends of the blocking and the asyncio client."""

from __future__ import annotations

import pytest

from sbp_core.client import AppendItem, AppendOutcome
from sbp_core.errors import (
    ConfigurationError,
    InvalidRequestError,
    NotFoundError,
    Outcome,
    ProtocolError,
    ShuttingDownError,
    StatusCode,
    ThrottledError,
)
from sbp_core.record_sizes import LARGEST
from sbp_core.wire.headers import AppendResponse, AppendResult, Status
from sbp_core.wire.opcodes import Opcode
from tests.support.scripted_peer import Exchange, append_handler, batches, placed, ranges, reset


def test_append_groups_by_server_and_maps_answers_by_index(make, peers) -> None:
    pd, one, two = peers(), peers(), peers()
    pd.script(
        Opcode.LIST_RANGES,
        ranges(placed(1, 0, 0, -1, one.endpoint), placed(2, 4, 9, -1, two.endpoint)),
    )
    for each in (one, two):
        each.script(Opcode.APPEND, append_handler())
    items = [AppendItem(1, b"aa"), AppendItem(2, b"b"), AppendItem(1, b"ccc")]
    assert make(pd.endpoint).do("append", items) == [
        AppendOutcome(1, 100, 7),
        AppendOutcome(2, 100, 7),
        AppendOutcome(1, 101, 7),
    ]
    (first,), (second,) = one.seen(Opcode.APPEND), two.seen(Opcode.APPEND)
    assert (batches(first), batches(second)) == ([b"aa", b"ccc"], [b"b"])
    info = second.header.append_requests[0]
    target = info.stream_range
    assert (info.stream_id, target.stream_id, target.range_index, target.end_offset) == (
        2,
        2,
        4,
        -1,
    )


def test_append_splits_frames_that_would_be_too_large(make, peer) -> None:
    peer.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, peer.endpoint)))
    peer.script(Opcode.APPEND, append_handler())
    items = [AppendItem(1, bytes([n]) * (6 << 20)) for n in range(3)]
    assert len(make(peer.endpoint).do("append", items)) == 3
    frames = [[batch[0] for batch in batches(each)] for each in peer.seen(Opcode.APPEND)]
    assert frames == [[0, 1], [2]]


@pytest.mark.parametrize("size", [0, LARGEST.batch_bytes + 1])
def test_an_unusable_batch_is_refused_before_anything_is_sent(make, peer, size) -> None:
    with pytest.raises(ConfigurationError, match="item 1"):
        make(peer.endpoint).do("append", [AppendItem(1, b"ok"), AppendItem(1, bytes(size))])
    assert not peer.requests


def test_an_item_that_was_overtaken_is_not_appended_late(make, peer) -> None:
    peer.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, peer.endpoint)))
    peer.script(Opcode.APPEND, append_handler(n0=StatusCode.TOO_MANY_REQUESTS))
    with pytest.raises(ThrottledError, match=r"item 0 of 2 \(stream 1\).*1 of 2") as caught:
        make(peer.endpoint).do("append", [AppendItem(1, b"a"), AppendItem(1, b"b")])
    assert caught.value.outcome is Outcome.UNKNOWN
    assert len(peer.seen(Opcode.APPEND)) == 1


def test_the_error_of_a_single_item_names_its_stream_only(make, peer) -> None:
    peer.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, peer.endpoint)))
    peer.script(Opcode.APPEND, append_handler(n0=StatusCode.INVALID_REQUEST))
    with pytest.raises(InvalidRequestError) as caught:
        make(peer.endpoint).do("append", [AppendItem(1, b"a")])
    assert str(caught.value).startswith("stream 1: ")


def test_an_item_is_tried_again_although_one_after_it_failed_for_good(make, peer) -> None:
    peer.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, peer.endpoint)))
    refused = append_handler(n0=StatusCode.TOO_MANY_REQUESTS, n1=StatusCode.INVALID_REQUEST)
    peer.script(Opcode.APPEND, refused, append_handler())
    items = [AppendItem(1, b"a"), AppendItem(1, b"b")]
    with pytest.raises(InvalidRequestError, match=r"item 1 of 2 .*1 of 2 batches"):
        make(peer.endpoint).do("append", items)
    assert [batches(each) for each in peer.seen(Opcode.APPEND)][1:] == [[b"a"]]


def test_a_lost_append_is_repeated_on_request(make, peer) -> None:
    peer.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, peer.endpoint)))
    peer.script(Opcode.APPEND, reset, append_handler())
    made = make(peer.endpoint).do("append", [AppendItem(1, b"a")], retry_unknown=True)
    assert made == [AppendOutcome(1, 100, 7)]
    assert len(peer.seen(Opcode.APPEND)) == 2


def test_one_uncertain_try_makes_the_outcome_unknown(make, peer) -> None:
    peer.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, peer.endpoint)))
    peer.script(Opcode.APPEND, reset, append_handler(n0=StatusCode.INVALID_REQUEST))
    with pytest.raises(InvalidRequestError) as caught:
        make(peer.endpoint).do("append", [AppendItem(1, b"a")], retry_unknown=True)
    assert caught.value.outcome is Outcome.UNKNOWN


def test_batches_that_a_broken_answer_confirmed_are_not_appended_again(make, peer) -> None:
    peer.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, peer.endpoint)))
    confirmed = AppendResponse(append_responses=(AppendResult(1, 0, 100, 7, Status()),))

    def cut(exchange: Exchange) -> None:
        exchange.answer(confirmed, is_end=False)
        exchange.link.close()

    def drain(exchange: Exchange) -> None:
        exchange.answer(confirmed, is_end=False)
        exchange.fail(ShuttingDownError(StatusCode.RS_SHUTTING_DOWN, "draining"))

    items = [AppendItem(1, b"a"), AppendItem(1, b"b")]
    driver = make(peer.endpoint)
    peer.script(Opcode.APPEND, drain, append_handler())
    assert len(driver.do("append", items)) == 2
    peer.script(Opcode.APPEND, cut, append_handler())
    assert len(driver.do("append", items, retry_unknown=True)) == 2
    sent = [batches(each) for each in peer.seen(Opcode.APPEND)]
    assert sent == [[b"a", b"b"], [b"b"]] * 2


def test_an_append_answer_without_an_item_is_unknown(make, peer) -> None:
    peer.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, peer.endpoint)))
    peer.script(Opcode.APPEND, lambda each: each.answer(AppendResponse()))
    with pytest.raises(ProtocolError, match="stream 1") as caught:
        make(peer.endpoint).do("append", [AppendItem(1, b"a")])
    assert caught.value.outcome is Outcome.UNKNOWN


def test_append_to_an_unknown_stream(make, peer) -> None:
    peer.script(Opcode.LIST_RANGES, ranges())
    with pytest.raises(NotFoundError, match="stream 1"):
        make(peer.endpoint).do("append", [AppendItem(1, b"a")])
