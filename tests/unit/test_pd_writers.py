"""The placement driver keeps the writers at the end of the last sealed range."""

import pytest

from sbp_core.log.states.writer_states import NO_WRITERS, encode_writers
from sbp_core.pd.model import NewStream, RangeRecord, SealedRange


@pytest.fixture
def store(home):
    return home.open()


def created(store, name="s"):
    ((stream, _),) = store.create_streams([NewStream(name, 1, 1, 0, (1,))], 0)
    return stream.stream_id


def go_on(store, stream_id, index, writers=b""):
    """Seal a range, and open the next one."""
    assert store.seal_ranges([SealedRange(stream_id, index, 0, writers)]) == [True]
    assert store.create_ranges([RangeRecord(stream_id, index + 1, 0, None, 1, (1,))]) == [True]


def test_no_writers_are_what_a_range_server_says_of_none():
    assert encode_writers([]) == NO_WRITERS


def test_the_next_range_begins_with_the_writers_of_the_seal(store):
    stream_id = created(store)
    assert store.writers_before(stream_id, 0) == b""
    go_on(store, stream_id, 0, b"first")
    assert store.writers_before(stream_id, 1) == b"first"
    assert store.seal_ranges([SealedRange(stream_id, 0, 9, b"too late")]) == [False]
    go_on(store, stream_id, 1, b"second")
    assert [store.writers_before(stream_id, index) for index in range(4)] == [
        b"",
        b"",
        b"second",
        b"",
    ]


def test_a_server_that_says_nothing_took_nothing(store):
    stream_id = created(store)
    go_on(store, stream_id, 0)
    assert store.writers_before(stream_id, 1) == NO_WRITERS
    go_on(store, stream_id, 1, b"known")
    go_on(store, stream_id, 2)
    assert store.writers_before(stream_id, 3) == b"known"


def test_a_deleted_stream_takes_its_writers_along(store):
    stream_id = created(store)
    go_on(store, stream_id, 0, b"known")
    store.delete_streams([stream_id])
    assert store.writers_before(stream_id, 1) == b""
