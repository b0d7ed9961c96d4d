"""A server of S3 on this machine, of what object_store asks for, for tests of object storage.

It keeps objects in memory, and lists in pages of two. A request needs a signature with the key of
the tests, which is not verified.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

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
