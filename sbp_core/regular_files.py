"""Files whose names come from outside: opened only if they are regular files.

Opening a FIFO waits until something writes to it, and a device may be read for ever.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def open_regular(path: Path, flags: int, mode: int = 0o600) -> int:
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
