"""The file system as the log sees it (`Disk`), and its implementation for POSIX (`OsDisk`).

No other module of this package uses `os` or `open`, so that a test or a simulation can put any
disk, honest or broken, below the log.
"""

from __future__ import annotations

import errno
import fcntl
import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from sbp_core.errors import LogError
from sbp_core.failpoints import failpoint
from sbp_core.limits import MIB
from sbp_core.regular_files import DIRECTORY_MODE, open_private, open_regular
from sbp_core.wire.checksum import Buffer

TEMPORARY_SUFFIX: Final = ".tmp"
"""Suffix of a file that is being written. After a crash the file is useless."""

_BUFFERS_PER_CALL_MAX: Final = 1024
"""IOV_MAX of Linux: more buffers in one pwritev are refused with EINVAL."""
_BYTES_PER_CALL_MAX: Final = 2 * MIB - 1
"""Linux allocates page cache in pieces as long as a write. The host of a virtual machine takes back
free pieces of 2 MiB and more, and to get one again takes several times as long as to copy its
bytes. Shorter pieces are mostly at hand."""


class DiskFile(Protocol):
    """An open file. All methods raise OSError; positions and lengths are bytes in the file."""

    @property
    def path(self) -> Path:
        """Where the file is, for messages."""

    def size(self) -> int:
        """Return the file's length."""

    def pread(self, length: int, position: int) -> bytes:
        """Return `length` bytes from `position`; fewer only at the end of the file.

        Safe in several threads at once, and while another one writes elsewhere in the file.
        """

    def maybe_pread_cached(self, length: int, position: int) -> Buffer | None:
        """Return what `pread` returns; None if that would wait for the disk, or is too short."""

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all of `buffers`, one after the other, from `position`, or raise."""

    def fdatasync(self) -> None:
        """Make written bytes durable. After an error nothing is known about any of them."""

    def fsync(self) -> None:
        """Make the bytes and all metadata, such as the length, durable."""

    def truncate(self, size: int) -> None:
        """Truncate the file to `size` bytes."""

    def drop_cache(self) -> None:
        """Forget clean cached pages, so that the next read comes from the disk.

        After a failed sync the page cache may still show data that never reached the disk.
        """

    def close(self) -> None:
        """Close a file that no other thread uses. Idempotent.

        Without `close` a file is closed when its last reference goes.
        """


class DirectoryLock(Protocol):
    """A held exclusive lock."""

    def release(self) -> None:
        """Give the lock back. Idempotent."""


class Disk(Protocol):
    """A file system. All methods raise OSError."""

    def make_directory(self, directory: Path) -> None:
        """Create `directory` and its parents where missing, durably and for the owner only."""

    def lock_directory(self, directory: Path) -> DirectoryLock:
        """Lock `directory` exclusively; BlockingIOError if another process holds it."""

    def list_names(self, directory: Path) -> list[str]:
        """Return the names of the files in `directory`, in any order."""

    def fsync_dir(self, directory: Path) -> None:
        """Make the names in `directory` durable."""

    def create(self, path: Path) -> DiskFile:
        """Create a file that must not exist yet, for reading and writing."""

    def open(self, path: Path, *, is_writable: bool) -> DiskFile:
        """Open an existing file."""

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file atomically within its directory, in place of a file with that name."""

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second, unused name in its directory."""

    def remove(self, path: Path) -> None:
        """Remove a file's name. A process that has the file open can still read it."""


class OsFile:
    """A `DiskFile` of the operating system."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._close = weakref.finalize(self, os.close, descriptor)

    def size(self) -> int:
        """Return the file's length."""
        return os.fstat(self._descriptor).st_size

    def pread(self, length: int, position: int) -> bytes:
        """Return `length` bytes from `position`; fewer only at the end of the file."""
        data = os.pread(self._descriptor, length, position)
        if len(data) in (0, length):  # almost always: one system call, and no copy
            return data
        parts = [data]
        got = len(data)
        while got < length and (data := os.pread(self._descriptor, length - got, position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def maybe_pread_cached(self, length: int, position: int) -> Buffer | None:
        """Return bytes that are in the page cache, None where they are not."""
        buffer = np.empty(length, np.uint8).data
        try:
            got = os.preadv(self._descriptor, [buffer], position, os.RWF_NOWAIT)
        except OSError:  # not cached, or not supported; `pread` reports real errors
            return None
        return buffer if got == length else None

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all of `buffers` from `position`, in as many calls as needed."""
        for part in _calls(buffers):
            length = sum(map(len, part))
            written = os.pwritev(self._descriptor, part, position)
            if written < length:
                self._write_rest(part, written, position)
            position += length

    def _write_rest(self, buffers: Sequence[Buffer], written: int, position: int) -> None:
        """Finish a short write. The reason for it usually shows as an error now."""
        rest = memoryview(b"".join(buffers))[written:]
        position += written
        while rest:
            written = os.pwrite(self._descriptor, rest, position)
            rest = rest[written:]
            position += written

    def fdatasync(self) -> None:
        """Make the bytes written durable."""
        os.fdatasync(self._descriptor)

    def fsync(self) -> None:
        """Make the bytes and all metadata durable."""
        os.fsync(self._descriptor)

    def truncate(self, size: int) -> None:
        """Truncate the file to `size` bytes."""
        os.ftruncate(self._descriptor, size)

    def drop_cache(self) -> None:
        """Forget clean cached pages."""
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._close()


def _calls(buffers: Sequence[Buffer]) -> Iterator[Sequence[Buffer]]:
    """Split buffers into calls. A buffer is split only if it is too long for one call."""
    part: list[Buffer] = []
    left = _BYTES_PER_CALL_MAX
    for buffer in buffers:
        for start in range(0, len(buffer), _BYTES_PER_CALL_MAX):
            piece = memoryview(buffer)[start : start + _BYTES_PER_CALL_MAX]
            if len(piece) > left or len(part) == _BUFFERS_PER_CALL_MAX:
                yield part
                part, left = [], _BYTES_PER_CALL_MAX
            part.append(piece)
            left -= len(piece)
    if part:
        yield part


class OsDirectoryLock:
    """An flock(2) on the directory itself: it leaves no file behind and dies with the process."""

    def __init__(self, directory: Path) -> None:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _check_owner(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        self._close = weakref.finalize(self, os.close, descriptor)

    def release(self) -> None:
        """Give the lock back. Idempotent."""
        self._close()


def _check_owner(descriptor: int) -> None:
    """Raise PermissionError for another user's directory. The superuser may lock any.

    Every user that may list a directory can lock it, and a lock would keep the owner's server out.
    """
    owner = os.fstat(descriptor).st_uid
    if os.geteuid() not in {0, owner}:
        raise PermissionError(
            errno.EPERM,
            f"it belongs to another user (id {owner}; this is {os.geteuid()})",
        )


class OsDisk:
    """The operating system's file system."""

    def make_directory(self, directory: Path) -> None:
        """Create `directory` and its parents where missing, durably and for the owner only."""
        if directory.is_dir():
            return
        self.make_directory(directory.parent)
        directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        if directory.stat().st_mode & DIRECTORY_MODE != DIRECTORY_MODE:  # by an unusual umask
            directory.chmod(DIRECTORY_MODE)
        self.fsync_dir(directory.parent)

    def lock_directory(self, directory: Path) -> OsDirectoryLock:
        """Lock `directory` exclusively; BlockingIOError if another process holds it."""
        return OsDirectoryLock(directory)

    def list_names(self, directory: Path) -> list[str]:
        """Return the names in `directory`."""
        return os.listdir(directory)  # noqa: PTH208 - names, not paths

    def fsync_dir(self, directory: Path) -> None:
        """Make the names in `directory` durable."""
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def create(self, path: Path) -> OsFile:
        """Create a file that must not exist yet, readable by the owner only."""
        return self._file(path, open_private(path, os.O_RDWR | os.O_EXCL))

    def open(self, path: Path, *, is_writable: bool) -> OsFile:
        """Open an existing regular file, never through a symbolic link."""
        access = os.O_RDWR if is_writable else os.O_RDONLY
        return self._file(path, open_regular(path, access | os.O_NOFOLLOW))

    def replace(self, source: Path, target: Path) -> None:
        """Give a file another name, in place of a file that has it."""
        source.replace(target)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name."""
        target.hardlink_to(source)

    def remove(self, path: Path) -> None:
        """Remove a file's name."""
        path.unlink()

    def _file(self, path: Path, descriptor: int) -> OsFile:
        return OsFile(path, descriptor)


def describe_os_error(error: OSError) -> str:
    """Return the message of the system and the name of the errno."""
    return f"{error.strerror or error} ({errno.errorcode.get(error.errno or 0, 'no errno')})"


@contextmanager
def translate_os_error(error_type: type[LogError], action: str, path: Path) -> Iterator[None]:
    """Raise an OSError of the block as `error_type`, with the action, the file and the errno."""
    try:
        yield
    except OSError as error:
        raise error_type(f"{action} {path} failed: {describe_os_error(error)}") from error


def write_file(
    disk: Disk, path: Path, buffers: Sequence[Buffer], *, is_durable: bool = True
) -> None:
    """Replace a file atomically: a reader finds the old or the new content, whole.

    With `is_durable` the same holds after a power cut. Without it a power cut may leave anything:
    use it for files that have a checksum and can be missed. Raises OSError.
    """
    fresh = path.with_name(f"{path.name}{TEMPORARY_SUFFIX}")
    with suppress(FileNotFoundError):
        disk.remove(fresh)
    file = disk.create(fresh)
    try:
        file.pwritev(buffers, 0)
        if is_durable:  # before the rename: else a power cut may leave the name without the bytes
            file.fsync()
    except OSError:  # on a full disk the unfinished file must not keep the space
        with suppress(OSError):
            disk.remove(fresh)
        raise
    finally:
        file.close()
    failpoint("file.before_replace")
    disk.replace(fresh, path)
    failpoint("file.after_replace")
    if is_durable:
        disk.fsync_dir(path.parent)
