"""Authorities of a test's own, and the certificates that they issue, as files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from sbp_core.tls import ServerTls, Tls


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
