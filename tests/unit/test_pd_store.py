"""Tests of every MetadataStore, in both homes; then tests of the SQLite store only."""

import sqlite3
from contextlib import closing, suppress
from functools import partial

import pytest
from sqlalchemy import text

from sbp_core.errors import ConfigurationError, StatusCode, StatusError
from sbp_core.log.disk import OsDisk, OsFile
from sbp_core.pd.metadata.sqlite_tables import connect
from sbp_core.pd.metadata.store import open_store
from sbp_core.pd.metadata.tables import SCHEMA_VERSION
from sbp_core.pd.model import NewStream, RangeRecord, SealedRange
from tests.support.metadata import SqliteHome, failing_disk

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


def test_a_batch_that_fails_leaves_nothing(store):
    broken = NewStream("b", 1, 1, 0, (None,))
    with pytest.raises(StatusError) as caught:
        store.create_streams([new("a"), broken], 0)
    assert caught.value.code == StatusCode.PD_INTERNAL
    assert store.streams_by_name(["a", "b"]) == [None, None]
    assert create(store, "a")


def test_a_transaction_in_which_a_statement_failed_is_not_committed(store):
    database = store.database

    def go_on_after_an_error():
        with database.transaction():
            database.change(text("UPDATE cluster SET revision = 9"))
            with suppress(StatusError):
                database.change(text("INSERT INTO streams (stream_id) VALUES (1)"))

    with pytest.raises(StatusError, match="a statement of this transaction failed"):
        go_on_after_an_error()
    assert store.revision() == 0


@pytest.mark.parametrize("name", ["'; DROP TABLE streams; --", 'a"b', "%s %(name)s", "\u202e"])
def test_text_is_data(store, name):
    create(store, name)
    assert store.streams_by_name([name])[0].name == name


def test_ranges_of_several_streams_are_read_as_far_as_there_is_room(store):
    a, b, c = create(store, "a", "b", "c")
    store.seal_ranges([SealedRange(b, 0, 5)])
    store.create_ranges([RangeRecord(b, 1, 5, None, 1, (1, 2), 5)])
    one_by_one = {
        each: store.ranges_after(FIRST, 9, stream_id=each, server_id=None) for each in (a, b, c)
    }
    assert [len(each) for each in one_by_one.values()] == [1, 2, 1]
    assert store.ranges_of([c, b, 99, a], 9) == one_by_one
    for room, whole in ((4, (a, b)), (3, (a,)), (2, (a,)), (1, ())):
        assert store.ranges_of([a, b, c], room) == {each: one_by_one[each] for each in whole}


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
        name: store.database.query(text(f"PRAGMA {name}"))[0][0]
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


def test_the_lock_is_released_after_a_refusal(tmp_path):
    (tmp_path / "metadata.sqlite").write_bytes(b"x" * 5000)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="not a database"):
            open_store(tmp_path)


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION + 1])
def test_another_schema_version_is_refused(tmp_path, version):
    open_store(tmp_path).close()
    with closing(connect(tmp_path / "metadata.sqlite")) as file:
        file.execute("UPDATE alembic_version SET version_num = ?", (str(version),))
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
    with failing_disk(store), pytest.raises(StatusError, match="disk I/O error"):
        create(store, "b")
    for _ in range(2):
        with pytest.raises(StatusError, match="disk I/O error"):
            store.revision()
    store.close()


def test_a_full_disk_is_survived(tmp_path):
    store = open_store(tmp_path)
    create(store, "a")
    ((pages,),) = store.database.query(text("PRAGMA page_count"))
    store.database.query(text(f"PRAGMA max_page_count = {pages}"))
    with pytest.raises(StatusError, match="full"):
        store.create_streams([new("n" * 200 + str(index)) for index in range(1000)], 0)
    assert len(store.streams_after(-1, 10)) == 1
    store.database.query(text("PRAGMA max_page_count = 1000000"))
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


def test_what_concerns_one_stream_takes_the_same_steps_among_many(tmp_path):
    store = open_store(tmp_path)
    (first,) = create(store, "first")
    few = [*steps_about(store, first)]
    create(store, *(f"stream-{number}" for number in range(2_000)))
    (last,) = create(store, "last")
    many = [*steps_about(store, last)]
    store.close()
    assert {
        name: after
        for (name, before), (_, after) in zip(few, many, strict=True)
        if after > 2 * before + 20
    } == {}


def steps_about(store, stream_id):
    """Yield names of calls, and how many tens of instructions SQLite executes for each."""
    calls = {
        "its ranges": lambda: ranges(store, stream_id=stream_id),
        "its ranges on a server": lambda: ranges(store, stream_id=stream_id, server_id=1),
        "ranges of some": lambda: store.ranges_of([stream_id], 10),
        "its first range": lambda: store.maybe_first_range(stream_id),
        "its last range": lambda: store.maybe_last_range(stream_id),
        "the range of an offset": lambda: store.maybe_range_at(stream_id, 0),
        "its range count": lambda: store.range_count(stream_id),
        "writers": lambda: store.writers_before(stream_id, 0),
        "the stream": lambda: store.maybe_stream(stream_id),
        "by name": lambda: store.streams_by_name(["stream-7", "nothing"]),
        "a property": lambda: store.properties.of_stream(stream_id),
        "newest schema": lambda: store.schemas.maybe_newest(stream_id),
        "creation": lambda: create(store, f"new-{stream_id}"),
        "trim": lambda: store.trim_streams([(stream_id, 0)]),
        "seal": lambda: store.seal_ranges([SealedRange(stream_id, 0, 5)]),
        "deletion": lambda: store.delete_streams([stream_id]),
    }
    connection = store.database._connection.connection.driver_connection
    for name, call in calls.items():
        steps = []
        connection.set_progress_handler(partial(steps.append, 1), 10)
        call()
        connection.set_progress_handler(None, 0)
        yield name, len(steps)
