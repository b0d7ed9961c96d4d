"""Files whose names come from outside, and files of one user only.

Files with names from outside are opened only if they are regular files: opening a FIFO waits until
something writes to it, and a device may be read for ever. Files of servers are for their owner
only, whatever the umask.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def open_regular(path: Path, flags: int, mode: int = FILE_MODE) -> int:
    """Return a descriptor of a file, as `os.open` does, at once.

    Raises OSError, also for what is no regular file.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return descriptor


def read_regular(path: Path, bytes_max: int) -> bytes:
    """Return what is in a file. Raises OSError, also for one of more than `bytes_max` bytes."""
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise OSError(errno.EFBIG, f"it has more than {bytes_max} bytes", str(path))
    return data


def open_private(path: Path, flags: int) -> int:
    """Return a descriptor of a file that is made if it is missing, for its owner only.

    Raises OSError, also for a symbolic link and for what is no regular file.
    """
    descriptor = open_regular(path, flags | os.O_CREAT | os.O_NOFOLLOW)
    if os.fstat(descriptor).st_mode & FILE_MODE != FILE_MODE:  # an unusual umask
        with suppress(OSError):  # another user's, which may be written to
            os.fchmod(descriptor, FILE_MODE)
    return descriptor


def tighten(paths: Iterable[Path]) -> int:
    """Take from other users what they may do with files and folders of this user.

    No link is followed. Return how many were changed; those that cannot be are left as they are.
    """
    return sum(map(_was_tightened, paths))


def _was_tightened(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        found = os.fstat(descriptor)
        is_ours = found.st_uid == os.geteuid()
        is_kept = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
        if not (is_ours and is_kept and found.st_mode & _OTHERS):
            return False
        os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & ~_OTHERS)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
