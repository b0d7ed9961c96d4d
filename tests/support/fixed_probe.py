"""A machine whose disk is as free as the test says."""

from __future__ import annotations

from pathlib import Path


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
