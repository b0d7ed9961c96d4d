"""Cursors in the metadata store, and how a store comes to have room for them."""

import shutil
import sqlite3

import pytest
from old_metadata import make_older

from sbp_core.errors import ConfigurationError
from sbp_core.pd.metadata.sqlite_schema import SCHEMA_VERSION, SCHEMA_VERSION_MIN
from sbp_core.pd.metadata.store import MetadataStore
from sbp_core.pd.model import NO_CURSOR, CursorRecord, GroupRecord, NewStream


def create(store, *names):
    news = [NewStream(name, 1, 1, 0, (1,)) for name in names]
    return [stream.stream_id for stream, _ in store.create_streams(news, 5)]


@pytest.fixture
def store(tmp_path):
    opened = MetadataStore(tmp_path / "data")
    yield opened
    opened.close()


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


def test_cursors_are_there_after_a_crash(store, tmp_path):
    (a,) = create(store, "a")
    store.cursors.commit("g", [(a, 2**63 - 1)], 7)
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    copy = MetadataStore(tmp_path / "copy")
    assert copy.cursors.after("g", -1, 10) == [CursorRecord(a, 2**63 - 1, 7)]
    copy.close()


@pytest.mark.parametrize("version", range(SCHEMA_VERSION_MIN, SCHEMA_VERSION))
def test_a_store_of_a_version_before_is_brought_up_to_date(tmp_path, version):
    store = MetadataStore(tmp_path / "old")
    (a,) = create(store, "a")
    before = (
        store.cluster_id,
        store.revision(),
        store.streams_after(-1, 10),
        store.open_range_counts(),
    )
    store.close()
    make_older(tmp_path / "old", version)
    for _ in range(2):
        store = MetadataStore(tmp_path / "old")
        found = (
            store.cluster_id,
            store.revision(),
            store.streams_after(-1, 10),
            store.open_range_counts(),
        )
        assert found == before
        store.cursors.commit("g", [(a, 4)], 1)
        store.close()
    fresh = MetadataStore(tmp_path / "new")
    fresh.close()
    schemas = []
    for name in ("old", "new"):
        with sqlite3.connect(tmp_path / name / "metadata.sqlite") as connection:
            rows = connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name")
            schemas.append([*rows, *connection.execute("SELECT version FROM schema_version")])
        connection.close()
    assert schemas[0] == schemas[1]


def test_a_migration_that_fails_leaves_the_old_version(tmp_path):
    MetadataStore(tmp_path).close()
    make_older(tmp_path, 2)
    with sqlite3.connect(tmp_path / "metadata.sqlite") as connection:
        connection.execute("CREATE TABLE other (x)")
        connection.execute("CREATE INDEX cursors_by_stream ON other (x)")
    connection.close()
    with pytest.raises(ConfigurationError, match="cursors_by_stream already exists"):
        MetadataStore(tmp_path)
    with sqlite3.connect(tmp_path / "metadata.sqlite") as connection:
        assert connection.execute("SELECT version FROM schema_version").fetchall() == [(2,)]
        tables = connection.execute("SELECT name FROM sqlite_master WHERE name = 'cursors'")
        assert tables.fetchall() == []
    connection.close()
