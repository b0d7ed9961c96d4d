"""Damaged files of the metadata store: only committed data is served, or none."""

import json
import shutil
import sqlite3

import pytest
from sqlalchemy import delete, update

from sbp_core.cli.main import main
from sbp_core.errors import ConfigurationError
from sbp_core.pd.metadata.data_dir import DATABASE_NAME, WRITE_AHEAD_LOG_NAME
from sbp_core.pd.metadata.history import MARK_NAME, CommitId, CommitMark
from sbp_core.pd.metadata.store import open_store
from sbp_core.pd.metadata.tables import cluster, streams
from sbp_core.pd.model import CursorChange, StreamChange
from tests.support.metadata import altered_metadata, contents, fill, verdict


@pytest.fixture(scope="module", params=["stopped", "killed"])
def committed(request, tmp_path_factory):
    """The files of a store that was stopped, or of one that was killed, and its contents."""
    folder = tmp_path_factory.mktemp(request.param)
    store = open_store(folder / "open")
    fill(store)
    expected = contents(store)
    if request.param == "killed":
        shutil.copytree(folder / "open", folder / "data")
    store.close()
    if request.param == "stopped":
        shutil.copytree(folder / "open", folder / "data")
    return folder / "data", expected


def test_a_changed_row_is_named_by_its_table(tmp_path):
    store = open_store(tmp_path)
    fill(store)
    store.close()
    with sqlite3.connect(tmp_path / DATABASE_NAME) as connection:
        connection.create_function("row_checksum", -1, lambda *_: b"other", deterministic=True)
        connection.execute("UPDATE streams SET retention_period_ms = 1 WHERE stream_id = 7")
        connection.execute("DELETE FROM cursors WHERE stream_id = 7")
    connection.close()
    with pytest.raises(ConfigurationError) as refused:
        open_store(tmp_path)
    assert "table cursors: 29 rows were committed, 28 are there" in str(refused.value)
    assert "table streams: 1 of its 39 rows are not as they were committed" in str(refused.value)


def test_a_write_ahead_log_that_lost_its_end_is_refused_and_kept(committed, tmp_path):
    source, _ = committed
    if not (source / WRITE_AHEAD_LOG_NAME).exists():
        pytest.skip("a store that was stopped has no write-ahead log")
    shutil.copytree(source, tmp_path / "data")
    path = tmp_path / "data" / WRITE_AHEAD_LOG_NAME
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="was the last one, the store ends at commit"):
            open_store(tmp_path / "data")
        assert path.read_bytes() == data


def test_changes_to_the_files_of_an_open_store_are_not_served(tmp_path):
    store = open_store(tmp_path)
    fill(store)
    store.close()
    store = open_store(tmp_path)
    expected = contents(store)
    store.cursors.commit("other", [CursorChange(5, 5)], 11)
    for name in (DATABASE_NAME, WRITE_AHEAD_LOG_NAME):
        size = (tmp_path / name).stat().st_size
        with (tmp_path / name).open("r+b") as file:
            file.write(b"\xa5" * size)
    store.cursors.commit("other", [CursorChange(5, -1)], 11)
    assert contents(store) == expected
    store.close()
    with pytest.raises(ConfigurationError, match=r"metadata\."):
        open_store(tmp_path)


def test_a_commit_that_fails_leaves_the_checksums_right(tmp_path):
    store = open_store(tmp_path)
    fill(store)

    def fail():
        with store.database.transaction():
            store.database.change(delete(streams))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    store.cursors.commit("group", [CursorChange(1, 1)], 1)
    expected = contents(store)
    store.close()
    assert verdict(tmp_path, expected)


def test_a_change_outside_of_a_transaction_is_refused(tmp_path):
    store = open_store(tmp_path)
    with pytest.raises(RuntimeError, match="not part of a transaction"):
        store.database.change(update(cluster), revision=5)
    store.close()
    open_store(tmp_path).close()


def test_a_store_may_be_ahead_of_its_mark_by_commits_of_its_own(tmp_path):
    store = open_store(tmp_path)
    mark = (tmp_path / MARK_NAME).read_bytes()
    fill(store)
    store.close()
    (tmp_path / MARK_NAME).write_bytes(mark)
    open_store(tmp_path).close()


@pytest.mark.parametrize("is_used", [False, True])
@pytest.mark.parametrize("place", [0, 512])
def test_one_damaged_slot_of_the_mark_is_named_and_written_again(
    tmp_path, caplog, capsys, place, is_used
):
    open_store(tmp_path).close()
    if not is_used:  # as a start leaves it that is killed before its first commit
        CommitMark.create(tmp_path).close()
    data = bytearray((tmp_path / MARK_NAME).read_bytes())
    data[place + 20] ^= 1
    (tmp_path / MARK_NAME).write_bytes(data)
    assert main(["pd", "check", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "intact" in told
    assert "metadata.mark is damaged in one of its two slots. The other one counts" in told
    assert "The next start writes the damaged slot again" in told
    assert main(["pd", "check", "--json", str(tmp_path)]) == 0
    (note,) = json.loads(capsys.readouterr().out)["notes"]
    assert note in told
    open_store(tmp_path).close()
    assert note in caplog.text
    caplog.clear()
    open_store(tmp_path).close()
    assert not caplog.records
    assert main(["pd", "check", "--json", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []


def test_rows_that_a_cascade_deletes_are_counted_out(tmp_path):
    store = open_store(tmp_path)
    fill(store)
    ids = [stream.stream_id for stream in store.streams_after(-1, 100)]
    store.update_streams([StreamChange(each, None, None, properties={"a": "b"}) for each in ids])
    store.delete_streams(ids)
    tables = ("streams", "ranges", "replicas", "cursors", "schemas", "writers", "txn_parts")
    for table in (*tables, "stream_properties"):
        assert store.database.count(table) == 0
    store.close()
    open_store(tmp_path).close()


def test_altered_metadata_is_as_good_as_committed(tmp_path):
    store = open_store(tmp_path)
    fill(store)
    store.close()
    with altered_metadata(tmp_path) as connection:
        connection.execute("UPDATE streams SET retention_period_ms = 1")
    assert CommitMark.maybe_open(tmp_path).last.commit == CommitId()
    open_store(tmp_path).close()
