"""A file that events are appended to as lines: the audit trail, and the log."""

from __future__ import annotations

import errno
import logging
import os
import queue
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from sbp_core import limits
from sbp_core.log.disk import describe_os_error
from sbp_core.regular_files import open_private

_LOG: Final = logging.getLogger(__name__)
_QUEUED_MAX: Final = 10_000
"""Events that wait for the disk; beyond it they are lost, and counted."""


class LineFile(logging.Handler):
    """Appends each event to a file, in a thread of its own: a slow disk holds up no request.

    A line is written with one call, so that several processes can share the file. While it cannot
    be written, which is logged once, events are lost, and counted.
    """

    def __init__(self, path: Path, *, queued_max: int = _QUEUED_MAX) -> None:
        """Open the file, or make it. Raises OSError."""
        super().__init__()
        self._path = path
        self._lines: queue.Queue[bytes | None] = queue.Queue(queued_max)
        self._unsent_count = 0
        """Events that the queue had no room for; only `emit` counts, under the handler's lock."""
        self._unsent_reported = self._failed_count = 0
        self._is_failing = False
        self._is_line_open = False
        self._is_reopening = threading.Event()
        self._descriptor = self._open()
        self._thread = threading.Thread(target=self._run, name="line-file", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Hand an event to the thread; it is lost if that is far behind."""
        try:
            self._lines.put_nowait(self.format(record).encode(errors="replace") + b"\n")
        except queue.Full:
            self._unsent_count += 1
        except Exception:  # noqa: BLE001 - a logging handler fails none of its callers
            self.handleError(record)

    def reopen(self) -> None:
        """Open the file again before the next event, as after it was moved away."""
        self._is_reopening.set()

    def close(self) -> None:
        """Write what is left, for some seconds at most, and close the file. Idempotent."""
        if self._thread.is_alive():
            with suppress(queue.Full):
                self._lines.put(None, timeout=limits.DRAIN_TIMEOUT_MS / 1000)
            self._thread.join(limits.DRAIN_TIMEOUT_MS / 1000)
        super().close()

    def _open(self) -> int:
        return open_private(self._path, os.O_WRONLY | os.O_APPEND)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._append(line)
            except OSError as error:
                self._failed_count += 1
                self._is_reopening.set()
                if not self._is_failing:
                    self._is_failing = True
                    _LOG.error(
                        "events are lost file=%s: it cannot be written, %s; free or repair it",
                        *(self._path, describe_os_error(error)),
                    )
            else:
                self._note_success()
        os.close(self._descriptor)

    def _note_success(self) -> None:
        unsent = self._unsent_count
        lost = self._failed_count + unsent - self._unsent_reported
        if lost:
            _LOG.warning("events are written again file=%s lost=%d", self._path, lost)
        self._failed_count, self._unsent_reported, self._is_failing = 0, unsent, False

    def _append(self, line: bytes) -> None:
        if self._is_reopening.is_set() or self._was_moved():
            is_another = self._was_moved()
            descriptor = self._open()
            self._is_reopening.clear()
            os.close(self._descriptor)
            self._descriptor = descriptor
            self._is_line_open = self._is_line_open and not is_another
        data = b"\n" + line if self._is_line_open else line
        written = os.write(self._descriptor, data)
        self._is_line_open = 0 < written < len(data) or (self._is_line_open and not written)
        if written < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _was_moved(self) -> bool:
        """Whether the path is another file by now: other processes get no signal of ours."""
        try:
            found = self._path.lstat()
        except FileNotFoundError:
            return True
        own = os.fstat(self._descriptor)
        return (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino)
