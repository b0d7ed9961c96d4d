"""More streams, ranges, cursors and decisions than the settings allow are refused by name."""

import pytest

from sbp_core.errors import InvalidRequestError, NoRangeServerError, StatusCode
from sbp_core.pd.model import NewStream, SealedRange, ServerLoad
from sbp_core.pd.streams.cursor_handlers import commit_cursors
from sbp_core.pd.streams.range_operations import open_next_ranges, plan_seals
from sbp_core.pd.streams.stream_operations import create_streams
from sbp_core.pd.txns.decisions import Manifest, Part
from sbp_core.wire.headers import Cursor, RangeId, Stream, StreamRange

SERVERS = (ServerLoad(1),)
DAY_MS = 86_400_000


@pytest.fixture
def opened(new_home):
    """Opens stores with limits."""
    return lambda **limits: new_home().open(**limits)


def created(store, *names):
    return create_streams(store, [Stream(name=name) for name in names], SERVERS, 5)


def filled(store, *names):
    news = [NewStream(name, 1, 1, 0, (1,)) for name in names]
    return [stream.stream_id for stream, _ in store.create_streams(news, 5)]


def test_streams_beyond_the_limit_are_refused_each_by_itself(opened):
    store = opened(streams_max=3)
    results = created(store, "a", "b", "c", "d")
    assert [each.status.code == StatusCode.NONE for each in results] == [True, True, True, False]
    assert results[3].status.code == StatusCode.INVALID_REQUEST
    assert "streams_max of the placement driver allows 3 streams" in results[3].status.message
    store.delete_streams([results[0].stream.stream_id])
    again = created(store, "d", "e")
    assert [each.status.code for each in again] == [StatusCode.NONE, StatusCode.INVALID_REQUEST]


def test_a_stream_has_no_more_ranges_than_its_limit(opened):
    store = opened(ranges_per_stream_max=2)
    (a,) = filled(store, "a")
    opened_next, _ = open_next_ranges(store, [a], [SealedRange(a, 0, 5)], SERVERS)
    assert isinstance(opened_next[a], StreamRange)
    refused = open_next_ranges(store, [a], [SealedRange(a, 1, 9)], SERVERS)[0][a]
    assert isinstance(refused, InvalidRequestError)
    assert "ranges_per_stream_max" in str(refused)
    store.trim_streams([(a, 9)])
    assert isinstance(open_next_ranges(store, [a], [], SERVERS)[0][a], StreamRange)


def test_a_range_is_not_sealed_that_could_have_no_successor(opened):
    store = opened(ranges_per_stream_max=2)
    (a,) = filled(store, "a")
    open_next_ranges(store, [a], [SealedRange(a, 0, 5)], SERVERS)
    (plan,) = plan_seals(store, [RangeId(a, -1)], SERVERS)
    assert isinstance(plan.answer, InvalidRequestError)
    (repeat,) = plan_seals(store, [RangeId(a, 0)], SERVERS)
    assert isinstance(repeat.answer, StreamRange)
    store.trim_streams([(a, 5)])
    (plan,) = plan_seals(store, [RangeId(a, -1)], SERVERS)
    assert plan.open_range is not None


@pytest.mark.parametrize("servers", [(), (ServerLoad(1, disk_free_bytes=0),)])
def test_a_range_is_not_sealed_while_no_server_can_have_the_next_one(opened, servers):
    store = opened()
    (a,) = filled(store, "a")
    (plan,) = plan_seals(store, [RangeId(a, -1)], servers)
    assert isinstance(plan.answer, NoRangeServerError)
    assert plan.open_range is None
    assert store.maybe_last_range(a).end_offset is None


def test_cursors_that_are_there_move_on_when_there_is_no_room_for_more(opened):
    store = opened(cursors_max=2)
    a, b, c = filled(store, "a", "b", "c")
    commit_cursors(store, "g", [Cursor(a, 1), Cursor(b, 1)], 1)
    results = commit_cursors(store, "g", [Cursor(a, 2), Cursor(c, 2), Cursor(b, -1)], 2)
    codes = [each.status.code for each in results]
    assert codes == [StatusCode.NONE, StatusCode.INVALID_REQUEST, StatusCode.NONE]
    assert "cursors_max" in results[1].status.message
    assert [each and each.next_offset for each in store.cursors.of_streams("g", [a, b, c])] == [
        2,
        None,
        None,
    ]
    assert commit_cursors(store, "h", [Cursor(c, 7)], 3)[0].status.code == StatusCode.NONE


def manifest(producer, number):
    return Manifest(producer, number, (), 0, b"12345678")


def test_decisions_beyond_the_limit_are_refused_and_replays_are_answered(opened):
    store = opened(decisions_max=17)
    for number in range(20):  # a producer forgets its own earlier ones
        store.transactions.commit(manifest("p", number), 5)
    store.transactions.commit(manifest("q", 1), 5)
    with pytest.raises(InvalidRequestError, match="decisions_max"):
        store.transactions.commit(manifest("r", 1), 5)
    assert store.transactions.commit(manifest("q", 1), 5).is_replay
    assert not store.transactions.commit(manifest("p", 20), 5).is_replay
    assert store.transactions.maybe_decided("r", 1) is None


def test_aborted_transactions_make_room_when_they_are_forgotten(opened):
    store = opened(aborted_txns_max=1)
    store.transactions.abort([Part("p-1-a", 1, 0, 5)], 0)
    with pytest.raises(InvalidRequestError, match="aborted_txns_max"):
        store.transactions.abort([Part("p-1-b", 1, 0, 5)], 1)
    assert not store.transactions.is_aborted("p-1-b")
    store.transactions.abort([Part("p-1-c", 1, 0, 5)], 31 * DAY_MS)
    assert store.transactions.is_aborted("p-1-c")
