"""A disk in memory, below the log, that loses power and fails as real ones do.

It keeps what programs see (the page cache) apart from what is on the platter, block by block:

* `fail(operation, nth, errno)` makes the nth next call of one operation fail. A failed write leaves
  a part of its bytes behind. A failed sync loses what it should have written, but the cache goes
  on showing it, as clean pages, and the next sync succeeds: so do Linux file systems.
* `lose_power(choose)` keeps any mix of unsynced blocks, each as it was after any of the writes to
  it, any length between the old and the new, and any of the unsynced changes of names. All are lost
  if `choose` always says 0, none if it says n - 1.
* `kill_process()` keeps the cache, and lets locks go.

Every file handle from before either of the last two is unusable afterwards.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

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
        return bytes(self._inode.cached[position : position + length])

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
