"""The logs of this user's running servers on this machine, where its clients look them up.

A server names its log in answers (SPEC "FETCH", places). A client opens no folder because a server
names it: this registry says which folder belongs to the instance of a log. Both ends agree on it
without any setting, and only processes of the same user can write to it.

It is the folder /tmp/sbp-UID, of mode 0700, with a symbolic link for each running server: the name
is the instance, the target is the folder of the log. The environment does not decide where it is,
since that of a server and of its clients may differ.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final

from sbp_core.regular_files import DIRECTORY_MODE

FOLDERS_VARIABLE: Final = "SBP_LOCAL_FOLDERS"
"""Folders below which a client reads logs, instead of those in the registry."""
_PARENT: Final = Path("/tmp")  # noqa: S108 - the mode and the owner of the folder are checked
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY


def registry_path() -> Path:
    """Return the folder of this user."""
    return _PARENT / f"sbp-{os.geteuid()}"


class Registration:
    """A log that clients of this user find while the server runs."""

    def __init__(self, directory: str, instance: str) -> None:
        """Register the log in `directory`. Raises OSError."""
        self._instance = instance
        with suppress(FileExistsError):
            registry_path().mkdir(mode=DIRECTORY_MODE)
        registry = _opened()
        self._close = weakref.finalize(self, os.close, registry)
        # Programs that clean /tmp of old files leave out a locked folder (tmpfiles.d(5)).
        fcntl.flock(registry, fcntl.LOCK_SH)
        _clean(registry, directory)
        os.symlink(directory, instance, dir_fd=registry)
        self._registry = registry

    def end(self) -> None:
        """Let no client find the log any longer. Idempotent."""
        if self._close.alive:
            with suppress(OSError):
                os.unlink(self._instance, dir_fd=self._registry)
            self._close()


def registered_log(instance: str) -> str:
    """Return the folder of the log of a running server of this user.

    `instance` must be the name of a file. Raises OSError if there is none, or if others may have
    written to the registry.
    """
    registry = _opened()
    try:
        return os.readlink(instance, dir_fd=registry)
    finally:
        os.close(registry)


def _opened() -> int:
    """Return a descriptor of the registry. Raises OSError if it is not this user's alone."""
    descriptor = os.open(registry_path(), _FLAGS)
    found = os.fstat(descriptor)
    if found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return descriptor
    os.close(descriptor)
    raise PermissionError(errno.EPERM, "other users may use it", str(registry_path()))


def _clean(registry: int, directory: str) -> None:
    """Remove what servers left that were killed: one had the folder, or the folder is gone."""
    for name in os.listdir(registry):
        with suppress(OSError):
            target = os.readlink(name, dir_fd=registry)
            if target == directory or not os.path.lexists(target):
                os.unlink(name, dir_fd=registry)
