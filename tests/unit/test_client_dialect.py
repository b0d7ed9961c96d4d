"""The clients against servers that speak elasticstream-2023-04 and know no extension."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp_core.cli.output import show_time
from sbp_core.client import (
    EARLIEST,
    LATEST,
    AppendItem,
    AppendOutcome,
    FetchItem,
    StreamBounds,
    StreamSpec,
    StreamUpdate,
)
from sbp_core.errors import (
    InvalidRequestError,
    NotFoundError,
    Outcome,
    ProtocolError,
    RangeNotFoundError,
    StatusError,
    UnsupportedError,
)
from sbp_core.wire.headers import (
    AppendResponse,
    AppendResult,
    DescribeStreamsResponse,
    FetchResponse,
    FetchResult,
    Status,
    Stream,
    TrimStreamResult,
    TrimStreamsResponse,
    UpdateStreamResult,
    UpdateStreamsResponse,
)
from sbp_core.wire.opcodes import Opcode
from tests.support.client import BlockingDriver
from tests.support.cluster import values_of
from tests.support.data.batches import sequence_batch
from tests.support.dialect import (
    APPEND_SECONDS,
    DESCRIBE_RANGES,
    NO_NEW_RECORD,
    OK,
    ElasticStreamPeer,
)
from tests.support.scripted_peer import NO_RETRY, ScriptedPeer, placed, ranges

pytestmark = pytest.mark.dialect

BUSY = Status(1501, "busy")


@pytest.fixture
def server(peers) -> ElasticStreamPeer:
    return ElasticStreamPeer(peers(), peers(), 7, 8, 9)


def item(stream_id: int, offset: int = 0, max_bytes: int = 1 << 20) -> FetchItem:
    return FetchItem(stream_id, offset, None, max_bytes)


def by_item(outcomes) -> list:
    """(records, next offset) of each item; none failed."""
    assert [each.error for each in outcomes] == [None] * len(outcomes)
    ordered = sorted(outcomes, key=lambda each: each.item_index)
    assert [each.item_index for each in ordered] == list(range(len(outcomes)))
    return [(values_of(each.payload), each.next_offset) for each in ordered]


# FETCH


def test_record_sequences_of_three_streams_come_out_right(make, server) -> None:
    server.put(7, b"a", b"", b"c")
    server.put(7, b'"begins like a batch', delta=0)
    server.put(8, b"x", b"y", delta=1)
    server.put(9, *(b"%d" % number for number in range(500)))
    outcomes = make(server.endpoint).fetch([item(7), item(9), item(8)])
    assert by_item(outcomes) == [
        ([(0, b"a"), (1, b""), (2, b"c"), (3, b'"begins like a batch')], 4),
        ([(number, b"%d" % number) for number in range(500)], 500),
        ([(0, b"x"), (1, b"y")], 2),
    ]
    assert len(server.fetches()) == 1


def test_a_stream_is_read_on_from_wherever_the_last_answer_ended(make, server) -> None:
    for number in range(9):
        server.put(7, *(b"%d-%d" % (number, index) for index in range(3)))
    driver, offset, found = make(server.endpoint), 1, []
    while offset < 27:
        (outcome,) = driver.fetch([item(7, offset, max_bytes=400)])
        assert outcome.error is None
        assert outcome.next_offset > offset
        found += [(at, value) for at, value in values_of(outcome.payload) if at >= offset]
        offset = outcome.next_offset
    assert found == [(at, b"%d-%d" % divmod(at, 3)) for at in range(1, 27)]


def test_the_batch_around_the_offset_comes_whole(make, server) -> None:
    server.put(7, b"a", b"b", b"c")
    ((records, next_offset),) = by_item(make(server.endpoint).fetch([item(7, 2)]))
    assert (records, next_offset) == ([(0, b"a"), (1, b"b"), (2, b"c")], 3)


def test_appended_records_are_read_back(make, server) -> None:
    driver = make(server.endpoint)
    driver.do(
        "append",
        [AppendItem(7, sequence_batch([b"a", b"b"])), AppendItem(7, sequence_batch([b"c"]))],
    )
    assert by_item(driver.fetch([item(7)])) == [([(0, b"a"), (1, b"b"), (2, b"c")], 3)]


def test_nothing_new_is_asked_for_again_until_there_is_something(make, server) -> None:
    def late(exchange) -> None:
        server.put(7, b"late")
        server.fetch(exchange)

    server.node.script(Opcode.FETCH, server.fetch, server.fetch, server.fetch, late)
    outcomes = make(server.endpoint).fetch([item(7)], max_wait_ms=30_000)
    assert by_item(outcomes) == [([(0, b"late")], 1)]
    assert server.fetches() == [[(7, 0)]] * 4


def test_nothing_new_is_an_empty_answer_when_the_wait_is_over(make, server) -> None:
    driver = make(server.endpoint)
    assert by_item(driver.fetch([item(7), item(8)])) == [([], 0), ([], 0)]
    assert len(server.fetches()) == 1
    assert by_item(driver.fetch([item(7)], max_wait_ms=150)) == [([], 0)]
    assert len(server.fetches()) <= 8, "asked again, but less and less often"


def test_a_stream_without_records_does_not_hold_up_the_others(make, server) -> None:
    server.put(8, b"hot")

    def late(exchange) -> None:
        server.put(7, b"cold")
        server.fetch(exchange)

    server.node.script(Opcode.FETCH, server.fetch, server.fetch, late)
    outcomes = make(server.endpoint).fetch([item(7), item(8)], max_wait_ms=30_000)
    assert [each.item_index for each in outcomes] == [1, 0]
    assert by_item(outcomes) == [([(0, b"cold")], 1), ([(0, b"hot")], 1)]
    assert server.fetches() == [[(7, 0), (8, 0)], [(7, 0)], [(7, 0)]]


def test_streams_left_out_of_a_full_frame_are_requested_again_without_a_wait(make, server) -> None:
    for stream_id in (7, 8, 9):
        server.put(stream_id, b"%d" % stream_id)

    def one_at_a_time(exchange) -> None:
        first, *rest = exchange.header.fetch_requests
        stream_id = first.stream_range.stream_id
        results = [
            FetchResult(stream_id, 0, 1, OK),
            *[FetchResult(0, 0, 0, NO_NEW_RECORD)] * len(rest),
        ]
        exchange.answer(FetchResponse(0, tuple(results), OK), server.held[stream_id].batches)

    server.node.script(Opcode.FETCH, one_at_a_time)
    outcomes = make(server.endpoint).fetch([item(7), item(8), item(9)])
    assert by_item(outcomes) == [([(0, b"%d" % each)], 1) for each in (7, 8, 9)]
    assert [len(asked) for asked in server.fetches()] == [3, 2, 1]


def test_a_wait_goes_on_in_the_next_range(make, server) -> None:
    server.put(7, b"a", b"b")

    def seal(exchange) -> None:
        server.fetch(exchange)
        server.open_next_range(7)
        server.put(7, b"c")

    server.node.script(Opcode.FETCH, seal, server.fetch)
    outcomes = make(server.endpoint).fetch([item(7, 2)], max_wait_ms=30_000)
    assert by_item(outcomes) == [([(2, b"c")], 3)]
    asked = [each.header.fetch_requests[0] for each in server.node.seen(Opcode.FETCH)]
    assert [(info.stream_range.range_index, info.fetch_offset) for info in asked] == [
        (0, 2),
        (1, 2),
    ]


def test_either_end_is_looked_up_before_it_is_fetched(make, server) -> None:
    server.put(7, b"a", b"b")
    server.put(8, b"c")
    outcomes = make(server.endpoint).fetch([item(7, EARLIEST), item(8, LATEST), item(8, 0)])
    assert by_item(outcomes) == [([(0, b"a"), (1, b"b")], 2), ([], 1), ([(0, b"c")], 1)]
    assert server.fetches()[0] == [(7, 0), (8, 1), (8, 0)]


def test_an_item_that_fails_leaves_the_others_alone(make, server) -> None:
    server.put(8, b"x")
    known = (placed(6, 0, 0, -1, server.node.endpoint), placed(8, 0, 0, -1, server.node.endpoint))
    server.driver.script(Opcode.LIST_RANGES, ranges(*known))
    bad, good = sorted(
        make(server.endpoint, retry=NO_RETRY).fetch([item(6), item(8)]),
        key=lambda each: each.item_index,
    )
    assert isinstance(bad.error, RangeNotFoundError)
    assert values_of(good.payload) == [(0, b"x")]


@pytest.mark.parametrize(
    ("results", "payload"),
    [
        ([FetchResult(7, 0, 2, OK)], [sequence_batch([b"a"])]),
        ([FetchResult(7, 0, 1, OK)], [sequence_batch([b"a"])[:-1]]),
        ([FetchResult(7, 0, 1, OK)], [b"no batch at all"]),
        ([FetchResult(8, 0, 1, OK)], [sequence_batch([b"a"])]),
        ([FetchResult(7, 0, 0, OK), FetchResult(7, 0, 0, OK)], []),
        ([], []),
    ],
    ids=["too few batches", "cut off", "no batch", "other stream", "too many", "no answer"],
)
def test_an_unusable_fetch_answer_is_an_error(make, server, results, payload) -> None:
    answer = FetchResponse(0, tuple(results), OK)
    server.node.script(Opcode.FETCH, lambda each: each.answer(answer, payload))
    (outcome,) = make(server.endpoint).fetch([item(7)])
    assert isinstance(outcome.error, ProtocolError)
    assert not outcome.payload


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    cuts=st.sets(st.integers(1, 5)),
    max_bytes=st.sampled_from([1, 200, 1 << 20]),
)
@settings(max_examples=25, deadline=None)
def test_every_offset_is_found_also_within_the_last_batch(sizes, cuts, max_bytes) -> None:
    """With the end of the stream known to the caller, or not; `cuts`: where ranges are sealed."""
    peers = [ScriptedPeer(), ScriptedPeer()]
    server = ElasticStreamPeer(*peers, 7)
    for index, size in enumerate(sizes):
        if index in cuts:
            server.open_next_range(7)
        server.put(7, *(b"%d" % (server.next_offset(7) + each) for each in range(size)))
    tail = server.next_offset(7)
    driver = BlockingDriver(server.endpoint)
    try:
        for offset in range(tail):
            for end in (None, tail):
                (outcome,) = driver.fetch([FetchItem(7, offset, end, max_bytes)])
                assert outcome.error is None
                found = values_of(outcome.payload)
                assert found == [(at, b"%d" % at) for at, _ in found]
                assert outcome.next_offset == found[-1][0] + 1
                (first, *_) = batches_of(sizes, offset)
                assert found[0][0] == first
        (outcome,) = driver.fetch([FetchItem(7, tail, None, max_bytes)])
        assert (bytes(outcome.payload), outcome.next_offset) == (b"", tail)
    finally:
        driver.close()
        for peer in peers:
            peer.close()
            assert not peer.faults


def batches_of(sizes, offset) -> list[int]:
    """Where the batch of an offset begins, and those behind it."""
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return starts[max(index for index, start in enumerate(starts) if start <= offset) :]


def test_a_reader_at_the_tail_asks_once_where_that_is(make, server) -> None:
    server.put(7, b"a", b"b")

    def late(exchange) -> None:
        server.put(7, b"late")
        server.fetch(exchange)

    server.node.script(Opcode.FETCH, server.fetch, server.fetch, server.fetch, late)
    outcomes = make(server.endpoint).fetch([item(7, 2)], max_wait_ms=30_000)
    assert by_item(outcomes) == [([(2, b"late")], 3)]
    assert server.fetches() == [[(7, 2)]] * 4
    assert len(server.node.seen(DESCRIBE_RANGES)) == 1


def test_records_that_never_appear_are_not_looked_for_for_ever(make, server) -> None:
    """A server that says that there is more, and finds none of it, from any offset."""
    server.put(7, b"a", b"b", b"c", b"d")
    answer = FetchResponse(0, (FetchResult(0, 0, 0, NO_NEW_RECORD),), OK)
    server.node.script(Opcode.FETCH, lambda each: each.answer(answer))
    assert by_item(make(server.endpoint).fetch([item(7, 3)])) == [([], 3)]
    assert server.fetches() == [[(7, each)] for each in (3, 2, 1, 0)]


# APPEND


def test_answers_to_appends_belong_to_the_batches_in_their_order(make, server) -> None:
    batches = [AppendItem(8, sequence_batch([b"a", b"b"])), AppendItem(7, sequence_batch([b"c"]))]
    batches.append(AppendItem(8, sequence_batch([b"d"])))
    driver = make(server.endpoint)
    time_ms = APPEND_SECONDS * 1000
    assert driver.do("append", batches) == [
        AppendOutcome(8, 0, time_ms),
        AppendOutcome(7, 0, time_ms),
        AppendOutcome(8, 2, time_ms),
    ]
    assert len(server.node.seen(Opcode.APPEND)) == 1
    (first, *_) = server.node.seen(Opcode.APPEND)[0].header.append_requests
    target = first.stream_range
    assert (target.stream_id, target.range_index, target.start_offset) == (8, 0, 0)
    assert target.end_offset == -1


def test_a_batch_that_is_refused_is_reported_by_its_place(make, server) -> None:
    refused = AppendResult(0, 0, 0, 0, Status(1400, "no"))
    applied = AppendResult(8, 0, 5, 0, OK)
    answer = AppendResponse(0, (applied, refused), OK)
    server.node.script(Opcode.APPEND, lambda each: each.answer(answer))
    batches = [AppendItem(8, sequence_batch([b"a"])), AppendItem(7, sequence_batch([b"b"]))]
    with pytest.raises(InvalidRequestError, match=r"item 1 of 2 \(stream 7\).*1 of 2") as caught:
        make(server.endpoint).do("append", batches)
    assert caught.value.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("count", "status", "unknown"),
    [(1, OK, 0), (3, OK, 0), (2, Status(), 1)],
    ids=["too few", "too many", "other dialect"],
)
def test_answers_without_indexes_must_be_as_many_as_the_requests(
    make, server, count, status, unknown
) -> None:
    """Otherwise it is unknown which batch was appended; and only this dialect lacks indexes."""
    answer = AppendResponse(0, (AppendResult(8, 0, 5, 0, status),) * count, status)
    server.node.script(Opcode.APPEND, lambda each: each.answer(answer))
    with pytest.raises(ProtocolError, match=f"item {unknown} of 2") as caught:
        make(server.endpoint).do("append", [AppendItem(8, sequence_batch([b"a"]))] * 2)
    assert caught.value.outcome is Outcome.UNKNOWN


# The placement driver


def test_bounds_are_asked_for_with_the_opcode_of_the_dialect(make, server) -> None:
    server.put(7, b"a", b"b")
    driver = make(server.endpoint)
    assert driver.do("stream_bounds", [8, 7]) == [StreamBounds(8, 0, 0), StreamBounds(7, 0, 2)]
    assert len(server.node.seen(DESCRIBE_RANGES)) == 1
    assert not server.node.seen(Opcode.DESCRIBE_RANGE)


def test_a_stream_without_ranges_is_unknown(make, server) -> None:
    driver = make(server.endpoint)
    with pytest.raises(NotFoundError, match=r"not found: stream 3, stream 4;"):
        driver.do("list_ranges", [3, 7, 4])
    with pytest.raises(NotFoundError, match="stream 3"):
        driver.do("append", [AppendItem(3, sequence_batch([b"a"]))])
    with pytest.raises(NotFoundError, match="stream 3"):
        driver.do("stream_bounds", [3])
    (outcome,) = driver.fetch([item(3)], max_wait_ms=1000)
    assert isinstance(outcome.error, NotFoundError)
    assert not server.node.seen(Opcode.FETCH)


def test_streams_are_told_apart_by_id_where_unknown_ones_are_left_out(make, server) -> None:
    driver = make(server.endpoint)
    found = driver.do("describe_streams", [9, 7, 8])
    assert [each.stream_id for each in found] == [9, 7, 8]
    with pytest.raises(NotFoundError, match="not found: stream 3, stream 4;"):
        driver.do("describe_streams", [9, 3, 7, 4])


def test_one_unknown_stream_does_not_hide_the_others(make, server) -> None:
    driver = make(server.endpoint)
    found = driver.do("find_streams", [3, 7, 4, 8, *range(1000, 1500), 9])
    assert sorted(each.stream_id for each in found) == [7, 8, 9]
    assert driver.do("find_streams", [3]) == []
    server.driver.script(
        Opcode.DESCRIBE_STREAMS, lambda each: each.answer(DescribeStreamsResponse(status=BUSY))
    )
    with pytest.raises(StatusError, match="busy"):
        driver.do("find_streams", [7, 8])


def test_a_stream_with_ranges_is_not_taken_for_missing(make, server) -> None:
    """It is deleted, which leaves its ranges, or the placement manager is in trouble."""
    del server.rows[7]
    with pytest.raises(StatusError, match=r"stream 7 is not described, but has ranges.*1500"):
        make(server.endpoint).do("describe_streams", [8, 7])


def test_data_nodes_are_not_told_of_what_they_never_answer(make, server) -> None:
    driver = make(server.endpoint)
    driver.do("delete_streams", [7])
    assert sorted(server.rows) == [8, 9]
    with pytest.raises(UnsupportedError, match="TRIM_STREAMS"):
        driver.do("trim_streams", {8: 0})
    trimmed = TrimStreamResult(Stream(8, 1), server.ranges_of(8)[0], OK)
    answer = TrimStreamsResponse(0, (trimmed,), OK)
    server.driver.script(Opcode.TRIM_STREAMS, lambda each: each.answer(answer))
    assert driver.do("trim_streams", {8: 0})[8].start_offset == 0
    assert not server.node.seen(Opcode.DELETE_STREAMS)
    assert not server.node.seen(Opcode.TRIM_STREAMS)


def test_an_update_that_replaces_all_keeps_unchanged_settings(make, server) -> None:
    server.rows[7] = Stream(7, 3, 1000)
    (updated,) = make(server.endpoint).do(
        "update_streams", [StreamUpdate(7, retention_period_ms=5)]
    )
    assert (updated.replica_count, updated.retention_period_ms) == (3, 5)
    assert server.rows[7] == Stream(7, 3, 5)


def test_new_ranges_are_told_apart_in_whatever_order_they_are_opened(make, server) -> None:
    for stream_id, count in ((7, 1), (8, 2), (9, 3)):
        server.put(stream_id, *[b"x"] * count)
    opened = make(server.endpoint).do("seal_streams", [8, 7, 9])
    assert {each: opened[each].start_offset for each in opened} == {8: 2, 7: 1, 9: 3}
    assert {opened[each].stream_id for each in opened} == {7, 8, 9}


def test_a_stream_whose_creation_is_not_known_says_so(make, server) -> None:
    (found,) = make(server.endpoint).do("describe_streams", [7])
    assert show_time(found.created_at_ms) == "unknown"
    assert show_time(0) == "1970-01-01T00:00:00+00:00"


def test_a_name_is_refused_clearly_by_whoever_knows_none(make, server) -> None:
    driver = make(server.endpoint)
    for refs in (["orders"], [7, "orders"]):
        with pytest.raises(UnsupportedError, match=r"by id only; give an id instead of 'orders'"):
            driver.do("describe_streams", refs)
    with pytest.raises(UnsupportedError, match=r"stream 109 is there, but not as 'orders'"):
        driver.do("create_streams", [StreamSpec("orders")])
    (made,) = driver.do("create_streams", [StreamSpec(None)])
    assert (made.stream_id, made.name) == (209, None)

    def update(exchange) -> None:
        results = tuple(
            UpdateStreamResult(make_nameless(each), OK) for each in exchange.header.streams
        )
        exchange.answer(UpdateStreamsResponse(0, results, OK))

    server.driver.script(Opcode.UPDATE_STREAMS, update)
    with pytest.raises(UnsupportedError, match=r"stream 7 is there, but not as 'orders'"):
        driver.do("update_streams", [StreamUpdate(7, name="orders")])
    assert driver.do("update_streams", [StreamUpdate(7, retention_period_ms=5)])


def make_nameless(stream):
    return type(stream)(stream.stream_id, stream.replica_nums, stream.retention_period_ms)
