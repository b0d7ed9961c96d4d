"""A server whose log was cut, emptied, exchanged or put back: every loss is reported."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbp_core.cli.main import main
from sbp_core.client import AppendItem, Client, StreamSpec
from sbp_core.errors import SbpError
from tests.support.cluster import rows_batch
from tests.support.faults.cluster import FaultCluster

COUNT = 60
HURT, OTHER = 1, 2


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FaultCluster]:
    started = FaultCluster(tmp_path, alterations=())
    try:
        yield started
    finally:
        started.end()


def client(cluster: FaultCluster) -> Client:
    return Client(cluster.endpoint)


def append(cluster: FaultCluster, stream_id: int, value: bytes) -> int:
    with client(cluster) as each:
        return each.append([AppendItem(stream_id, rows_batch([value]))])[0].base_offset


def fill(cluster: FaultCluster) -> None:
    with client(cluster) as each:
        each.create_streams([StreamSpec("hurt"), StreamSpec("other")])
    append(cluster, OTHER, b"other")
    for number in range(COUNT):
        assert append(cluster, HURT, b"%d" % number) == number


def last_segment(cluster: FaultCluster) -> Path:
    return max(cluster.log_folder.glob("*.log"))


def test_the_placement_driver_knows_the_end_of_a_log_that_was_closed(cluster: FaultCluster) -> None:
    """Also if the notes beside the log are lost: the last heartbeat reported it."""
    cluster.start()
    fill(cluster)
    cluster.stop()
    for note in cluster.log_folder.glob("high-water.*"):
        note.unlink()
    path = last_segment(cluster)
    os.truncate(path, path.stat().st_size - 100)
    with pytest.raises(SbpError, match="reported to the placement driver that it is synced up to"):
        cluster.start()


def test_the_check_of_a_log_asks_the_metadata_beside_it(
    cluster: FaultCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.start()
    fill(cluster)
    cluster.stop()
    shutil.copytree(cluster.log_folder, tmp_path / "copy")
    cluster.start()
    append(cluster, HURT, b"not in the copy")
    cluster.stop()
    shutil.rmtree(cluster.log_folder)
    shutil.copytree(tmp_path / "copy", cluster.log_folder)
    driver = cluster.data_dir / "placement-driver"
    before = contents(cluster.data_dir)
    for name in (cluster.data_dir, cluster.log_folder.parent, cluster.log_folder):
        assert main(["log", "check", str(name)]) == 1
        assert re.search(r"was synced up to position \d+: \d+ bytes are missing", printed(capsys))
    assert contents(cluster.data_dir) == before
    database = driver / "metadata.sqlite"
    whole = database.read_bytes()
    database.write_bytes(b"xxxx" + whole[4:])
    assert main(["log", "check", str(cluster.data_dir)]) == 0
    told = capsys.readouterr().err
    assert f"not compared with the placement driver: {driver} is damaged" in told
    database.write_bytes(whole)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_the_check_of_a_log_misses_one_that_is_gone(
    cluster: FaultCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.start()
    fill(cluster)
    cluster.stop()
    shutil.rmtree(cluster.log_folder)
    cluster.log_folder.mkdir()
    assert main(["log", "check", str(cluster.data_dir)]) == 1
    assert "the log of range server 1 is missing" in capsys.readouterr().err
