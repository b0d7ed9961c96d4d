"""Tests of every MetadataStore, in both homes; then tests of the SQLite store only."""

import sqlite3

import pytest

from sbp_core.errors import ConfigurationError, StatusCode, StatusError
from sbp_core.log.disk import OsDisk, OsFile
from sbp_core.pd.metadata.store import open_store
from sbp_core.pd.metadata.tables import SCHEMA_VERSION
from sbp_core.pd.model import (
    NewStream,
    RangeRecord,
    RangeServerRecord,
)
from tests.support.metadata import SqliteHome

FIRST = (-1, -1)


def new(name=None, server_id=1):
    return NewStream(name, 1, 1, 0, (server_id,))


def create(store, *names):
    return [stream.stream_id for stream, _ in store.create_streams([new(n) for n in names], 5)]


def ranges(store, *, stream_id=None, server_id=None, after=FIRST, count_max=100):
    found = store.ranges_after(after, count_max, stream_id=stream_id, server_id=server_id)
    return [(each.stream_id, each.range_index) for each in found]


@pytest.fixture
def store(home):
    return home.open()


def test_a_new_store_is_empty(store):
    assert store.revision() == 0
    assert store.streams_after(-1, 10) == []
    assert ranges(store) == []
    assert store.servers.addresses() == {}
    assert store.open_range_counts() == {}


def test_a_stream_is_created_with_an_open_range(store):
    ((stream, first),) = store.create_streams([NewStream("orders", 1, 1, 60_000, (3,))], 123)
    assert (stream.name, stream.replica_count, stream.ack_count) == ("orders", 1, 1)
    assert (stream.retention_period_ms, stream.created_at_ms) == (60_000, 123)
    assert first == RangeRecord(stream.stream_id, 0, 0, None, 1, (3,), 123)
    assert store.streams_by_id([stream.stream_id]) == [stream]
    assert store.streams_by_name(["orders"]) == [stream]
    assert store.maybe_last_range(stream.stream_id) == first
    assert store.open_range_counts() == {3: 1}


def test_a_taken_name_fails_alone(store):
    created = store.create_streams([new("a"), new("b"), new("a"), new(), new()], 0)
    assert [each is not None for each in created] == [True, True, False, True, True]
    assert store.create_streams([new("b")], 0) == [None]
    assert len(store.streams_after(-1, 10)) == 4


def test_names_differ_by_case(store):
    create(store, "Orders", "orders")
    assert store.streams_by_name(["Orders", "orders", "ORDERS"])[2] is None


def test_streams_come_in_the_order_asked_for(store):
    a, b = create(store, "a", "b")
    found = store.streams_by_id([b, 99, a, b])
    assert [each and each.name for each in found] == ["b", None, "a", "b"]
    assert [each.name for each in store.streams_after(-1, 1)] == ["a"]
    assert [each.name for each in store.streams_after(a, 10)] == ["b"]


def test_deleting_removes_stream_and_ranges_and_frees_the_name(store):
    a, b = create(store, "a", "b")
    deleted = store.delete_streams([a, 99, a])
    assert [each and each.name for each in deleted] == ["a", None, None]
    assert ranges(store) == [(b, 0)]
    assert store.maybe_last_range(a) is None
    assert store.open_range_counts() == {1: 1}
    (again,) = create(store, "a")
    assert again not in {a, b}


@pytest.mark.parametrize("crash", [False, True])
def test_ids_are_never_issued_again(home, crash):
    store = home.open()
    stream_ids, server_ids = set(), set()
    for _ in range(3):
        fresh = create(store, None, None)
        assert stream_ids.isdisjoint(fresh)
        stream_ids.update(fresh)
        store.delete_streams(fresh)
        server_id = store.servers.allocate_id()
        assert server_id not in server_ids
        server_ids.add(server_id)
        store = home.crash() if crash else home.open()
    assert len(stream_ids) == 6
    assert len(server_ids) == 3


@pytest.mark.parametrize("crash", [False, True])
def test_everything_is_there_after_opening_again(home, crash):
    store = home.open()
    server = RangeServerRecord(store.servers.allocate_id(), "h:1")
    store.servers.register(server)
    a, _ = create(store, "a", None)
    before = (
        store.cluster_id,
        store.revision(),
        store.streams_after(-1, 10),
        store.maybe_last_range(a),
        store.servers.addresses(),
    )
    store = home.crash() if crash else home.open()
    after = (
        store.cluster_id,
        store.revision(),
        store.streams_after(-1, 10),
        store.maybe_last_range(a),
        store.servers.addresses(),
    )
    assert after == before


def test_only_allocated_servers_are_registered(store):
    assert not store.servers.register(RangeServerRecord(1, "h:1"))
    server_id = store.servers.allocate_id()
    assert store.servers.register(RangeServerRecord(server_id, "h:1"))
    assert store.servers.register(RangeServerRecord(server_id, "h:2"))
    assert store.servers.addresses() == {server_id: "h:2"}
    for unknown in (-1, 0, server_id + 1, 2**31 - 1):
        assert not store.servers.register(RangeServerRecord(unknown, "h:3"))
    assert store.servers.addresses() == {server_id: "h:2"}


def test_the_revision_grows_with_each_change_and_only_then(store):
    server_id = store.servers.allocate_id()
    seen = [store.revision()]

    def changed():
        seen.append(store.revision())
        return seen[-1] > seen[-2]

    store.servers.register(RangeServerRecord(server_id, "h:1"))
    assert changed()
    store.servers.register(RangeServerRecord(server_id, "h:1"))
    assert not changed()
    store.servers.register(RangeServerRecord(server_id, "h:2"))
    assert changed()
    (a,) = create(store, "a")
    assert changed()
    store.create_streams([new("a")], 0)
    assert not changed()
    store.create_ranges([RangeRecord(a, 1, 5, None, 1, (1,))])
    assert changed()
    store.create_ranges([RangeRecord(a, 1, 5, None, 1, (1,))])
    assert not changed()
    store.delete_streams([99])
    assert not changed()
    store.delete_streams([a])
    assert changed()


def test_ranges_are_listed_by_stream_by_server_and_by_both(store):
    a, b, c = create(store, "a", "b", "c")
    store.create_ranges([RangeRecord(a, 1, 9, None, 1, (2,))])
    store.create_ranges([RangeRecord(b, 1, 9, None, 1, (2, 1))])
    assert ranges(store) == [(a, 0), (a, 1), (b, 0), (b, 1), (c, 0)]
    assert ranges(store, stream_id=b) == [(b, 0), (b, 1)]
    assert ranges(store, server_id=2) == [(a, 1), (b, 1)]
    assert ranges(store, server_id=1) == [(a, 0), (b, 0), (b, 1), (c, 0)]
    assert ranges(store, server_id=2, stream_id=a) == [(a, 1)]
    assert ranges(store, server_id=7) == []
    assert ranges(store, after=(a, 0), count_max=2) == [(a, 1), (b, 0)]
    assert ranges(store, server_id=1, after=(b, 0), count_max=1) == [(b, 1)]


def test_servers_of_a_range_keep_their_order(store):
    (a,) = create(store, "a")
    store.create_ranges([RangeRecord(a, 1, 9, None, 2, (5, 2, 9))])
    assert store.maybe_last_range(a) == RangeRecord(a, 1, 9, None, 2, (5, 2, 9), 5)
    (found,) = store.ranges_after(FIRST, 9, stream_id=a, server_id=9)
    assert found.server_ids == (5, 2, 9)


def test_sealed_ranges_are_not_counted_as_load(store):
    (a,) = create(store, "a")
    store.create_ranges([RangeRecord(a, 1, 0, 7, 1, (1, 2))])
    store.create_ranges([RangeRecord(a, 2, 7, None, 1, (2, 3))])
    assert store.open_range_counts() == {1: 1, 2: 1, 3: 1}


def test_a_range_is_created_once_and_only_for_a_stream(store):
    (a,) = create(store, "a")
    assert store.create_ranges([RangeRecord(a, 0, 0, None, 1, (1,))]) == [False]
    assert store.create_ranges([RangeRecord(a, 1, 7, None, 1, (1,))]) == [True]
    assert store.create_ranges([RangeRecord(a + 1, 0, 0, None, 1, (1,))]) == [False]


def test_a_batch_that_fails_leaves_nothing(store):
    broken = NewStream("b", 1, 1, 0, (None,))
    with pytest.raises(StatusError) as caught:
        store.create_streams([new("a"), broken], 0)
    assert caught.value.code == StatusCode.PD_INTERNAL
    assert store.streams_by_name(["a", "b"]) == [None, None]
    assert create(store, "a")


@pytest.mark.parametrize("text", ["'; DROP TABLE streams; --", 'a"b', "%s %(name)s", "\u202e"])
def test_text_is_data(store, text):
    create(store, text)
    assert store.streams_by_name([text])[0].name == text


def test_each_store_is_a_cluster_of_its_own(new_home):
    assert new_home().open().cluster_id != new_home().open().cluster_id


# Behaviour of the SQLite store only.


def test_a_directory_has_one_owner(tmp_path):
    store = open_store(tmp_path)
    with pytest.raises(ConfigurationError, match="in use by another placement driver"):
        open_store(tmp_path)
    store.close()
    open_store(tmp_path).close()


def test_files_are_private(tmp_path):
    store = open_store(tmp_path / "data")
    create(store, "a")
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "data").iterdir()}
    assert modes
    assert set(modes.values()) == {0o600}
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    store.close()


def test_durability_is_on(tmp_path):
    store = open_store(tmp_path)
    pragma = {
        name: store._database._execute(f"PRAGMA {name}")[0][0][0]
        for name in ("journal_mode", "synchronous", "foreign_keys", "locking_mode")
    }
    store.close()
    assert pragma == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "locking_mode": "exclusive",
    }


@pytest.mark.parametrize("make", ["file", "below-file", "database-is-directory", "link"])
def test_a_directory_that_cannot_be_used(tmp_path, make):
    path = tmp_path / "data"
    if make == "database-is-directory":
        (path / "metadata.sqlite").mkdir(parents=True)
    elif make == "link":
        path.mkdir()
        (path / "metadata.sqlite").symlink_to(tmp_path / "elsewhere")
    else:
        path.write_text("not a directory")
    with pytest.raises(ConfigurationError, match=r"data_dir: .* cannot be used: .*; "):
        open_store(path / "below" if make == "below-file" else path)


def damaged(tmp_path, damage):
    store = open_store(tmp_path)
    store.create_streams([new(f"stream-{index}") for index in range(200)], 0)
    store.close()
    path = tmp_path / "metadata.sqlite"
    data = bytearray(path.read_bytes())
    damage(data)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("position", [0, 100, 0.2, 0.4, 0.6, 0.8])
def test_a_damaged_file_is_refused(tmp_path, position):
    def damage(data):
        start = int(position * len(data)) if position < 1 else position
        data[start : start + 4096] = b"\x5a" * 4096

    path = damaged(tmp_path, damage)
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match=r"Restore the newest copy of "):
        open_store(tmp_path)
    assert path.read_bytes() == before


def test_a_cut_file_is_refused(tmp_path):
    def damage(data):
        del data[len(data) // 2 :]

    damaged(tmp_path, damage)
    with pytest.raises(ConfigurationError, match=r"Restore the newest copy of "):
        open_store(tmp_path)


def test_the_lock_is_released_after_a_refusal(tmp_path):
    (tmp_path / "metadata.sqlite").write_bytes(b"x" * 5000)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="not a database"):
            open_store(tmp_path)


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION + 1])
def test_another_schema_version_is_refused(tmp_path, version):
    open_store(tmp_path).close()
    with sqlite3.connect(tmp_path / "metadata.sqlite") as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (str(version),))
    connection.close()
    with pytest.raises(ConfigurationError, match=f"schema version {version}"):
        open_store(tmp_path)


def test_a_file_of_another_user_is_refused(tmp_path):
    with sqlite3.connect(tmp_path / "metadata.sqlite") as connection:
        connection.execute("CREATE TABLE photos (id INTEGER)")
    connection.close()
    with pytest.raises(ConfigurationError, match="holds other data"):
        open_store(tmp_path)


def test_after_a_broken_file_nothing_more_is_served(tmp_path):
    store = open_store(tmp_path)
    create(store, "a")

    class Broken:
        in_transaction = False

        def execute(self, sql, parameters):
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error

    connection, store._database._connection = store._database._connection, Broken()
    with pytest.raises(StatusError, match="disk I/O error"):
        create(store, "b")
    store._database._connection = connection
    for _ in range(2):
        with pytest.raises(StatusError, match="disk I/O error"):
            store.revision()
    store.close()


def test_a_full_disk_is_survived(tmp_path):
    store = open_store(tmp_path)
    create(store, "a")
    ((pages,),), _ = store._database._execute("PRAGMA page_count")
    store._database._execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StatusError, match="full"):
        store.create_streams([new("n" * 200 + str(index)) for index in range(1000)], 0)
    assert len(store.streams_after(-1, 10)) == 1
    store._database._execute("PRAGMA max_page_count = 1000000")
    create(store, "b")
    store.close()


def test_new_directories_are_synced_into_those_above_them(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(OsDisk, "fsync_dir", lambda _, directory: synced.append(directory))
    open_store(tmp_path / "a" / "b").close()
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]


def test_the_page_cache_of_an_earlier_process_is_not_trusted(tmp_path, monkeypatch):
    home = SqliteHome(tmp_path)
    create(home.open(), "name")
    calls = []
    for name in ("fdatasync", "drop_cache"):
        monkeypatch.setattr(OsFile, name, lambda file, name=name: calls.append((name, file.path)))
    again = home.crash()
    folder = calls[0][1].parent
    assert calls == [
        (name, folder / file)
        for file in ("metadata.sqlite", "metadata.sqlite-wal")
        for name in ("fdatasync", "drop_cache")
    ]
    assert [stream.name for stream in again.streams_after(-1, 10)] == ["name"]
    home.close()
