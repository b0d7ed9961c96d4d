"""Metadata that were put back to an older copy: noticed, accepted, and no id comes twice."""

import json
import shutil

import pytest

from sbp_core.cli.main import main
from sbp_core.errors import ConfigurationError, StatusCode, StatusError
from sbp_core.log.disk import OsDisk
from sbp_core.pd.metadata.data_dir import DATABASE_NAME, WRITE_AHEAD_LOG_NAME
from sbp_core.pd.metadata.history import CommitId, History, Life, is_life_id, new_life_id
from sbp_core.pd.metadata.store import open_store
from sbp_core.pd.model import NewStream
from sbp_core.rangeserver.server_id import DRIVER_COMMIT_NAME, DriverCommit

A, B, C = (f"0-{digit * 16}" for digit in "abc")
NEXT = "5-" + "d" * 16


def test_a_history_has_the_commits_of_its_lives_only():
    history = History([Life(A, 1), Life(B, 11)], 15)
    assert history.last == CommitId(15, B)
    assert [history.has(CommitId(number, A)) for number in (1, 10, 11)] == [True, True, False]
    assert [history.has(CommitId(number, B)) for number in (11, 15, 16)] == [True, True, False]
    assert not history.has(CommitId(1, C))
    assert not history.has(CommitId(1, NEXT))
    assert history.has(CommitId())


def test_commits_of_lower_epochs_are_not_asked_for():
    history = History([Life(A, 1), Life(NEXT, 11)], 15)
    assert history.has(CommitId(99, A))
    assert history.has(CommitId(99, C))
    assert not history.has(CommitId(16, NEXT))
    assert not history.has(CommitId(1, "6-" + "a" * 16))


def test_ids_of_a_life():
    assert is_life_id(new_life_id(0))
    assert is_life_id(new_life_id(2**23))
    for text in ("", "x", "0-", A + "0", "-" + "a" * 16, A.upper(), f"{A}\n"):
        assert not is_life_id(text)


def create(store, *names):
    news = [NewStream(name, 1, 1, 0, (1,)) for name in names]
    return [stream.stream_id for stream, _ in store.create_streams(news, 5)]


def put_back(tmp_path, *, is_hot=False):
    """A store that was copied, went on, and was put back; returns the commit it lost."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    store = open_store(data)
    create(store, "a")
    store.servers.allocate_id()
    if is_hot:
        shutil.copytree(data, copy)
    else:
        store.close()
        shutil.copytree(data, copy)
        store = open_store(data)
    create(store, "b")
    store.servers.allocate_id()
    lost = store.last_commit
    store.close()
    shutil.rmtree(data)
    shutil.copytree(copy, data)
    return lost


@pytest.mark.parametrize("is_hot", [False, True])
def test_a_commit_of_the_lost_time_stops_the_store_until_it_is_accepted(tmp_path, is_hot, capsys):
    lost = put_back(tmp_path, is_hot=is_hot)
    store = open_store(tmp_path / "data")
    with pytest.raises(StatusError, match=f"knows {lost}") as refused:
        store.database.check_history(lost)
    assert refused.value.code == StatusCode.PD_INTERNAL
    with pytest.raises(StatusError, match="sbp pd accept"):
        create(store, "c")
    store.close()
    with pytest.raises(ConfigurationError, match="commits may be missing"):
        open_store(tmp_path / "data")
    assert main(["pd", "check", str(tmp_path / "data")]) == 1
    assert "older than it was" in capsys.readouterr().out
    assert main(["pd", "accept", str(tmp_path / "data")]) == 0
    assert main(["pd", "check", str(tmp_path / "data")]) == 0
    store = open_store(tmp_path / "data")
    store.database.check_history(lost)
    (c,) = create(store, "c")
    assert c > 2
    assert 2 < store.servers.allocate_id() < 2**31
    assert store.revision() > 1 << 40
    assert [each.name for each in store.streams_after(-1, 10)] == ["a", "c"]
    with pytest.raises(StatusError, match="knows commit"):
        store.database.check_history(
            CommitId(store.last_commit.number + 1, store.last_commit.life_id)
        )
    store.close()


def test_a_store_that_was_accepted_twice_never_repeats_an_epoch(tmp_path):
    put_back(tmp_path)
    data = tmp_path / "data"
    seen = []
    for _ in range(5):
        (data / "metadata.mark").unlink()
        assert main(["pd", "accept", str(data)]) == 0
        store = open_store(data)
        seen += create(store, None)
        seen_server = store.servers.allocate_id()
        assert 0 < seen_server < 2**31
        store.close()
    assert seen == sorted(set(seen))
    assert len({each >> 40 for each in seen}) == 5


def test_the_right_store_brought_back_is_good_again(tmp_path):
    data = tmp_path / "data"
    lost = put_back(tmp_path)
    shutil.copytree(data, tmp_path / "older")
    store = open_store(data)
    with pytest.raises(StatusError):
        store.database.check_history(lost)
    store.close()
    assert main(["pd", "check", str(data)]) == 1
    shutil.rmtree(data)
    shutil.copytree(tmp_path / "older", data)
    assert main(["pd", "check", str(data)]) == 0
    open_store(data).close()


def test_check_changes_nothing_and_tells_in_json(tmp_path, capsys):
    data = tmp_path / "data"
    store = open_store(data)
    create(store, "a", "b")
    shutil.copytree(data, tmp_path / "killed")
    store.close()
    before = {path.name: path.read_bytes() for path in (tmp_path / "killed").iterdir()}
    assert WRITE_AHEAD_LOG_NAME in before
    assert main(["pd", "check", "--json", str(tmp_path / "killed")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["is_intact"]
    assert told["rows"]["streams"] == 2
    assert told["commit"] == told["marked_commit"] == 2
    assert told["life"] == told["marked_life"]
    assert {path.name: path.read_bytes() for path in (tmp_path / "killed").iterdir()} == before


def test_intact_metadata_are_not_touched_by_accept(tmp_path, capsys):
    store = open_store(tmp_path)
    create(store, "a")
    store.close()
    before = (tmp_path / DATABASE_NAME).read_bytes()
    assert main(["pd", "accept", str(tmp_path)]) == 0
    assert "nothing was changed" in capsys.readouterr().out
    assert (tmp_path / DATABASE_NAME).read_bytes() == before


def test_check_needs_a_stopped_placement_driver_and_metadata(tmp_path, capsys):
    store = open_store(tmp_path / "data")
    assert main(["pd", "check", str(tmp_path / "data")]) == 2
    assert "in use by another placement driver" in capsys.readouterr().err
    store.close()
    assert main(["pd", "check", str(tmp_path)]) == 2
    assert "holds no metadata" in capsys.readouterr().err
    assert main(["pd", "check", str(tmp_path / ("x" * 300))]) == 2
    assert "cannot be read: File name too long; name a folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [tmp_path / "data"]


def test_a_range_server_remembers_the_last_commit(tmp_path, caplog):
    known = DriverCommit(tmp_path, OsDisk())
    assert (known.number, known.life) == (-1, None)
    known.note(-1, None)
    assert not (tmp_path / DRIVER_COMMIT_NAME).exists()
    known.note(7, A)
    again = DriverCommit(tmp_path, OsDisk())
    assert (again.number, again.life) == (7, A)
    path = tmp_path / DRIVER_COMMIT_NAME
    path.write_text(path.read_text().replace("7", "8", 1))
    damaged = DriverCommit(tmp_path, OsDisk())
    assert (damaged.number, damaged.life) == (-1, None)
    assert "it is damaged" in caplog.text
