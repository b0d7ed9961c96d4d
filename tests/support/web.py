"""`sbp http` and `sbp console` as processes, and a browser."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

import httpx
import pyarrow as pa
import pytest

from sbp_core.client import Client
from sbp_core.processes import COMMAND
from sbp_core.records import StreamSchema
from tests.support.warm import WarmProcess, sbp

if TYPE_CHECKING:
    from playwright.sync_api import Browser


TIMEOUT_SECONDS = 60


class GatewayProcess:
    """A process that serves clients of its own, as a client of the cluster at `endpoint`.

    `word` is its command. It has a free port, which it keeps when it is started again after `kill`.
    """

    word: ClassVar[str]

    def __init__(self, folder: Path, endpoint: str, *options: str) -> None:
        self._ready_path = folder / f"{self.word}.json"
        self._command = [*COMMAND, self.word, "--endpoint", endpoint, *options]
        self.port = 0
        self.start()

    def start(self) -> None:
        """Start the process, and wait until it serves."""
        ready = ("--ready-file", str(self._ready_path))
        self.process = WarmProcess(
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
        self.address = json.loads(self._ready_path.read_text())[self.word]
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

    @classmethod
    @contextmanager
    def serving(cls, folder: Path, endpoint: str, *options: str) -> Iterator[Self]:
        """Run the process."""
        made = cls(folder, endpoint, *options)
        try:
            yield made
        finally:
            made.process.kill()
            made.process.communicate()


class HttpProcess(GatewayProcess):
    """`sbp http`."""

    word = "http"


serving_http = HttpProcess.serving


@contextmanager
def http_client(served: HttpProcess, **options: object) -> Iterator[httpx.Client]:
    """Return a client of the process, which asks no proxy."""
    url = f"http://{served.address}"
    with httpx.Client(base_url=url, timeout=TIMEOUT_SECONDS, trust_env=False, **options) as client:
        yield client


ARROW = "application/vnd.apache.arrow.stream"
names = (f"s{number}" for number in itertools.count())


TYPED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("tags", pa.list_(pa.string())),
    ]
)


def register(cluster, path, schema):
    with Client(cluster.endpoint) as client:
        (info,) = client.describe_streams([path.rpartition("/")[2]])
        client.evolve_schema(info.stream_id, StreamSchema.of(schema), may_change=True)


def post(http, path, content, kind="application/x-ndjson", **headers):
    answer = http.post(f"{path}/records", content=content, headers={"Content-Type": kind} | headers)
    return answer.status_code, answer.json()


def lines(*values):
    return "".join(json.dumps(each) + "\n" for each in values)


def read(http, path, **parameters):
    """Return the records as they are in the lines."""
    answer = http.get(f"{path}/records", params=parameters)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.content.split(b"\n")[:-1]]


def values(http, path, **parameters):
    return [each["value"] for each in read(http, path, **parameters)]


def problem(answer, status, name):
    """Check that an answer is a problem; return it."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found = answer.json()
    assert (found["status"], found["type"]) == (status, f"urn:sbp:problem:{name}")
    assert found["outcome"] == "not applied"
    return found


def arrow(batch):
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def read_arrow(http, path, **parameters):
    answer = http.get(f"{path}/records", params=parameters, headers={"Accept": ARROW})
    assert answer.status_code == 200, answer.text
    return pa.ipc.open_stream(answer.content).read_all(), answer.headers


needs_chromium = pytest.mark.skipif(
    shutil.which("chromium") is None and "CI" not in os.environ,
    reason="chromium is missing: install it, e.g. `apt-get install chromium`",
)
"""Skips a test on a machine without Chromium. It fails in CI, where it has to be there."""


@contextlib.contextmanager
def serving_console(endpoint: str, *words: str) -> Iterator[str]:
    """Run `sbp console` for the cluster at an endpoint; yield its URL."""
    words = ("--endpoint", endpoint, "--port", "0", *words)
    process = sbp("console", *words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("console "), "it ended; its error is above"
        yield line.split()[-1]
    finally:
        process.terminate()
        assert process.wait(60) == 0


@contextlib.contextmanager
def browsing() -> Iterator[Browser]:
    """Run Chromium without a window."""
    from playwright.sync_api import sync_playwright

    options = ["--no-sandbox"] if os.geteuid() == 0 else []  # root has no sandbox
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        yield browser
        browser.close()
