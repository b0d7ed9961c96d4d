"""`sbp log` on the files of a real range server, and the server on what a repair leaves."""

from __future__ import annotations

import asyncio
import random

import pytest

from sbp_core import limits
from sbp_core.cli.main import main
from sbp_core.cli.stopped_log import find_logs
from sbp_core.client import AppendItem, FetchItem, StreamSpec
from sbp_core.errors import ConfigurationError, StatusCode, StorageError
from sbp_core.log.disk import OsDisk
from tests.support.cluster import core_cluster, rows_batch, values_of
from tests.support.log import commit, created, drop, open_log, staged

STREAM, OTHER = 1, 2
VALUES = [random.Random(number).randbytes(3 << 20) for number in range(12)]


def run(folder, test):
    async def body():
        async with core_cluster(folder, segment_bytes=limits.SEGMENT_BYTES_MIN) as cluster:
            await asyncio.wait_for(test(cluster), 60)

    asyncio.run(body())


async def append(cluster, stream_id, value):
    (outcome,) = await cluster.client.append([AppendItem(stream_id, rows_batch([value]))])
    return outcome.base_offset


async def fetch(cluster, stream_id, offset):
    item = FetchItem(stream_id, offset, None, 1 << 20)
    (outcome,) = [outcome async for outcome in cluster.client.fetch([item])]
    if outcome.error is not None:
        raise outcome.error
    return values_of(outcome.payload)


@pytest.fixture
def folder(tmp_path):
    """The data folder of a range server that wrote several segments."""

    async def fill(cluster):
        await cluster.client.create_streams([StreamSpec("one"), StreamSpec("other")])
        for number, value in enumerate(VALUES):
            assert await append(cluster, STREAM, value) == number
            await append(cluster, OTHER, b"other-%d" % number)

    run(tmp_path, fill)
    assert len(segments(tmp_path / "rs")) >= 3
    return tmp_path / "rs"


def segments(folder):
    return sorted((folder / "log").glob("*.log"))


def state_of(folder):
    return {
        path: (path.stat().st_mtime_ns, path.stat().st_size, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def flip(path, position):
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def sbp_log(capfd, action, folder, *options):
    exit_code = main(["log", action, str(folder), *options])
    shown = capfd.readouterr()
    return exit_code, shown.out, shown.err


def test_an_intact_log_is_reported_as_such_and_not_touched(folder, capfd):
    before = state_of(folder)
    for action in ("check", "repair"):
        exit_code, out, err = sbp_log(capfd, action, folder)
        assert (exit_code, err) == (0, "")
        assert (
            out
            == f"{folder / 'log'}: intact; {len(segments(folder))} segments, 2 ranges, 24 batches\n"
        )
    assert state_of(folder) == before


def test_a_flipped_byte_is_found_and_after_a_repair_everything_else_is_served(folder, capfd):
    (path,) = [path for path in segments(folder) if b"other-2" in path.read_bytes()]
    damaged_at = path.read_bytes().index(b"other-2")
    flip(path, damaged_at)
    damaged = path.read_bytes()
    before = state_of(folder)
    exit_code, out, _ = sbp_log(capfd, "check", folder)
    assert exit_code == 1
    heading, fault, lost = out.splitlines()
    assert heading.startswith(f"{folder / 'log'}: damaged")
    assert str(path) in fault
    assert lost == f"  lost: offsets [2, 3) of range 0 of stream {OTHER}"
    assert state_of(folder) == before

    exit_code, out, _ = sbp_log(capfd, "repair", folder)
    assert exit_code == 0
    copy = path.with_name(f"{path.name}.damaged-1")
    assert f"kept as it was: {copy}" in out
    assert copy.read_bytes() == damaged
    exit_code, out, _ = sbp_log(capfd, "check", folder)
    assert exit_code == 1, "the lost records stay lost"
    assert out.splitlines()[1:] == [lost]
    assert "incomplete" in out

    async def read(cluster):
        with pytest.raises(StorageError, match=r"offsets \[2, 3\)") as caught:
            await fetch(cluster, OTHER, 2)
        assert caught.value.code == StatusCode.RS_DATA_CORRUPTED
        assert await cluster.read(OTHER, 3) == [(n, b"other-%d" % n) for n in range(3, 12)]
        for offset in (0, 11, 5):
            assert await fetch(cluster, STREAM, offset) == [(offset, VALUES[offset])]
        assert await append(cluster, OTHER, b"on it goes") == 12

    run(folder.parent, read)


def test_a_log_in_use_is_left_alone(folder, capfd):
    async def check(cluster):
        for action in ("check", "repair"):
            exit_code, out, err = await asyncio.to_thread(sbp_log, capfd, action, folder)
            assert (exit_code, out) == (1, "")
            assert "stop the server first" in err

    run(folder.parent, check)


def test_a_log_with_transactions_is_checked(tmp_path, capfd):
    with open_log(OsDisk(), tmp_path) as log:
        log.append([created()])
        log.append([staged("t.1.x", 0), staged("t.1.x", 1), staged("u", 0)])
        log.append([commit(log, "t.1.x"), drop("u", "v")])
    exit_code, out, _ = sbp_log(capfd, "check", tmp_path)
    assert exit_code == 0
    assert "3 batches" in out


def test_a_folder_stands_for_its_logs(tmp_path):
    with pytest.raises(ConfigurationError, match="has no log"):
        find_logs(tmp_path)
    servers = [tmp_path / f"range-server-{index}" for index in (0, 2, 10)]
    for server in servers:
        (server / "log").mkdir(parents=True)
    assert find_logs(tmp_path) == [server / "log" for server in servers]
    assert find_logs(servers[0]) == [servers[0] / "log"]
    (servers[0] / "log" / f"{0:020d}.log").touch()
    assert find_logs(servers[0] / "log") == [servers[0] / "log"]


def test_names_that_stand_for_no_position_are_no_segments(folder, tmp_path, capsys):
    beyond = folder / "log" / f"{2**64:020d}.log"
    beyond.write_bytes(b"")
    assert main(["log", "check", str(folder)]) == 0
    capsys.readouterr()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / f"{10**20 - 1}.log").write_bytes(b"")
    assert main(["log", "check", str(tmp_path / "other")]) == 2
    assert "has no log" in capsys.readouterr().err


def test_only_numbers_name_range_servers(tmp_path):
    for name in ("range-server-\u00b2", "range-server-\u0663", "range-server-x"):
        (tmp_path / name / "log").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="has no log"):
        find_logs(tmp_path)
    for name in ("range-server-10", "range-server-9"):
        (tmp_path / name / "log").mkdir(parents=True)
    assert [path.parent.name for path in find_logs(tmp_path)] == [
        "range-server-9",
        "range-server-10",
    ]
