"""The restore that a store remembers, and the rows that a backup reads."""

import pytest

from sbp_core.log.states.writer_states import NO_WRITERS
from sbp_core.pd.metadata.server_tables import Restore
from sbp_core.pd.model import NewStream, RangeRecord, SchemaRecord, StreamRecord
from sbp_core.pd.txns.decisions import Decided, Manifest

FIRST = 1 << 16
STREAM = StreamRecord(7, "a", 2, 2, 60_000, 123, 9)


@pytest.fixture
def store(home):
    return home.open()


def first_range(stream):
    return RangeRecord(stream.stream_id, FIRST, 40, None, 2, (1, 2), stream.created_at_ms)


def test_a_restore_is_remembered_and_ids_go_on_behind_it(store):
    assert store.restores.maybe_restore() is None
    store.restores.begin("b-1", 10)
    assert store.restores.maybe_restore() == Restore("b-1", None)
    assert not store.restores.maybe_restore().is_complete
    store.restores.complete(20, last_stream_id=1_000, revision=5_000)
    assert store.restores.maybe_restore() == Restore("b-1", 20)
    assert (store.servers.last_stream_id(), store.revision()) == (1_000, 5_000)
    ((stream, _),) = store.create_streams([NewStream("new", 1, 1, 0, (1,))], 5)
    assert (stream.stream_id, store.revision()) == (1_001, 5_001)


def test_a_stream_is_restored_once_with_its_first_range(store):
    for _ in range(2):
        store.restore_streams([(STREAM, first_range(STREAM), {"owner": "a"})])
    assert store.streams_after(-1, 9) == [STREAM]
    assert store.properties.all() == {STREAM.stream_id: {"owner": "a"}}
    assert store.ranges_after((-1, -1), 9, stream_id=None, server_id=None) == [first_range(STREAM)]
    assert store.writers_before(7, FIRST) == NO_WRITERS
    assert store.servers.last_stream_id() == 0


def test_restored_decisions_are_published_and_answer_replays(store):
    decided = [Decided("p", 3, 5, b"digest--", 50, None), Decided("q", 1, 2, b"digest-2", 60, "me")]
    for _ in range(2):
        store.transactions.restore(decided)
    assert [each for _, each in store.transactions.decided_after(-1, 9)] == decided
    assert store.transactions.unpublished() == []
    replay = store.transactions.commit(Manifest("p", 3, (), 9, b"digest-9"), 70)
    assert replay.is_replay
    assert (replay.txn.record_count, replay.txn.digest) == (5, b"digest--")
    assert store.transactions.maybe_owner("q") == "me"
    (number, _), (last, _) = store.transactions.decided_after(-1, 9)
    assert store.transactions.decided_after(number, 9) == [(last, decided[1])]
    assert store.transactions.last_number() == last


def test_schemas_of_all_streams_are_read_in_order(store):
    news = [NewStream(name, 1, 1, 0, (1,)) for name in ("a", "b")]
    a, b = (stream.stream_id for stream, _ in store.create_streams(news, 5))
    records = [
        SchemaRecord(stream_id, version, "f", b"schema" * 1_000, 5)
        for stream_id, version in ((a, 1), (a, 2), (b, 1))
    ]
    store.schemas.register(records[::-1])
    assert store.schemas.all() == records
