"""`sbp http` and `sbp console` as processes, a browser, and a server of S3."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, ClassVar, Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

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


BUCKET = "bucket"
KEY_ID = "test-key-id"
SECRET = "test-secret-of-this-key"
_PAGE = 2
_TIME = "2026-01-01T00:00:00.000Z"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: LocalS3

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self._is_allowed():
            self.server.objects[self._key] = data
            self._answer(200, b"", ETag=_tag(data))

    def do_GET(self) -> None:
        if not self._is_allowed():
            return
        if not self._key:
            self._answer(200, self._listed())
        elif self._key in self.server.objects:
            data = self.server.objects[self._key]
            self._answer(200, data, ETag=_tag(data), **{"Last-Modified": self.date_time_string(0)})
        else:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if self._is_allowed():
            keys = re.findall(r"<Key>(.*?)</Key>", body)
            for key in keys:
                self.server.objects.pop(unescape(key), None)
            deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            self._answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    @property
    def _key(self) -> str:
        """The object of the request, empty for the bucket."""
        return unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}").removeprefix("/")

    def _is_allowed(self) -> bool:
        is_allowed = f"Credential={KEY_ID}/" in self.headers.get("Authorization", "")
        if not is_allowed:
            self._answer(403, b"<Error><Code>AccessDenied</Code></Error>")
        return is_allowed

    def _listed(self) -> bytes:
        query = parse_qs(urlsplit(self.path).query)
        (prefix,), (after,) = query.get("prefix", [""]), query.get("continuation-token", [""])
        found = sorted(key for key in self.server.objects if key.startswith(prefix) and key > after)
        page, rest = found[:_PAGE], found[_PAGE:]
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{_TIME}</LastModified>"
            f"<ETag>{_tag(self.server.objects[key])}</ETag>"
            f"<Size>{len(self.server.objects[key])}</Size></Contents>"
            for key in page
        )
        more = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if rest else ""
        is_cut = "true" if rest else "false"
        return (
            f"<ListBucketResult><Name>{BUCKET}</Name><KeyCount>{len(page)}</KeyCount>"
            f"<IsTruncated>{is_cut}</IsTruncated>{more}{contents}</ListBucketResult>"
        ).encode()

    def _answer(self, code: int, body: bytes, **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class LocalS3(ThreadingHTTPServer):
    """The server; `objects` by key."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a process uses the server."""
        return {
            "AWS_ENDPOINT": f"http://127.0.0.1:{self.server_port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "local",
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }


def _tag(data: bytes) -> str:
    return f'"{md5(data, usedforsecurity=False).hexdigest()}"'


@contextmanager
def local_s3() -> Iterator[LocalS3]:
    """Run a server, with one bucket."""
    with LocalS3() as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
