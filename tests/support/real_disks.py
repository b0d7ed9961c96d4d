"""File systems that really fill, fail and lose power, where they can be mounted."""

from __future__ import annotations

import fcntl
import os
import random
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

EXT4_IOC_SHUTDOWN = 0x8004587D
"""_IOR('X', 125, u32): the file system takes part in nothing more, as if power had gone."""
KEEP_JOURNAL, DROP_JOURNAL = 1, 2
"""Whether the part of the journal that is only in memory is kept. If it is, the names and lengths
of files may survive without their content."""

IMAGE_BYTES = 64 << 20
SMALL_BYTES = 24 << 20
LARGE_BYTES = 256 << 20
META_BYTES = 8 << 20
DEVICE_BLOCK_BYTES = 4096


class LoopDisk:
    """An ext4 file system in a file of its own, mounted at `folder`.

    It keeps its loop device until `close`: all of this machine share them, and there are few.
    """

    def __init__(self, folder: Path, image: Path, size: int = IMAGE_BYTES) -> None:
        self.folder = folder
        self._is_mounted = False
        folder.mkdir()
        with image.open("wb") as file:
            file.truncate(size)
            layout = ["-b", "4096", "-N", "256", "-J", "size=4", "-E", "packed_meta_blocks=1"]
            run("mkfs.ext4", "-q", *layout, str(image))
            # Space for what is written of the file system itself: only data can meet a full disk.
            os.posix_fallocate(file.fileno(), 0, META_BYTES)
        self._device = Path(run("losetup", "--find", "--show", str(image)))
        try:
            # A loop device takes a write that its file took in part for a whole one.
            queue = Path("/sys/block", self._device.name, "queue/max_sectors_kb")
            queue.write_text(str(DEVICE_BLOCK_BYTES >> 10), encoding="ascii")
            self.mount()
        except OSError:
            self.close()
            raise

    def mount(self) -> None:
        """Mount it; the journal is replayed."""
        run("mount", str(self._device), str(self.folder))
        self._is_mounted = True

    def unmount(self) -> None:
        """Unmount it, if it is mounted; no process may have a file open there."""
        if self._is_mounted:
            run("umount", str(self.folder))
            self._is_mounted = False

    def close(self) -> None:
        """Unmount it and give the device back."""
        self.unmount()
        run("losetup", "--detach", str(self._device))

    def cut_power(self, journal: int) -> None:
        """Lose everything unsynced; operations on open files fail from now on."""
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("I", journal))
        finally:
            os.close(descriptor)


class SmallMemory:
    """A folder in memory of which there is not much."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        folder.mkdir()
        run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))

    def resize(self, size: int) -> None:
        run("mount", "-o", f"remount,size={size}", str(self.folder))

    def unmount(self) -> None:
        run("umount", str(self.folder))


@contextmanager
def full_disk(folder: Path) -> Iterator[tuple[SmallMemory, LoopDisk]]:
    """Give a file system that is larger than the memory that it lies in. Raises OSError."""
    folder.mkdir()
    memory = SmallMemory(folder / "memory", SMALL_BYTES)
    try:
        disk = LoopDisk(folder / "disk", memory.folder / "disk.img", LARGE_BYTES)
        try:
            yield memory, disk
        finally:
            disk.close()
    finally:
        memory.unmount()


def run(*command: str) -> str:
    """Run a command; return what it printed. Raises what says why it failed."""
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout.strip()


@contextmanager
def skipping_where_nothing_can_be_mounted() -> Iterator[None]:
    """Skip the test, and say why, where the body cannot mount its file system."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount file systems")
    try:
        yield
    except OSError as error:
        pytest.skip(f"file systems cannot be mounted here: {error}")


def damaged(data: bytes, rng: random.Random) -> tuple[str, bytes | None]:
    """Return what was done to a file, and what it is then; None if it is gone."""
    at = rng.randrange(len(data)) if data else 0
    what = rng.choice(("flip", "flip", "cut", "cut", "zeros", "grown", "gone", "emptied"))
    if what == "flip" and data:
        return f"bit flipped at {at}", data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + (
            data[at + 1 :]
        )
    if what == "cut":
        return f"cut to {at}", data[:at]
    if what == "zeros":
        length = min(rng.choice((1, 16, 512, 4096)), len(data) - at)
        return f"{length} zeros at {at}", data[:at] + bytes(length) + data[at + length :]
    if what == "grown":
        return "grown", data + rng.randbytes(rng.randrange(1, 64))
    return (what, None) if what == "gone" else ("emptied", b"")
