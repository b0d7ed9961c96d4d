"""The host port: what a range server says of the machine that it runs on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Protocol

_STATM: Final = Path("/proc/self/statm")
_RESIDENT_FIELD: Final = 1
"""Its second number: resident pages."""


class HostProbe(Protocol):
    """Where a range server looks at its machine. May wait for a disk."""

    def disk_free_bytes(self, folder: Path) -> int:
        """Return what this process may still write to the disk of `folder`. Raises OSError."""

    def memory_used_bytes(self) -> int:
        """Return the resident memory of this process. Raises OSError."""


class LinuxProbe:
    """The machine itself."""

    def disk_free_bytes(self, folder: Path) -> int:
        """Return the free space of the file system of `folder`, without the reserve of root."""
        status = os.statvfs(folder)
        return status.f_bavail * status.f_frsize

    def memory_used_bytes(self) -> int:
        """Return the resident set of this process."""
        pages = int(_STATM.read_text(encoding="ascii").split()[_RESIDENT_FIELD])
        return pages * os.sysconf("SC_PAGE_SIZE")
