"""Metadata operations of the blocking and the asyncio client."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from msgspec.structs import replace

from sbp_core import limits
from sbp_core.client import RetryPolicy, StreamBounds, StreamSpec, StreamUpdate
from sbp_core.errors import (
    AlreadyExistsError,
    ConfigurationError,
    ConnectError,
    ConnectionLostError,
    InvalidRequestError,
    NoRangeServerError,
    NotFoundError,
    Outcome,
    ProtocolError,
    StatusCode,
    StatusError,
)
from sbp_core.wire.headers import (
    CreateStreamResult,
    CreateStreamsResponse,
    DeleteStreamResult,
    DeleteStreamsResponse,
    DescribeRangeResult,
    DescribeRangesResponse,
    DescribeStreamResult,
    DescribeStreamsResponse,
    ListRangesResponse,
    ListRangesResult,
    RangeCriteria,
    SealRangesResponse,
    SealRangesResult,
    Status,
    Stream,
    TrimStreamResult,
    TrimStreamsResponse,
    UpdateStreamResult,
    UpdateStreamsResponse,
)
from sbp_core.wire.opcodes import Opcode
from tests.support.scripted_peer import Exchange, Handler, placed, ranges, reset, status

OK = Status()


def test_describe_by_id_and_name_names_all_missing(make, peer) -> None:
    known = Stream(4, 1, 60, name="orders", created_at_ms=9)

    def describe(exchange: Exchange) -> None:
        header = exchange.header
        results = [
            DescribeStreamResult(known)
            if ref in {4, "orders"}
            else DescribeStreamResult(status=status(StatusCode.NOT_FOUND))
            for ref in (*header.stream_ids, *header.names)
        ]
        half = len(results) // 2
        exchange.answer(DescribeStreamsResponse(0, tuple(results[:half])), is_end=False)
        exchange.answer(DescribeStreamsResponse(0, tuple(results[half:])))

    peer.script(Opcode.DESCRIBE_STREAMS, describe)
    driver = make(peer.endpoint)
    first, second = driver.do("describe_streams", ["orders", 4])
    assert first == second
    assert (first.stream_id, first.name, first.retention_period_ms) == (4, "orders", 60)
    assert first.retention_bytes == 0, "the peer does not know the field"
    with pytest.raises(NotFoundError, match=r"'nope'.*77.*create them, or list"):
        driver.do("describe_streams", ["nope", 4, 77])


def test_create_streams(make, peer) -> None:
    def create(exchange: Exchange) -> None:
        results = tuple(
            CreateStreamResult(Stream(i, each.replica_nums, 0, name=each.name))
            if each.name != "taken"
            else CreateStreamResult(status=status(StatusCode.CONFLICT))
            for i, each in enumerate(exchange.header.streams)
        )
        exchange.answer(CreateStreamsResponse(create_responses=results))

    peer.script(Opcode.CREATE_STREAMS, create)
    driver = make(peer.endpoint)
    made = driver.do("create_streams", [StreamSpec("a"), StreamSpec(None, 3, ack_count=2)])
    (exchange,) = peer.seen(Opcode.CREATE_STREAMS)
    assert [(each.replica_nums, each.ack_count) for each in exchange.header.streams] == [
        (1, 0),
        (3, 2),
    ]
    assert [(each.stream_id, each.name, each.replica_count) for each in made] == [
        (0, "a", 1),
        (1, None, 3),
    ]
    with pytest.raises(AlreadyExistsError, match="taken"):
        driver.do("create_streams", [StreamSpec("taken")])


def create_with(*codes: StatusCode) -> Handler:
    """Answer each request with the next code for the streams whose names begin with `late`."""
    left = list(codes)

    def create(exchange: Exchange) -> None:
        code = left.pop(0) if left else StatusCode.NONE
        results = tuple(
            CreateStreamResult(status=status(code))
            if code is not StatusCode.NONE and each.name.startswith("late")
            else CreateStreamResult(Stream(int(each.name[-1]), 1, 0, name=each.name))
            for each in exchange.header.streams
        )
        exchange.answer(CreateStreamsResponse(create_responses=results))

    return create


def test_create_waits_for_a_range_server(make, peer) -> None:
    """Only what was not created is asked for again, and all come in the order of the call."""
    absent = StatusCode.PD_NO_AVAILABLE_RS
    peer.script(Opcode.CREATE_STREAMS, create_with(absent, absent))
    names = ["late-0", "now-1", "late-2"]
    made = make(peer.endpoint).do("create_streams", [StreamSpec(name) for name in names])
    assert [(each.stream_id, each.name) for each in made] == list(enumerate(names))
    asked = [[s.name for s in each.header.streams] for each in peer.seen(Opcode.CREATE_STREAMS)]
    assert asked == [names, ["late-0", "late-2"], ["late-0", "late-2"]]


def test_create_gives_up_when_no_range_server_comes(make, peer) -> None:
    absent = StatusCode.PD_NO_AVAILABLE_RS
    peer.script(Opcode.CREATE_STREAMS, create_with(*[absent] * 1000))
    policy = RetryPolicy(budget_ms=50, backoff_ms=1, backoff_ms_max=2)
    with pytest.raises(NoRangeServerError, match=r"creating stream 'late-0'.*given up after"):
        make(peer.endpoint, retry=policy).do("create_streams", [StreamSpec("late-0")])


def test_create_does_not_wait_when_that_cannot_help(make, peer) -> None:
    codes = [StatusCode.PD_NO_AVAILABLE_RS, StatusCode.CONFLICT]
    peer.script(Opcode.CREATE_STREAMS, create_with(*codes))
    with pytest.raises(AlreadyExistsError, match="creating stream 'late-0'"):
        make(peer.endpoint).do("create_streams", [StreamSpec("late-0")])
    assert len(peer.seen(Opcode.CREATE_STREAMS)) == len(codes)


def test_create_is_not_repeated_when_its_outcome_is_unknown(make, peer) -> None:
    peer.script(Opcode.CREATE_STREAMS, reset)
    with pytest.raises(ConnectionLostError):
        make(peer.endpoint).do("create_streams", [StreamSpec("a")])
    assert len(peer.seen(Opcode.CREATE_STREAMS)) == 1


def test_delete_tells_the_range_servers_too_and_bears_their_absence(make, peers) -> None:
    driver_peer, server = peers(), peers()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        gone = f"127.0.0.1:{closed.getsockname()[1]}"
    driver_peer.script(
        Opcode.DESCRIBE_STREAMS,
        lambda each: each.answer(
            DescribeStreamsResponse(
                0, tuple(DescribeStreamResult(Stream(i)) for i in each.header.stream_ids)
            )
        ),
    )
    driver_peer.script(
        Opcode.LIST_RANGES,
        ranges(placed(1, 0, 0, 5, gone), placed(1, 1, 5, -1, server.endpoint)),
    )

    def delete(exchange: Exchange) -> None:
        results = tuple(DeleteStreamResult(each) for each in exchange.header.streams)
        exchange.answer(DeleteStreamsResponse(delete_responses=results))

    driver_peer.script(Opcode.DELETE_STREAMS, delete)
    server.script(Opcode.DELETE_STREAMS, delete)
    make(driver_peer.endpoint).do("delete_streams", [1])
    assert len(driver_peer.seen(Opcode.DELETE_STREAMS)) == 1
    assert [each.stream_id for each in server.seen(Opcode.DELETE_STREAMS)[0].header.streams] == [1]


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (StatusCode.PD_NO_AVAILABLE_RS, Outcome.UNKNOWN),
        (StatusCode.SEAL_NO_SERVER_ANSWERED, Outcome.UNKNOWN),
        (StatusCode.RANGE_NOT_FOUND, Outcome.NOT_APPLIED),
    ],
    ids=lambda value: value.name,
)
def test_a_seal_that_fails_half_way_may_have_been_applied(make, peer, code, outcome) -> None:
    peer.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, "a:1")))
    peer.script(
        Opcode.SEAL_RANGE,
        lambda each: each.answer(
            SealRangesResponse(seal_responses=(SealRangesResult(None, status(code), 1),))
        ),
    )
    with pytest.raises(StatusError, match="sealing stream 1: scripted") as caught:
        make(peer.endpoint).do("seal_streams", [1])
    assert caught.value.outcome is outcome


def test_seal_results_are_matched_by_stream(make, peer) -> None:
    """A placement driver may answer in the order of completion."""
    peer.script(
        Opcode.LIST_RANGES,
        ranges(placed(1, 0, 0, -1, "a:1"), placed(2, 0, 0, -1, "a:1"), placed(3, 4, 0, -1, "a:1")),
    )

    def seal(exchange: Exchange) -> None:
        opened = (3, 5, 30), (1, 1, 10), (2, 1, 20)
        results = tuple(SealRangesResult(placed(*each, -1, "a:1"), OK, each[0]) for each in opened)
        exchange.answer(SealRangesResponse(seal_responses=results, status=OK))

    peer.script(Opcode.SEAL_RANGE, seal)
    opened = make(peer.endpoint).do("seal_streams", [1, 2, 3])
    assert {each: info.start_offset for each, info in opened.items()} == {1: 10, 2: 20, 3: 30}


def test_an_update_sends_what_it_does_not_change(make, peer) -> None:
    """A server would take an absent replica count for 0."""
    known = Stream(7, 3, 1_000)
    peer.script(
        Opcode.DESCRIBE_STREAMS,
        lambda each: each.answer(DescribeStreamsResponse(0, (DescribeStreamResult(known),))),
    )
    peer.script(
        Opcode.UPDATE_STREAMS,
        lambda each: each.answer(
            UpdateStreamsResponse(update_responses=(UpdateStreamResult(each.header.streams[0]),))
        ),
    )
    update = StreamUpdate(7, retention_period_ms=5_000)
    (updated,) = make(peer.endpoint).do("update_streams", [update])
    assert (updated.replica_count, updated.retention_period_ms) == (3, 5_000)
    for update, expected in (
        (StreamUpdate(7, replica_count=5), (5, 0, 1_000)),
        (StreamUpdate(7, ack_count=3), (3, 3, 1_000)),
    ):
        make(peer.endpoint).do("update_streams", [update])
        (sent,) = peer.seen(Opcode.UPDATE_STREAMS)[-1].header.streams
        assert (sent.replica_nums, sent.ack_count, sent.retention_period_ms) == expected
    for wrong in (StreamUpdate(7, replica_count=0), StreamUpdate(7, replica_count=2, ack_count=3)):
        with pytest.raises(ConfigurationError):
            make(peer.endpoint).do("update_streams", [wrong])


def test_list_ranges_names_all_missing(make, peer) -> None:
    peer.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, 8, "a:1"), placed(1, 1, 8, -1, "b:1")))
    driver = make(peer.endpoint)
    found = driver.do("list_ranges", [1])
    assert [(each.start_offset, each.end_offset, each.servers) for each in found[1]] == [
        (0, 8, ("a:1",)),
        (8, None, ("b:1",)),
    ]
    with pytest.raises(NotFoundError, match=r"stream 2.*stream 3"):
        driver.do("list_ranges", [1, 2, 3])


def test_the_ranges_of_a_stream_may_come_in_several_results_and_frames(make, peer) -> None:
    def part(stream_id: int, *pieces: Any) -> ListRangesResult:
        owner = RangeCriteria(stream_id=stream_id)
        return ListRangesResult(owner, pieces, status(StatusCode.NONE), stream_id)

    def listed(exchange: Exchange) -> None:
        first = part(1, placed(1, 0, 0, 2, "a:1"), placed(1, 1, 2, 3, "a:1"))
        exchange.answer(ListRangesResponse(list_responses=(first,)), is_end=False)
        rest = part(1, placed(1, 2, 3, -1, "a:1"))
        other = part(2, placed(2, 0, 0, -1, "b:1"))
        exchange.answer(ListRangesResponse(list_responses=(rest, part(1), other)))

    peer.script(Opcode.LIST_RANGES, listed)
    found = make(peer.endpoint).do("list_ranges", [1, 2])
    assert [each.range_index for each in found[1]] == [0, 1, 2]
    assert [each.range_index for each in found[2]] == [0]


def describe_tail(*pieces: Any) -> Handler:
    def handle(exchange: Exchange) -> None:
        wanted = {each.stream_id for each in exchange.header.ranges}
        results = tuple(
            DescribeRangeResult(piece.stream_id, piece)
            for piece in pieces
            if piece.stream_id in wanted
        )
        exchange.answer(DescribeRangesResponse(describe_responses=results))

    return handle


def test_bounds_ask_each_server_once_and_the_driver_by_revision(make, peers) -> None:
    pd, one, two = peers(), peers(), peers()
    pd.script(
        Opcode.LIST_RANGES,
        ranges(
            placed(1, 0, 3, 10, one.endpoint),
            placed(1, 1, 10, -1, two.endpoint),
            placed(2, 0, 0, -1, two.endpoint),
            placed(3, 0, 4, 9, one.endpoint),
            revision=6,
        ),
    )
    two.script(
        Opcode.DESCRIBE_RANGE,
        describe_tail(placed(1, 1, 10, -1, "", 25), placed(2, 0, 2, -1, "", 4)),
    )
    driver = make(pd.endpoint)
    expected = [StreamBounds(1, 3, 25), StreamBounds(2, 2, 4), StreamBounds(3, 4, 9)]
    assert driver.do("stream_bounds", [1, 2, 3]) == expected
    assert driver.do("stream_bounds", [1, 2, 3]) == expected
    assert len(two.seen(Opcode.DESCRIBE_RANGE)) == 2
    assert not one.requests
    asked = [
        (len(each.header.range_owners), each.header.since_revision)
        for each in pd.seen(Opcode.LIST_RANGES)
    ]
    assert asked == [(3, -1), (0, 6)]


def test_bounds_follow_a_range_that_was_sealed(make, peers) -> None:
    pd, server = peers(), peers()
    pd.script(
        Opcode.LIST_RANGES,
        ranges(placed(1, 0, 0, -1, server.endpoint)),
        ranges(placed(1, 0, 0, 10, server.endpoint), placed(1, 1, 10, -1, server.endpoint)),
    )
    server.script(
        Opcode.DESCRIBE_RANGE,
        describe_tail(placed(1, 0, 0, 10, "", 10)),
        describe_tail(placed(1, 1, 10, -1, "", 12)),
    )
    assert make(pd.endpoint).do("stream_bounds", [1]) == [StreamBounds(1, 0, 12)]


def test_bounds_of_a_sealed_range_without_a_successor(make, peer) -> None:
    peer.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, peer.endpoint)))
    peer.script(Opcode.DESCRIBE_RANGE, describe_tail(placed(1, 0, 0, 10, "", 10)))
    assert make(peer.endpoint).do("stream_bounds", [1]) == [StreamBounds(1, 0, 10)]


def test_bounds_give_up_when_a_server_says_nothing(make, peer) -> None:
    peer.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, peer.endpoint)))
    peer.script(Opcode.DESCRIBE_RANGE, describe_tail())
    with pytest.raises(ProtocolError, match="stream 1"):
        make(peer.endpoint).do("stream_bounds", [1])


def test_the_outcome_of_an_error_speaks_of_all_tries(make, peer) -> None:
    def refuse(exchange: Exchange) -> None:
        exchange.fail(InvalidRequestError(StatusCode.INVALID_REQUEST, "no"))

    peer.script(Opcode.DESCRIBE_STREAMS, reset, refuse)
    with pytest.raises(InvalidRequestError) as caught:
        make(peer.endpoint).do("describe_streams", [1])
    assert caught.value.outcome is Outcome.UNKNOWN
    with pytest.raises(InvalidRequestError) as caught:
        make(peer.endpoint).do("describe_streams", [1])
    assert caught.value.outcome is Outcome.NOT_APPLIED


def test_a_trim_that_is_recorded_and_not_everywhere_is_not_one_without_effect(make, peer) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        gone = f"127.0.0.1:{unused.getsockname()[1]}"
        hosted = placed(1, 0, 0, -1, gone)
        recorded = TrimStreamResult(Stream(1), replace(hosted, start_offset=5), Status())
        peer.script(Opcode.LIST_RANGES, ranges(hosted))
        peer.script(
            Opcode.TRIM_STREAMS,
            lambda exchange: exchange.answer(TrimStreamsResponse(streams=(recorded,))),
        )
        with pytest.raises(ConnectError, match="has recorded the trim") as caught:
            make(peer.endpoint).do("trim_streams", {1: 5})
    assert caught.value.outcome is Outcome.UNKNOWN


def test_a_trim_needs_no_answer_of_a_replica_that_is_down(make, peers) -> None:
    pd, alive, down = peers(), peers(), peers()
    down.close()
    one, two = (placed(1, 0, 0, -1, each.endpoint).servers for each in (alive, down))
    hosted = replace(placed(1, 0, 0, -1, ""), servers=one + two)
    trimmed = TrimStreamResult(Stream(1), replace(hosted, start_offset=5), Status())
    pd.script(Opcode.LIST_RANGES, ranges(hosted))
    for each in (pd, alive):
        each.script(
            Opcode.TRIM_STREAMS,
            lambda exchange: exchange.answer(TrimStreamsResponse(streams=(trimmed,))),
        )
    found = make(pd.endpoint).do("trim_streams", {1: 5})
    assert found[1].start_offset == 5
    assert len(alive.seen(Opcode.TRIM_STREAMS)) == 1


WATCHED = list(range(1, limits.BOUNDS_WATCHED_MIN + 1))
"""Streams enough that revisions are asked for before their bounds."""


def revisions(revision: int, *pieces: Any) -> Handler:
    """A range server that counts revisions, and this is the present one."""
    describe = describe_tail(*pieces)

    def handle(exchange: Exchange) -> None:
        if exchange.header.ranges:
            describe(exchange)
            return
        since = exchange.header.since_revision
        results = tuple(DescribeRangeResult(each.stream_id, each) for each in pieces)
        exchange.answer(
            DescribeRangesResponse(
                describe_responses=results if 0 <= since < revision else (), revision=revision
            )
        )

    return handle


def test_a_watch_of_bounds_asks_once_in_full(make, peer) -> None:
    peer.script(
        Opcode.LIST_RANGES,
        ranges(*(placed(each, 0, 0, -1, peer.endpoint) for each in WATCHED), revision=6),
    )
    tails = [placed(each, 0, 0, -1, "", each + 2) for each in WATCHED]
    peer.script(Opcode.DESCRIBE_RANGE, revisions(7, *tails))
    driver = make(peer.endpoint)
    first = driver.do("watch_bounds", WATCHED)
    bounds = {each: StreamBounds(each, 0, each + 2) for each in WATCHED}
    assert first.bounds == bounds
    asked = len(peer.requests)
    assert driver.do("watch_bounds", WATCHED, first) is first
    assert len(peer.requests) == asked + 2
    unknown = placed(len(WATCHED) + 1, 0, 0, -1, "")
    peer.script(Opcode.DESCRIBE_RANGE, revisions(8, placed(2, 0, 1, -1, "", 9), unknown))
    second = driver.do("watch_bounds", WATCHED, first)
    assert second.bounds == bounds | {2: StreamBounds(2, 1, 9)}
    assert len(peer.requests) == asked + 4
    assert driver.do("watch_bounds", [2], second).bounds == {2: StreamBounds(2, 1, 9)}


def test_ranges_are_not_listed_again_as_of_the_same_revision(make, peer) -> None:
    peer.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, peer.endpoint), revision=6))
    driver = make(peer.endpoint)
    listed = driver.do("list_ranges", [1], as_of=6)
    assert len(peer.seen(Opcode.LIST_RANGES)) == 1
    assert driver.do("list_ranges", [1], as_of=6) == listed
    assert len(peer.seen(Opcode.LIST_RANGES)) == 1
    for as_of in (7, None):
        assert driver.do("list_ranges", [1], as_of=as_of) == listed
    assert len(peer.seen(Opcode.LIST_RANGES)) == 3


def test_bounds_of_a_server_that_counts_no_revisions_are_asked_in_full(make, peer) -> None:
    peer.script(
        Opcode.LIST_RANGES,
        ranges(*(placed(each, 0, 0, -1, peer.endpoint) for each in WATCHED), revision=6),
    )
    driver = make(peer.endpoint)
    view = None
    for tail in (3, 5):
        tails = [placed(each, 0, 0, -1, "", tail) for each in WATCHED]
        peer.script(Opcode.DESCRIBE_RANGE, describe_tail(*tails))
        view = driver.do("watch_bounds", WATCHED, view)
        assert view.basis is None
        assert view.bounds == {each: StreamBounds(each, 0, tail) for each in WATCHED}
