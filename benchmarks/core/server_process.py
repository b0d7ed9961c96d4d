"""An `sbp` command that serves, as a user runs it, to be killed and started again."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

from benchmarks.harness.model import BenchmarkError
from sbp_core.processes import COMMAND

START_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.01


class Served:
    """One `sbp` command that serves on a port of its own, with other `words`."""

    def __init__(self, folder: Path, command: str, port: int, *words: str) -> None:
        self.endpoint = f"127.0.0.1:{port}"
        self._ready_path = folder / f"{command}-{port}.json"
        self._words = [*COMMAND, command, "--port", str(port), *words]
        self._words += ["--ready-file", str(self._ready_path)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether it was started, and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id, once it was started."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start, and return when it serves. Raises BenchmarkError if it does not."""
        self._ready_path.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            self._words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        give_up_at = time.monotonic() + START_SECONDS
        while not self._is_ready():
            if time.monotonic() > give_up_at or not self.is_running:
                raise BenchmarkError(f"{self.endpoint} does not start; its log is above")
            time.sleep(POLL_SECONDS)

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def end(self, number: signal.Signals) -> None:
        """Send a signal that ends the process, and wait for its end."""
        assert self._process is not None
        assert self._process.stdin is not None
        self.send(number)
        self._process.wait()
        self._process.stdin.close()

    def _is_ready(self) -> bool:
        try:
            return bool(json.loads(self._ready_path.read_text()))
        except (FileNotFoundError, ValueError):
            return False


class Server(Served):
    """A placement driver or a range server, on a data directory. It ends with its parent."""

    def __init__(self, folder: Path, command: str, port: int, *words: str) -> None:
        words += ("--data-dir", str(folder / str(port)), "--until-stdin-closes")
        super().__init__(folder, command, port, *words)
