"""`sbp http` as a process of its own, for tests from outside."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

_HTTP = [sys.executable, "-m", "sbp_core.cli.main", "http"]
TIMEOUT_SECONDS = 60


class HttpProcess:
    """A process that serves records of the cluster at `endpoint` over HTTP.

    It has a free port, which it keeps when it is started again after `kill`.
    """

    def __init__(self, folder: Path, endpoint: str, *options: str) -> None:
        self._ready_path = folder / "http.json"
        self._command = [*_HTTP, "--endpoint", endpoint, *options]
        self.port = 0
        self.start()

    def start(self) -> None:
        """Start the process, and wait until it serves."""
        ready = ("--ready-file", str(self._ready_path))
        self.process = subprocess.Popen(
            [*self._command, "--port", str(self.port), *ready],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("serving"):
                break
        else:
            raise AssertionError(self.process.communicate(timeout=TIMEOUT_SECONDS)[1])
        self.address = json.loads(self._ready_path.read_text())["http"]
        self.port = int(self.address.rpartition(":")[2])

    def end(self, signal_number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; return the exit code and what was logged."""
        self.process.send_signal(signal_number)
        errors = self.process.communicate(timeout=TIMEOUT_SECONDS)[1]
        return self.process.returncode, errors

    def peak_bytes(self) -> int:
        """Return the most memory that the process has had, so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = (each for each in status.splitlines() if each.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024


@contextmanager
def serving_http(folder: Path, endpoint: str, *options: str) -> Iterator[HttpProcess]:
    """Run the process."""
    made = HttpProcess(folder, endpoint, *options)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.communicate()


@contextmanager
def http_client(served: HttpProcess, **options: object) -> Iterator[httpx.Client]:
    """Return a client of the process, which asks no proxy."""
    url = f"http://{served.address}"
    with httpx.Client(base_url=url, timeout=TIMEOUT_SECONDS, trust_env=False, **options) as client:
        yield client
