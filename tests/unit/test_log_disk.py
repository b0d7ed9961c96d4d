"""The real disk port: short writes, many buffers, locks, handles that are let go."""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path

import pytest

from sbp_core.errors import LogWriteError
from sbp_core.log.disk import OsDisk, translate_os_error, write_file
from tests.support.disk import FaultyDisk


def open_descriptors() -> set[Path]:
    return set(Path("/proc/self/fd").iterdir())


def test_writes_more_buffers_than_one_call_takes(tmp_path: Path) -> None:
    file = OsDisk().create(tmp_path / "f")
    buffers = [bytes([number % 251]) * (number % 3) for number in range(3000)]
    file.pwritev(buffers, 5)
    file.fdatasync()
    assert file.pread(10_000, 5) == b"".join(buffers)
    assert file.size() == 5 + sum(map(len, buffers))


def test_finishes_short_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_pwritev, real_pwrite = os.pwritev, os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda fd, b, at: real_pwritev(fd, [b"".join(b)[:7]], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, b, at: real_pwrite(fd, b[:3], at))
    file = OsDisk().create(tmp_path / "f")
    file.pwritev([b"0123456789", bytearray(b"abc"), memoryview(b"XYZ!")], 2)
    assert file.pread(100, 2) == b"0123456789abcXYZ!"


def test_finishes_short_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OsDisk().create(tmp_path / "f")
    file.pwritev([b"0123456789"], 0)
    real_pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, at: real_pread(fd, min(length, 3), at))
    assert file.pread(9, 1) == b"123456789"
    assert file.pread(99, 8) == b"89"


def test_cached_bytes_are_those_of_the_file_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = OsDisk().create(tmp_path / "f")
    file.pwritev([b"0123456789"], 0)
    cached = file.maybe_pread_cached(4, 3)
    assert cached is None or bytes(cached) == b"3456"  # not every file system says
    assert file.maybe_pread_cached(4, 8) is None, "it is not all there"

    def refuse(*_: object) -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "preadv", refuse)
    assert file.maybe_pread_cached(4, 3) is None


def test_truncate_sync_drop_cache_and_reopen(tmp_path: Path) -> None:
    disk = OsDisk()
    with_cut = disk.create(tmp_path / "f")
    with_cut.pwritev([b"0123456789"], 0)
    with_cut.truncate(4)
    with_cut.fsync()
    with_cut.drop_cache()
    with_cut.close()
    with_cut.close()
    again = disk.open(tmp_path / "f", is_writable=False)
    assert again.pread(99, 0) == b"0123"
    with pytest.raises(OSError, match="Bad file descriptor"):
        again.pwritev([b"x"], 0)


def test_an_open_file_outlives_its_name(tmp_path: Path) -> None:
    disk = OsDisk()
    file = disk.create(tmp_path / "f")
    file.pwritev([b"0123456789"], 0)
    disk.remove(tmp_path / "f")
    assert file.pread(99, 0) == b"0123456789"
    with pytest.raises(FileNotFoundError):
        disk.remove(tmp_path / "f")


@pytest.mark.parametrize("is_durable", [True, False])
def test_a_file_is_written_in_place_of_another_whatever_was_left_over(
    tmp_path: Path, is_durable: bool
) -> None:
    disk = OsDisk()
    path = tmp_path / "f"
    for content in (b"first and longer", b"second"):
        (tmp_path / "f.tmp").write_bytes(b"left over")
        opened_before = disk.open(path, is_writable=False) if path.exists() else None
        write_file(disk, path, [content[:3], content[3:]], is_durable=is_durable)
        assert path.read_bytes() == content
        assert path.stat().st_mode & 0o777 == 0o600
        assert disk.list_names(tmp_path) == ["f"]
    assert opened_before is not None
    assert opened_before.pread(99, 0) == b"first and longer"


def test_a_file_that_replaces_another_is_never_seen_in_part_after_a_power_cut() -> None:
    path = Path("/d/f")
    for seed in range(60):
        disk = FaultyDisk()
        write_file(disk, path, [b"old" * 50])
        disk.fail(random.Random(seed).choice(["replace", "fsync_dir", "fsync"]), 1, 5)
        with pytest.raises(OSError, match="Input/output"):
            write_file(disk, path, [b"new!" * 50])
        disk.lose_power(random.Random(seed).randrange)
        assert bytes(disk.names[path].cached) in (b"old" * 50, b"new!" * 50)
        write_file(disk, path, [b"newer"])
        disk.lose_power(random.Random(seed).randrange)
        assert bytes(disk.names[path].cached) == b"newer"


def test_files_and_directories_are_private_and_never_followed(tmp_path: Path) -> None:
    disk = OsDisk()
    disk.make_directory(tmp_path / "a" / "b")
    disk.make_directory(tmp_path / "a" / "b")
    disk.create(tmp_path / "a" / "b" / "f").close()
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a" / "b" / "f").stat().st_mode & 0o777 == 0o600
    assert disk.list_names(tmp_path / "a" / "b") == ["f"]
    disk.fsync_dir(tmp_path / "a" / "b")
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b" / "f")
    with pytest.raises(OSError, match="symbolic links"):
        disk.open(tmp_path / "link", is_writable=True)
    with pytest.raises(FileExistsError):
        disk.create(tmp_path / "a" / "b" / "f")


def test_the_lock_excludes_until_released(tmp_path: Path) -> None:
    disk = OsDisk()
    lock = disk.lock_directory(tmp_path)
    descriptors = len(open_descriptors())
    with pytest.raises(BlockingIOError):
        disk.lock_directory(tmp_path)
    assert len(open_descriptors()) == descriptors
    lock.release()
    lock.release()
    disk.lock_directory(tmp_path).release()


def test_a_lock_on_the_directory_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    descriptors = len(open_descriptors())
    with pytest.raises(PermissionError, match=f"belongs to another user .id {owner}"):
        OsDisk().lock_directory(tmp_path)
    assert len(open_descriptors()) == descriptors
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    OsDisk().lock_directory(tmp_path).release()


@pytest.mark.parametrize("mask", [0, 0o777])
def test_new_files_belong_to_their_owner_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        OsDisk().make_directory(tmp_path / "a" / "b")
        OsDisk().create(tmp_path / "a" / "b" / "f").close()
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b", "a/b/f")]
    assert modes == [0o700, 0o700, 0o600]


@pytest.mark.parametrize("is_writable", [False, True])
def test_only_a_regular_file_is_opened_and_nothing_else_blocks(
    tmp_path: Path, is_writable: bool
) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    descriptors = len(open_descriptors())
    for name in ("fifo", "folder"):
        with pytest.raises(
            OSError, match=r"it is not a regular file|Is a directory|No such device"
        ):
            OsDisk().open(tmp_path / name, is_writable=is_writable)
    assert len(open_descriptors()) == descriptors


def test_a_dropped_file_closes_its_descriptor(tmp_path: Path) -> None:
    file = OsDisk().create(tmp_path / "f")
    descriptors = open_descriptors()
    another = OsDisk().open(tmp_path / "f", is_writable=False)
    assert len(open_descriptors()) == len(descriptors) + 1
    del another
    assert open_descriptors() == descriptors
    file.close()


def test_os_errors_name_the_action_the_file_and_the_errno() -> None:
    with (
        pytest.raises(LogWriteError, match=r"writing /x/y failed: No space .*\(ENOSPC\)"),
        translate_os_error(LogWriteError, "writing", Path("/x/y")),
    ):
        raise OSError(28, "No space left on device")
