"""Disks that fill, fail, wait or lose power."""

from __future__ import annotations

import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sbp_core.log.disk import DiskFile, OsDirectoryLock, OsDisk, OsFile


class FixedProbe:
    """The host port of a range server; with `free` None the disk does not report it."""

    def __init__(self, free: int | None) -> None:
        self.free = free
        self.look_count = 0

    def disk_free_bytes(self, folder: Path) -> int:
        self.look_count += 1
        if self.free is None:
            raise OSError("the disk is gone")
        return self.free

    def memory_used_bytes(self) -> int:
        return 77


class HeldDisk(OsDisk):
    """Syncs of data wait for `gate`, are counted, and fail with `error` if there is one."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.sync_count = 0
        self.error: OSError | None = None

    def hold(self, file: DiskFile) -> DiskFile:
        sync = file.fdatasync

        def held_sync() -> None:
            assert self.gate.wait(30)
            self.sync_count += 1
            if self.error is not None:
                raise self.error
            sync()

        file.fdatasync = held_sync  # type: ignore[method-assign]
        return file

    def open(self, path: Path, *, is_writable: bool) -> DiskFile:
        file = super().open(path, is_writable=is_writable)
        return self.hold(file) if is_writable else file


Buffer = bytes | bytearray | memoryview
Choose = Callable[[int], int]
"""choose(n) returns a number in [0, n)."""

BLOCK_BYTES = 64
FAILING_OPERATIONS = (
    "pwritev",
    "fdatasync",
    "fsync",
    "truncate",
    "create",
    "fsync_dir",
    "replace",
    "remove",
)
"""The operations of a running log that may fail."""


class Inode:
    """A file: its cached content, its durable content, and the blocks not synced yet."""

    def __init__(self, block_bytes: int = BLOCK_BYTES) -> None:
        self.cached = bytearray()
        self.durable = bytearray()
        self.dirty: dict[int, list[bytes]] = {}
        """By block: all that it has been since it was last synced, the latest last."""
        self._block_bytes = block_bytes

    def write(self, data: bytes, position: int) -> None:
        end = position + len(data)
        start = min(position, len(self.cached))
        if len(self.cached) < end:
            self.cached.extend(bytes(end - len(self.cached)))
        self.cached[position:end] = data
        self._touch(start, end)

    def truncate(self, size: int) -> None:
        end = max(size, len(self.cached))
        self.cached = self.cached[:size] + bytearray(max(0, size - len(self.cached)))
        self._touch(size, end)

    def sync(self, *, may_shrink: bool) -> None:
        size = len(self.cached) if may_shrink else max(len(self.cached), len(self.durable))
        self.durable = self._mixed(size, self._latest())
        self.dirty.clear()

    def lose_dirty(self) -> None:
        self.dirty.clear()

    def drop_clean(self) -> None:
        self.cached = self._mixed(len(self.cached), self._latest())

    def after_power_cut(self, choose: Choose) -> Inode:
        shortest, longest = sorted((len(self.durable), len(self.cached)))
        size = (shortest, shortest + choose(longest - shortest + 1), longest)[choose(3)]
        if choose(4) == 3:
            kept = self._latest()
        else:
            chosen = {block: choose(len(seen) + 1) for block, seen in self.dirty.items()}
            kept = {block: self.dirty[block][at - 1] for block, at in chosen.items() if at}
        left = Inode(self._block_bytes)
        left.durable = self._mixed(size, kept)
        left.cached = bytearray(left.durable)
        return left

    def _touch(self, start: int, end: int) -> None:
        for block in range(start // self._block_bytes, -(-end // self._block_bytes)):
            content = self.cached[block * self._block_bytes : (block + 1) * self._block_bytes]
            self.dirty.setdefault(block, []).append(bytes(content))

    def _latest(self) -> dict[int, bytes]:
        return {block: seen[-1] for block, seen in self.dirty.items()}

    def _mixed(self, size: int, blocks: dict[int, bytes]) -> bytearray:
        """`size` bytes: these `blocks`, the others from the platter, zeros where it has none."""
        mixed = self.durable[:size] + bytearray(max(0, size - len(self.durable)))
        for block, content in blocks.items():
            start = block * self._block_bytes
            part = content[: max(0, size - start)]
            mixed[start : start + len(part)] = part
        return mixed


class FaultyFile:
    def __init__(self, disk: FaultyDisk, path: Path, inode: Inode, *, is_writable: bool) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._is_writable = is_writable
        self._generation = disk.generation
        self._is_open = True

    @property
    def path(self) -> Path:
        return self._path

    def size(self) -> int:
        self._enter("size")
        return len(self._inode.cached)

    def pread(self, length: int, position: int) -> bytes:
        self._enter("pread")
        self._disk.longest_read = max(self._disk.longest_read, length)
        data = bytes(self._inode.cached[position : position + length])
        self._disk.read_bytes += len(data)
        return data

    def maybe_pread_cached(self, length: int, position: int) -> None:
        """Nothing is known to be cached: all reads are seen by `pread`."""

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        data = b"".join(buffers)
        try:
            self._enter("pwritev", writes=True)
        except OSError:
            self._inode.write(data[: len(data) // 2], position)
            raise
        self._inode.write(data, position)

    def fdatasync(self) -> None:
        self._sync("fdatasync", may_shrink=False)

    def fsync(self) -> None:
        self._sync("fsync", may_shrink=True)

    def _sync(self, operation: str, *, may_shrink: bool) -> None:
        try:
            self._enter(operation)
        except OSError:
            self._inode.lose_dirty()
            raise
        self._inode.sync(may_shrink=may_shrink)

    def truncate(self, size: int) -> None:
        self._enter("truncate", writes=True)
        self._inode.truncate(size)

    def drop_cache(self) -> None:
        self._enter("drop_cache")
        self._inode.drop_clean()

    def close(self) -> None:
        self._is_open = False

    def _enter(self, operation: str, *, writes: bool = False) -> None:
        assert self._is_open, f"{operation} on a closed file"
        assert self._generation == self._disk.generation, f"{operation} by a dead process"
        assert self._is_writable or not writes, f"{operation} on a file opened for reading"
        self._disk.enter(operation, self._path)


class FaultyLock:
    def __init__(self, disk: FaultyDisk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._generation = disk.generation

    def release(self) -> None:
        if self._generation == self._disk.generation:
            self._disk.locked.discard(self._directory)


NameChanges = dict[Path, Inode | None]
"""The atomic change of a directory by one operation; None removes the name."""


class FaultyDisk:
    def __init__(self, block_bytes: int = BLOCK_BYTES) -> None:
        self.block_bytes = block_bytes
        self.names: dict[Path, Inode] = {}
        self.durable_names: dict[Path, Inode] = {}
        self.unsynced_names: list[NameChanges] = []
        self.locked: set[Path] = set()
        self.generation = 0
        self.calls: Counter[str] = Counter()
        self.injected = 0
        self._faults: dict[str, tuple[int, Callable[[str], BaseException]]] = {}
        self.longest_read = 0
        self.read_bytes = 0

    # Faults.

    def fail(self, operation: str, nth: int, errno: int) -> None:
        """Make the `nth` call from now (1 is the next) of `operation` fail."""
        error = partial(OSError, errno, os.strerror(errno))
        self._faults[operation] = (self.calls[operation] + nth, error)

    def interrupt(self, operation: str) -> None:
        """Make the next call of `operation` raise KeyboardInterrupt."""
        self._faults[operation] = (self.calls[operation] + 1, KeyboardInterrupt)

    def heal(self) -> None:
        """Let nothing fail any more."""
        self._faults.clear()

    def enter(self, operation: str, path: Path) -> None:
        self.calls[operation] += 1
        call, error = self._faults.get(operation, (0, OSError))
        if call == self.calls[operation]:
            self.injected += 1
            raise error(str(path))

    def kill_process(self) -> None:
        self._begin_generation()

    def lose_power(self, choose: Choose) -> None:
        left = self.after_power_cut(choose)
        self._begin_generation()
        self.names, self.durable_names = left.names, left.durable_names
        self.unsynced_names.clear()

    def after_power_cut(self, choose: Choose) -> FaultyDisk:
        """The disk that a power cut at this moment may leave; this one goes on."""
        names = dict(self.durable_names)
        for changes in self.unsynced_names:
            if choose(2):
                _rename(names, changes)
        left = FaultyDisk(self.block_bytes)
        inodes = {inode: inode.after_power_cut(choose) for inode in names.values()}
        left.names = {path: inodes[inode] for path, inode in names.items()}
        left.durable_names = dict(left.names)
        return left

    def write_back(self) -> None:
        """Let all become durable that was not synced, as kernels do after a while."""
        self.durable_names = dict(self.names)
        self.unsynced_names.clear()
        for inode in self.names.values():
            inode.sync(may_shrink=True)

    def _begin_generation(self) -> None:
        self.generation += 1
        self.locked.clear()
        self._faults.clear()

    # The port.

    def make_directory(self, directory: Path) -> None:
        self.enter("make_directory", directory)

    def lock_directory(self, directory: Path) -> FaultyLock:
        self.enter("lock_directory", directory)
        if directory in self.locked:
            raise BlockingIOError
        self.locked.add(directory)
        return FaultyLock(self, directory)

    def list_names(self, directory: Path) -> list[str]:
        self.enter("list_names", directory)
        return [path.name for path in self.names if path.parent == directory]

    def fsync_dir(self, directory: Path) -> None:
        self.enter("fsync_dir", directory)
        others = {p: i for p, i in self.durable_names.items() if p.parent != directory}
        own = {p: i for p, i in self.names.items() if p.parent == directory}
        self.durable_names = others | own
        self.unsynced_names = [
            changes
            for changes in self.unsynced_names
            if all(path.parent != directory for path in changes)
        ]

    def create(self, path: Path) -> FaultyFile:
        self.enter("create", path)
        if path in self.names:
            raise FileExistsError(17, "File exists", str(path))
        self._change_names({path: Inode(self.block_bytes)})
        return self.open(path, is_writable=True)

    def open(self, path: Path, *, is_writable: bool) -> FaultyFile:
        self.enter("open", path)
        if path not in self.names:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return FaultyFile(self, path, self.names[path], is_writable=is_writable)

    def replace(self, source: Path, target: Path) -> None:
        self.enter("replace", target)
        self._change_names({source: None, target: self.names[source]})

    def link(self, source: Path, target: Path) -> None:
        self.enter("link", target)
        if target in self.names:
            raise FileExistsError(17, "File exists", str(target))
        self._change_names({target: self.names[source]})

    def remove(self, path: Path) -> None:
        self.enter("remove", path)
        if path not in self.names:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        self._change_names({path: None})

    def _change_names(self, changes: NameChanges) -> None:
        _rename(self.names, changes)
        self.unsynced_names.append(changes)


def _rename(names: dict[Path, Inode], changes: NameChanges) -> None:
    for path, maybe_inode in changes.items():
        names.pop(path, None)
        if maybe_inode is not None:
            names[path] = maybe_inode


class VolatileFile:
    """A file in the cache."""

    def __init__(self, file: OsFile, synced: Path) -> None:
        self._file = file
        self._synced = synced

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def fdatasync(self) -> None:
        self.fsync()

    def fsync(self) -> None:
        """Write the content to the platter in place: a kill during it leaves a torn write."""
        content = self._file.pread(self._file.size(), 0)
        with self._synced.open("r+b") as platter:
            platter.write(content)
            platter.truncate()


class VolatileDisk:
    """A disk in which the directory that is locked, the log's, is volatile, and no other.

    Its threads change names one at a time, so that a sync of the directory is one consistent state.
    """

    def __init__(self) -> None:
        self._disk = OsDisk()
        self._directory: Path | None = None
        self._names = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._disk, name)

        def on_cache(*arguments: Any, **options: Any) -> Any:
            with self._names:
                return method(*map(self._cached, arguments), **options)

        return on_cache

    def lock_directory(self, directory: Path) -> OsDirectoryLock:
        """Lock the directory and begin with what is on the platter."""
        lock = self._disk.lock_directory(directory)
        self._directory = directory
        for folder in (self._cache, self._synced):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        for path in directory.iterdir():
            copy = self._cache / path.name
            shutil.copyfile(path, copy)
            os.link(path, self._synced_of(copy))
        return lock

    def create(self, path: Path) -> Any:
        with self._names:
            file = self._file(self._disk.create(self._cached(path)))
            if isinstance(file, VolatileFile):
                synced = self._synced_of(self._cached(path))
                synced.unlink(missing_ok=True)  # left by a deleted file
                synced.touch()
            return file

    def open(self, path: Path, *, is_writable: bool) -> Any:
        with self._names:
            return self._file(self._disk.open(self._cached(path), is_writable=is_writable))

    def fsync_dir(self, directory: Path) -> None:
        """Let the platter have the names that the cache has, one after the other."""
        if directory != self._directory:
            self._disk.fsync_dir(directory)
            return
        with self._names:
            names = {path.name for path in self._cache.iterdir()}
            for name in names:
                self._publish(name)
            for path in directory.iterdir():
                if path.name not in names:
                    path.unlink()

    def _publish(self, name: str) -> None:
        assert self._directory is not None
        synced = self._synced_of(self._cache / name)
        target = self._directory / name
        if not target.exists() or not target.samefile(synced):
            fresh = self._synced / "fresh"
            fresh.unlink(missing_ok=True)
            os.link(synced, fresh)
            fresh.replace(target)

    @property
    def _cache(self) -> Path:
        return Path(f"{self._directory}.cache")

    @property
    def _synced(self) -> Path:
        return Path(f"{self._directory}.synced")

    def _synced_of(self, cached: Path) -> Path:
        return self._synced / str(cached.stat().st_ino)

    def _cached(self, argument: Any) -> Any:
        """Where the log's files are really."""
        if isinstance(argument, Path) and self._directory in {argument, argument.parent}:
            return self._cache / argument.relative_to(self._directory)
        return argument

    def _file(self, file: OsFile) -> Any:
        is_volatile = file.path.parent == self._cache
        return VolatileFile(file, self._synced_of(file.path)) if is_volatile else file
