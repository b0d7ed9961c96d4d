"""A real disk whose syncs wait until the test lets them go."""

from __future__ import annotations

import threading
from pathlib import Path

from sbp_core.log.disk import DiskFile, OsDisk


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
