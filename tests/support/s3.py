"""A server of S3 with one bucket, as much of it as obstore and PyArrow use. It can fail."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from itertools import count
from threading import Thread
from typing import IO
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

BUCKET = "bucket"
KEY_ID = "test-key-id"
SECRET = "test-secret-of-this-key"
_PAGE = 2
_TIME = "2026-01-01T00:00:00.000Z"
_SLOW_SECONDS = 4.0
"""Longer than the 3 s that PyArrow waits for an answer."""


class S3Fault(Enum):
    """The harm that the server does to a request."""

    REFUSED = "refused"
    """It answers that it is too busy."""
    CUT = "cut"
    """It closes the connection, and does nothing."""
    UNTOLD = "untold"
    """It does what it is asked for, and closes the connection."""
    SLOW = "slow"
    """It does so, and answers after the client has given up."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: LocalS3

    def do_PUT(self) -> None:
        body = self._body()
        fault = self.server.fault_of(self.command)
        if fault is S3Fault.REFUSED:
            self._answer(503, b"<Error><Code>SlowDown</Code></Error>")
        elif fault is not S3Fault.CUT:
            is_allowed = f"Credential={KEY_ID}/" in self.headers.get("Authorization", "")
            denied = 403, b"<Error><Code>AccessDenied</Code></Error>", {}
            code, content, headers = self._do(body) if is_allowed else denied
            if fault is S3Fault.SLOW:
                self.server.is_closing.wait(_SLOW_SECONDS)
            if fault is None:
                self._answer(code, content, **headers)
        self.close_connection = self.close_connection or fault is not None

    do_GET = do_HEAD = do_POST = do_DELETE = do_PUT  # noqa: N815 - the base class's names

    def _do(self, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        objects, key, query = self.server.objects, self._key, self._query
        upload = self.server.uploads.get(query.get("uploadId", ""))
        if self.command == "PUT" and upload is not None:
            upload[int(query["partNumber"])] = body
            return 200, b"", {"ETag": _tag(body)}
        if self.command == "PUT":
            objects[key] = body
            return 200, b"", {"ETag": _tag(body)}
        if self.command == "DELETE":
            objects.pop(key, None)
            return 204, b"", {}
        if self.command == "POST" and "uploads" in query:
            return 200, self.server.new_upload(), {}
        if self.command == "POST" and upload is not None:
            numbers = map(int, re.findall(r"<PartNumber>(\d+)<", body.decode()))
            objects[key] = b"".join(upload[each] for each in numbers)
            tag = _tag(objects[key])
            return 200, _xml("CompleteMultipartUploadResult", f"<ETag>{escape(tag)}</ETag>"), {}
        if self.command == "POST":
            keys = re.findall(r"<Key>(.*?)</Key>", body.decode())
            for each in keys:
                objects.pop(unescape(each), None)
            deleted = "".join(f"<Deleted><Key>{each}</Key></Deleted>" for each in keys)
            return 200, _xml("DeleteResult", deleted), {}
        if not key:
            return 200, self._listed(), {}
        if key not in objects:
            return 404, b"<Error><Code>NoSuchKey</Code></Error>", {}
        return self._read(objects[key])

    def _read(self, data: bytes) -> tuple[int, bytes, dict[str, str]]:
        headers = {"ETag": _tag(data), "Last-Modified": self.date_time_string()}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is None:
            return 200, data, headers
        start, end = int(asked[1]), min(int(asked[2] or len(data)) + 1, len(data))
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        return 206, data[start:end], headers

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = _unchunked(self.rfile)
        is_again = self.headers.get("Content-Encoding") == "aws-chunked"
        return _unchunked(BytesIO(body)) if is_again else body

    @property
    def _key(self) -> str:
        """The object of the request, empty for the bucket."""
        return unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}").removeprefix("/")

    @property
    def _query(self) -> dict[str, str]:
        found = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        return {name: values[0] for name, values in found.items()}

    def _listed(self) -> bytes:
        prefix, after = self._query.get("prefix", ""), self._query.get("continuation-token", "")
        objects = dict(self.server.objects)
        found = sorted(key for key in objects if key.startswith(prefix) and key > after)
        page, rest = found[:_PAGE], found[_PAGE:]
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{_TIME}</LastModified>"
            f"<ETag>{_tag(objects[key])}</ETag>"
            f"<Size>{len(objects[key])}</Size></Contents>"
            for key in page
        )
        more = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if rest else ""
        is_cut = "true" if rest else "false"
        counts = f"<KeyCount>{len(page)}</KeyCount><IsTruncated>{is_cut}</IsTruncated>"
        return _xml("ListBucketResult", f"<Name>{BUCKET}</Name>{counts}{more}{contents}")

    def _answer(self, code: int, body: bytes, **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class LocalS3(ThreadingHTTPServer):
    """The server; `objects` by key. `fault_of` decides by its method what happens to a request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.is_closing = threading.Event()
        self.fault_of: Callable[[str], S3Fault | None] = well
        self._numbers = count()

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

    def new_upload(self) -> bytes:
        """Begin an upload of several parts, and return the answer that names it."""
        name = str(next(self._numbers))
        self.uploads[name] = {}
        return _xml("InitiateMultipartUploadResult", f"<UploadId>{name}</UploadId>")

    def handle_error(self, *_: object) -> None:
        """Print nothing: a client that was killed is no failure of the server."""


def well(method: str) -> None:
    """Let a request be answered well."""


def _xml(name: str, content: str) -> bytes:
    return f"<{name}>{content}</{name}>".encode()


def _unchunked(file: IO[bytes]) -> bytes:
    parts = []
    while size := int(file.readline().partition(b";")[0], 16):
        parts.append(file.read(size))
        file.readline()
    while file.readline().strip():
        pass  # a checksum
    return b"".join(parts)


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
            server.is_closing.set()
            server.shutdown()
            thread.join()
