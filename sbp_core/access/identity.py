"""The authenticated identity of a peer.

The subject of a certificate is a distinguished name (RFC 4514, such as `CN=billing,O=Acme`). That
of a token is its `sub`, in which no `=` is accepted. So neither can be taken for the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SUBJECT_LENGTH_MAX: Final = 256
"""Characters of the subject of a token."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A subject, and whether it is an administrator or a server of the cluster.

    `expires_at_ms` is when it ends, in ms since the epoch, UTC; None for that of a certificate,
    which ends with its connection.
    """

    subject: str
    is_admin: bool = False
    is_server: bool = False
    expires_at_ms: int | None = None

    def __str__(self) -> str:
        return self.subject

    def has_ended(self, now_ms: int) -> bool:
        """Whether it is over at a time in ms since the epoch."""
        return self.expires_at_ms is not None and self.expires_at_ms <= now_ms


def is_token_subject(text: object) -> bool:
    """Whether a value can be the subject of a token."""
    return (
        isinstance(text, str)
        and 0 < len(text) <= SUBJECT_LENGTH_MAX
        and text.isprintable()
        and text == text.strip()
        and "=" not in text
    )


def subject_of_certificate(certificate: bytes) -> str:
    """Return the subject of a certificate in DER or PEM, the first one of a chain; RFC 4514.

    The most specific part is first, as `openssl x509 -subject -nameopt RFC2253` has it. It is
    empty for a certificate that names its owner in its alternative names only. Raises ValueError
    for what is no certificate.
    """
    from cryptography import x509

    is_pem = certificate.lstrip().startswith(b"-----BEGIN")
    load = x509.load_pem_x509_certificate if is_pem else x509.load_der_x509_certificate
    name = load(certificate).subject
    return name.rfc4514_string({x509.NameOID.EMAIL_ADDRESS: "emailAddress"})
