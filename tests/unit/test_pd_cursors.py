"""Cursors in the metadata store."""

import pytest

from sbp_core.pd.model import NO_CURSOR, CursorRecord, GroupRecord, NewStream


def create(store, *names):
    news = [NewStream(name, 1, 1, 0, (1,)) for name in names]
    return [stream.stream_id for stream, _ in store.create_streams(news, 5)]


@pytest.fixture
def store(home):
    return home.open()


def test_cursors_move_either_way_and_know_when(store):
    a, b = create(store, "a", "b")
    assert store.cursors.commit("g", [(a, 5), (99, 1), (b, 0)], 10) == [True, False, True]
    assert store.cursors.commit("g", [(a, 7), (a, 3)], 20) == [True, True]
    assert store.cursors.of_streams("g", [b, 99, a]) == [
        CursorRecord(b, 0, 10),
        None,
        CursorRecord(a, 3, 20),
    ]
    assert store.cursors.after("g", -1, 10) == [CursorRecord(a, 3, 20), CursorRecord(b, 0, 10)]
    assert store.cursors.after("g", -1, 1) == [CursorRecord(a, 3, 20)]
    assert store.cursors.after("g", a, 10) == [CursorRecord(b, 0, 10)]
    assert store.cursors.after("G", -1, 10) == []


def test_a_group_is_there_as_long_as_it_has_cursors(store):
    a, b = create(store, "a", "b")
    for group, stream_id, time_ms in (("y", a, 1), ("x", a, 5), ("x", b, 3)):
        store.cursors.commit(group, [(stream_id, 0)], time_ms)
    assert store.cursors.groups_after("", 10) == [GroupRecord("x", 5), GroupRecord("y", 1)]
    assert store.cursors.groups_after("", 1) == [GroupRecord("x", 5)]
    assert store.cursors.groups_after("x", 10) == [GroupRecord("y", 1)]
    assert store.cursors.commit("y", [(a, NO_CURSOR), (b, NO_CURSOR), (99, NO_CURSOR)], 9) == [
        True,
        True,
        True,
    ]
    assert store.cursors.groups_after("", 10) == [GroupRecord("x", 5)]
    assert store.cursors.of_streams("y", [a]) == [None]


def test_a_stream_takes_its_cursors_along_and_a_new_one_of_its_name_has_none(store):
    a, b = create(store, "a", "b")
    store.cursors.commit("g", [(a, 5), (b, 6)], 1)
    store.cursors.commit("only-a", [(a, 5)], 1)
    store.delete_streams([a])
    (again,) = create(store, "a")
    assert store.cursors.of_streams("g", [a, again, b]) == [None, None, CursorRecord(b, 6, 1)]
    assert store.cursors.groups_after("", 10) == [GroupRecord("g", 1)]


def test_cursors_do_not_touch_the_revision(store):
    """A commit of a cursor must not make clients that poll for changed ranges get all of them."""
    (a,) = create(store, "a")
    before = store.revision()
    store.cursors.commit("g", [(a, 1)], 1)
    store.cursors.commit("g", [(a, NO_CURSOR)], 2)
    assert store.revision() == before


def test_cursors_are_there_after_a_crash(home, store):
    (a,) = create(store, "a")
    store.cursors.commit("g", [(a, 2**63 - 1)], 7)
    assert home.crash().cursors.after("g", -1, 10) == [CursorRecord(a, 2**63 - 1, 7)]
