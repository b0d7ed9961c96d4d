"""A disk in memory, below the log, that loses power and fails as real ones do.

It keeps what programs see (the page cache) apart from what is on the platter, block by block:

* `fail(operation, nth, errno)` makes the nth next call of one operation fail. A failed write leaves
  a part of its octets behind. A failed sync loses what it should have written, but the cache goes
  on showing it, as clean pages, and the next sync succeeds: so do Linux file systems.
* `lose_power(choose)` keeps any mix of unsynced blocks, any length between the old and the new,
  and any of the unsynced names.
* `kill_process()` keeps the cache, and lets locks go.

Every file handle from before either of the last two is unusable afterwards.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

Octets = bytes | bytearray | memoryview
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
"""Of the log while it runs."""


class Inode:
    def __init__(self) -> None:
        self.cached = bytearray()
        self.durable = bytearray()
        self.dirty: set[int] = set()

    def write(self, data: bytes, position: int) -> None:
        end = position + len(data)
        self._touch(min(position, len(self.cached)), end)
        if len(self.cached) < end:
            self.cached.extend(bytes(end - len(self.cached)))
        self.cached[position:end] = data

    def truncate(self, size: int) -> None:
        self._touch(size, max(size, len(self.cached)))
        self.cached = self.cached[:size] + bytearray(max(0, size - len(self.cached)))

    def sync(self, *, may_shrink: bool) -> None:
        size = len(self.cached) if may_shrink else max(len(self.cached), len(self.durable))
        self.durable = self._mixed(size, self.dirty)
        self.dirty.clear()

    def lose_dirty(self) -> None:
        self.dirty.clear()

    def drop_clean(self) -> None:
        self.cached = self._mixed(len(self.cached), self.dirty)

    def lose_power(self, choose: Choose) -> None:
        shortest, longest = sorted((len(self.durable), len(self.cached)))
        size = (shortest, longest, shortest + choose(longest - shortest + 1))[choose(3)]
        keep_all = choose(4)
        kept = {block for block in sorted(self.dirty) if keep_all == 0 or choose(2)}
        self.durable = self._mixed(size, kept)
        self.cached = bytearray(self.durable)
        self.dirty.clear()

    def _touch(self, start: int, end: int) -> None:
        self.dirty.update(range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES)))

    def _mixed(self, size: int, from_cache: set[int]) -> bytearray:
        """`size` octets: the blocks `from_cache` from there, the others from the platter."""
        mixed = self.durable[:size] + bytearray(max(0, size - len(self.durable)))
        for block in from_cache:
            start, end = block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, size)
            part = self.cached[start:end]
            mixed[start : start + len(part)] = part
        return mixed[:size]


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
        return bytes(self._inode.cached[position : position + length])

    def maybe_pread_cached(self, length: int, position: int) -> None:
        """Nothing is known to be cached: all reads are seen by `pread`."""

    def pwritev(self, buffers: Sequence[Octets], position: int) -> None:
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

    def map(self) -> bytes:
        self._enter("map")
        return bytes(self._inode.cached)

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


class FaultyDisk:
    def __init__(self) -> None:
        self.names: dict[Path, Inode] = {}
        self.durable_names: dict[Path, Inode] = {}
        self.locked: set[Path] = set()
        self.generation = 0
        self.calls: Counter[str] = Counter()
        self.injected = 0
        self._faults: dict[str, tuple[int, int]] = {}

    # Faults.

    def fail(self, operation: str, nth: int, errno: int) -> None:
        """Make the `nth` call from now (1 is the next) of `operation` fail."""
        self._faults[operation] = (self.calls[operation] + nth, errno)

    def heal(self) -> None:
        """Let nothing fail any more."""
        self._faults.clear()

    def enter(self, operation: str, path: Path) -> None:
        self.calls[operation] += 1
        call, errno = self._faults.get(operation, (0, 0))
        if call == self.calls[operation]:
            self.injected += 1
            raise OSError(errno, os.strerror(errno), str(path))

    def kill_process(self) -> None:
        self._begin_generation()

    def lose_power(self, choose: Choose) -> None:
        self._begin_generation()
        for path in sorted({*self.names, *self.durable_names}):
            is_there = self.names.get(path)
            if is_there is not self.durable_names.get(path) and choose(2):
                self.durable_names.pop(path, None)
                if is_there is not None:
                    self.durable_names[path] = is_there
        self.names = dict(self.durable_names)
        for path in sorted(self.names):
            self.names[path].lose_power(choose)

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

    def create(self, path: Path) -> FaultyFile:
        self.enter("create", path)
        if path in self.names:
            raise FileExistsError(17, "File exists", str(path))
        self.names[path] = Inode()
        return self.open(path, is_writable=True)

    def open(self, path: Path, *, is_writable: bool) -> FaultyFile:
        self.enter("open", path)
        if path not in self.names:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return FaultyFile(self, path, self.names[path], is_writable=is_writable)

    def replace(self, source: Path, target: Path) -> None:
        self.enter("replace", target)
        self.names[target] = self.names.pop(source)

    def link(self, source: Path, target: Path) -> None:
        self.enter("link", target)
        if target in self.names:
            raise FileExistsError(17, "File exists", str(target))
        self.names[target] = self.names[source]

    def remove(self, path: Path) -> None:
        self.enter("remove", path)
        if path not in self.names:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        del self.names[path]
