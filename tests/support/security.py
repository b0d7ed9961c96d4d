"""Certificates, tokens and identities of a test's own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from sbp_core.access.identity import Identity, subject_of_certificate
from sbp_core.access.keys import new_key, sign
from sbp_core.client import AsyncClient, Connecting, RetryPolicy
from sbp_core.cluster import Cluster
from sbp_core.errors import PermissionDeniedError, SbpError, UnauthenticatedError
from sbp_core.server.dispatch import Dispatcher
from sbp_core.session.negotiation import identity_offer, maybe_identity_end
from sbp_core.settings.server_settings import ClusterSettings
from sbp_core.tls import ServerTls, Tls
from sbp_core.wire.headers import (
    REQUEST_TABLES,
    ClientRole,
    HeartbeatRequest,
    HeartbeatResponse,
    decode_header,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import check_status


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    cert_file: Path
    key_file: Path

    def replace_with(self, other: Pair) -> None:
        """Put other files in the place of these, as an operator does: each in one step."""
        for old, new in ((self.cert_file, other.cert_file), (self.key_file, other.key_file)):
            fresh = old.with_suffix(".new")
            fresh.write_bytes(new.read_bytes())
            fresh.replace(old)


class Authority:
    """A certificate authority whose files are in `folder`."""

    def __init__(self, folder: Path, authority: trustme.CA | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._authority = authority or trustme.CA()
        self._count = 0
        self.ca_file = folder / "ca.pem"
        self._authority.cert_pem.write_to_path(str(self.ca_file))

    def issue(self, *names: str, **options: Any) -> Pair:
        """Return a new certificate for these names, 127.0.0.1 and localhost if there are none."""
        issued = self._authority.issue_cert(*(names or ("127.0.0.1", "localhost")), **options)
        self._count += 1
        pair = Pair(self._folder / f"{self._count}.pem", self._folder / f"{self._count}.key")
        pair.cert_file.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(pair.key_file))
        return pair

    def issue_child(self, folder: Path) -> Authority:
        """Return an authority that this one vouches for."""
        return Authority(folder, self._authority.create_child_ca())

    def issue_expired(self) -> Pair:
        """Return a certificate that is not valid any longer."""
        return self.issue(not_after=datetime.now(UTC) - timedelta(days=1))

    def issue_for(self, usage: x509.ObjectIdentifier) -> Pair:
        """Return a certificate for one usage only (RFC 5280, section 4.2.1.12)."""
        return self._issue_anew(None, x509.ExtendedKeyUsage([usage]))

    def issue_as(self, other: Pair) -> Pair:
        """Return a certificate with the subject of another one, which may be of any authority."""
        (like,) = x509.load_pem_x509_certificates(other.cert_file.read_bytes())
        return self._issue_anew(like.subject, None)

    def _issue_anew(self, subject: x509.Name | None, usage: x509.ExtendedKeyUsage | None) -> Pair:
        pair = self.issue()
        (like,) = x509.load_pem_x509_certificates(pair.cert_file.read_bytes())
        builder = x509.CertificateBuilder(
            like.issuer,
            subject or like.subject,
            like.public_key(),
            x509.random_serial_number(),
            like.not_valid_before_utc,
            like.not_valid_after_utc,
        )
        for each in like.extensions:
            if not isinstance(each.value, x509.ExtendedKeyUsage):
                builder = builder.add_extension(each.value, each.critical)
        if usage is not None:
            builder = builder.add_extension(usage, critical=False)
        key: Any = load_pem_private_key(self._authority.private_key_pem.bytes(), None)
        signed = builder.sign(key, hashes.SHA256())
        pair.cert_file.write_bytes(signed.public_bytes(Encoding.PEM))
        return pair

    def server(self, pair: Pair | None = None, *, client_ca_file: Path | None = None) -> ServerTls:
        """Return the files of a server."""
        pair = pair or self.issue()
        return ServerTls(pair.cert_file, pair.key_file, self.ca_file, client_ca_file)

    def client(self, pair: Pair | None = None) -> Tls:
        """Return the files of a client, without a certificate unless there is a `pair`."""
        if pair is None:
            return Tls(self.ca_file)
        return Tls(self.ca_file, pair.cert_file, pair.key_file)


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
def serving_keys(folder: Path) -> Iterator[tuple[str, list, Path]]:
    """Serve `answers`, each a status, its headers and a body, at a URL of https; then status 503.

    Yields the URL, the answers, and the authority of the server.
    """
    authority = Authority(folder / "https")
    pair = authority.issue("localhost")
    answers: list[tuple[int, dict[str, str], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = answers.pop(0) if answers else (503, {}, b"")
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
        yield f"https://localhost:{server.server_port}", answers, authority.ca_file
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Identities:
    """Gives each identity a loopback address, and the connections from there that identity."""

    def __init__(self, monkeypatch):
        self._by_address = {}
        begin = Dispatcher.begin

        def begin_as(dispatcher, frame, peer, **more):
            host = peer.name.rpartition(":")[0]
            peer.standing.identity = self._by_address.get(host)
            return begin(dispatcher, frame, peer, **more)

        monkeypatch.setattr(Dispatcher, "begin", begin_as)

    def address_of(self, subject, **fields):
        """Return the address of an identity."""
        address = f"127.0.3.{len(self._by_address) + 1}"
        self._by_address[address] = Identity(subject, **fields)
        return address


ONCE = RetryPolicy(budget_ms=1)


def admin_of(authority: Authority) -> Pair:
    """Return the certificate of an administrator, of whom the tests have one for each authority."""
    if "admin" not in vars(authority):
        authority.admin = authority.issue(common_name="alice")
    return authority.admin


def identified_settings(authority: Authority, issuer: Issuer, folder: Path) -> ClusterSettings:
    """Return the settings of a cluster with the administrators `alice` and `admin_of`."""
    pair = authority.issue("127.0.0.1", "localhost", common_name="node1")
    admin = subject_of_certificate(admin_of(authority).cert_file.read_bytes())
    return ClusterSettings(
        data_dir=folder,
        pd_port=0,
        range_server_port=0,
        tls_cert_file=pair.cert_file,
        tls_key_file=pair.key_file,
        tls_ca_file=authority.ca_file,
        auth_admins=("alice", admin),
        auth_jwks_file=issuer.jwks_file,
        auth_issuer=ISSUER,
        auth_audience=AUDIENCE,
    )


@contextlib.asynccontextmanager
async def served(settings):
    cluster = Cluster(settings)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()


def run(body):
    asyncio.run(asyncio.wait_for(body, 60))


@contextlib.asynccontextmanager
async def connected(endpoint, tls, **options):
    connecting = Connecting(tls=tls, **options)
    async with AsyncClient(endpoint, connecting=connecting, retry=ONCE) as client:
        yield client


async def greet(client, endpoint, token, role=ClientRole.CLIENT):
    """Send a HEARTBEAT with a token; return when the identity ends. Raises why it is refused."""
    offered = () if token is None else (identity_offer(token),)
    request = HeartbeatRequest(client_id="c", client_role=role, features=offered)
    frames = await client.call(endpoint, Opcode.HEARTBEAT, request)
    answer = decode_header(HeartbeatResponse, frames[-1].header)
    check_status(answer.status)
    return maybe_identity_end(answer.features)


async def outcome(client, endpoint, opcode):
    """Why an empty request is refused by the gate; None if it passes."""
    try:
        await client.call(endpoint, opcode, REQUEST_TABLES[opcode]())
    except (UnauthenticatedError, PermissionDeniedError) as error:
        return type(error)
    except SbpError:
        return None
    return None


def identity_of_client(cluster):
    """The identity of the only client of the placement driver, and its connection there."""
    (peer,) = (
        each
        for each in cluster._placement_driver._listener._peers
        if each.standing.identity is not None and not each.standing.identity.is_server
    )
    return peer.standing
