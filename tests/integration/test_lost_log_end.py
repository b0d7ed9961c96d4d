"""A server whose log was cut, emptied, exchanged or put back: every loss is reported."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbp_core.cli.main import main
from sbp_core.client import AppendItem, Client, FetchItem, StreamSpec
from sbp_core.errors import SbpError, StatusCode, StorageError
from sbp_core.log.boundaries import read_high_water
from sbp_core.log.disk import OsDisk
from tests.support.cluster import rows_batch, values_of
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


def read(cluster: FaultCluster, stream_id: int, offset: int = 0) -> list[tuple[int, bytes | None]]:
    found: list[tuple[int, bytes | None]] = []
    with client(cluster) as each:
        while True:
            (outcome,) = each.fetch([FetchItem(stream_id, offset, None, 1 << 20)])
            if outcome.error is not None:
                raise outcome.error
            if outcome.next_offset == offset:
                return found
            found += values_of(outcome.payload)
            offset = outcome.next_offset


def last_segment(cluster: FaultCluster) -> Path:
    return max(cluster.log_folder.glob("*.log"))


def wait_for_note(cluster: FaultCluster) -> None:
    """Until what was appended is noted: the server does that ten times a second."""
    end = last_segment(cluster).stat().st_size
    while True:
        mark, _ = read_high_water(OsDisk(), cluster.log_folder)
        if mark is not None and mark.position >= end:
            return


def refused_start(cluster: FaultCluster) -> str:
    before = len(cluster.log_path.read_text(encoding="utf-8"))
    with pytest.raises(SbpError) as caught:
        cluster.start()
    return f"{caught.value} {cluster.log_path.read_text(encoding='utf-8')[before:]}"


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_log_that_was_cut(cluster: FaultCluster, tmp_path: Path, end: str, capsys) -> None:
    cluster.start()
    fill(cluster)
    wait_for_note(cluster)
    getattr(cluster, end)()
    segment = last_segment(cluster)
    whole = segment.read_bytes()
    os.truncate(segment, len(whole) - 5_000)
    assert main(["log", "check", str(cluster.data_dir)]) == 1
    assert "bytes are missing" in capsys.readouterr().out
    cluster.start()
    assert read(cluster, OTHER) == [(0, b"other")]
    with pytest.raises(StorageError, match=rf"offsets \[\d+, {COUNT}\) of range 0 of stream") as no:
        read(cluster, HURT)
    assert no.value.code == StatusCode.RS_DATA_CORRUPTED
    with client(cluster) as each:
        (bounds,) = each.stream_bounds([HURT])
        assert bounds.next_offset == COUNT
    assert append(cluster, HURT, b"new") == COUNT
    assert read(cluster, HURT, COUNT) == [(COUNT, b"new")]
    cluster.stop()
    segment.write_bytes(whole)
    cluster.start()
    expected = [(at, b"%d" % at) for at in range(COUNT)] + [(COUNT, b"new")]
    assert read(cluster, HURT) == expected
    cluster.stop()
    assert main(["log", "check", str(cluster.data_dir)]) == 0


def test_an_emptied_folder(cluster: FaultCluster) -> None:
    cluster.start()
    fill(cluster)
    cluster.stop()
    shutil.rmtree(cluster.log_folder)
    cluster.log_folder.mkdir()  # without the folder: test_start_refusals.py
    assert "the log of range server 1 is missing" in refused_start(cluster)
    (cluster.log_folder.parent / "identity.json").unlink()
    cluster.start()
    with client(cluster) as each:
        (stream,) = each.create_streams([StreamSpec("new")])
    assert append(cluster, stream.stream_id, b"new") == 0
    cluster.stop()


def test_the_log_of_another_server(
    cluster: FaultCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.start()
    fill(cluster)
    cluster.stop()
    (tmp_path / "other").mkdir()
    other = FaultCluster(tmp_path / "other", alterations=())
    try:
        other.start()
        fill(other)
        for number in range(COUNT):  # it is longer
            append(other, OTHER, b"%d" % number)
        other.stop()
    finally:
        other.end()
    shutil.rmtree(cluster.log_folder)
    shutil.copytree(other.log_folder, cluster.log_folder)
    assert "another log is in its folder" in refused_start(cluster)
    for command in ("check", "repair"):
        assert main(["log", command, str(cluster.data_dir)]) == 1
        assert "another log is in its folder" in capsys.readouterr().err


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


def test_a_log_without_the_identity_of_its_server_is_not_served(cluster: FaultCluster) -> None:
    cluster.start()
    fill(cluster)
    cluster.stop()
    identity = cluster.log_folder.parent / "identity.json"
    kept = identity.read_bytes()
    identity.unlink()
    with pytest.raises(SbpError, match=r"identity\.json is missing"):
        cluster.start()
    identity.write_bytes(kept)
    cluster.start()
    assert len(read(cluster, HURT)) == COUNT


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
