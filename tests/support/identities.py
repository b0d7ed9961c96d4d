"""An issuer of tokens of a test's own."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority

from sbp_core.access.keys import new_key, sign

ISSUER = "https://id.example.org"
AUDIENCE = "sbp"


@dataclass
class Issuer:
    """Signs tokens with one key for each algorithm; its set is in `jwks_file`."""

    folder: Path
    algorithms: tuple[str, ...] = ("EdDSA",)
    private: dict[str, dict[str, Any]] = field(default_factory=dict)
    public: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for algorithm in self.algorithms:
            self.private[algorithm], public = new_key(algorithm)
            self.public.append(public)
        self.jwks_file = self.folder / "jwks.json"
        self.jwks_file.write_bytes(self.jwks)

    @property
    def jwks(self) -> bytes:
        return json.dumps({"keys": self.public}).encode()

    def claims(self, subject: object = "etl", *, seconds: float = 600, **other: Any) -> dict:
        """Return what a good token says; a value of None is left out."""
        now = int(time.time())
        found = {"iss": ISSUER, "aud": AUDIENCE, "sub": subject, "exp": now + seconds} | other
        return {name: value for name, value in found.items() if value is not None}

    def sign(self, payload: bytes, algorithm: str | None = None) -> bytes:
        return sign(self.private[algorithm or self.algorithms[0]], payload).encode()

    def token(self, subject: object = "etl", algorithm: str | None = None, **claims: Any) -> bytes:
        """Return a token, a good one unless `claims` say otherwise."""
        return self.sign(json.dumps(self.claims(subject, **claims)).encode(), algorithm)


@contextlib.contextmanager
def serving_keys(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list]]:
    """Serve `answers`, each a status, its headers and a body, at a URL of https; yield both."""
    authority = Authority(folder / "https")
    pair = authority.issue("localhost")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca_file))
    answers: list[tuple[int, dict[str, str], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = answers.pop(0)
            self.send_response(status)
            for each in headers.items():
                self.send_header(*each)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert_file, pair.key_file)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"https://localhost:{server.server_port}", answers
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
