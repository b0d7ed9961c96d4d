"""The authenticated identity of a peer.

The subject of a certificate is a distinguished name (RFC 4514, such as `CN=billing,O=Acme`). That
of a token is its `sub`, in which no `=` is accepted. So neither can be taken for the other.

Subjects are compared in one form, which `canonical_subject` makes of what people write, and
`subject_of_certificate` of a certificate: no spaces around separators, types as below, only those
characters escaped that have to be, and the parts of a multi-valued one in their order. The order of
the others matters, and so do upper and lower case in values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

SUBJECT_LENGTH_MAX: Final = 256
"""Characters of the subject of a token."""

_TYPES: Final = {
    "2.5.4.3": "CN",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.6": "C",
    "2.5.4.9": "STREET",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
    "1.2.840.113549.1.9.1": "emailAddress",
}
"""The types that are written by name (RFC 4514, section 3), and that of email addresses."""
_READ_TYPES: Final = {name.upper(): oid for oid, name in _TYPES.items()} | {
    "SERIALNUMBER": "2.5.4.5",
    "SN": "2.5.4.4",
    "GN": "2.5.4.42",
    "TITLE": "2.5.4.12",
}
"""The types that are read by name, among them what OpenSSL shows for others."""
_PART: Final = re.compile(
    r" *([A-Za-z][A-Za-z\d-]*|(?:0|[1-9]\d*)(?:\.(?:0|[1-9]\d*))+) *="
    r' *+(?!\#)((?:[^\\",+;<>]|\\(?:[\da-fA-F]{2}|[ "#+,;<=>\\]))*)(?:([,+])|$)'
)
"""A type, its value, and what separates it from the next one."""
_SLASHES: Final = re.compile(rf"/(?=(?:{'|'.join(_READ_TYPES)}) *=)", re.IGNORECASE)
"""The slashes between parts, in the form that OpenSSL shows by default."""
_CHARACTER: Final = re.compile(r"\\[\da-fA-F]{2}|\\.|.")


@dataclass(frozen=True, slots=True)
class Identity:
    """A subject, and whether it is an administrator or a server of the cluster.

    `expires_at_ms` is when it ends, in ms since the epoch, UTC; None for that of a certificate,
    which ends with its connection. Where a token counts, `unused_certificate` is the subject of the
    certificate of the same connection, which does not; None if it has none.
    """

    subject: str
    is_admin: bool = False
    is_server: bool = False
    expires_at_ms: int | None = None
    unused_certificate: str | None = None

    def __str__(self) -> str:
        return self.subject

    @property
    def remark(self) -> str:
        """The end of a refusal: which identity counts, if there are two; else nothing."""
        if self.unused_certificate is None:
            return ""
        return (
            f"; the token of {self.subject} counts, and the certificate of"
            f" {self.unused_certificate} is not used beside a token: to use it, connect without one"
        )

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


def canonical_subject(text: str) -> str:
    """Return the form in which the subject of a certificate or of a token is compared.

    Raises ValueError, with the reason and the remedy, for what can be neither.
    """
    if not text.isprintable():
        raise ValueError("it has characters that cannot be printed: escape them (RFC 4514)")
    if "=" in text:
        return _written(_parts_of(text))
    if not is_token_subject(text):
        raise ValueError(
            f"that of a token has 1 to {SUBJECT_LENGTH_MAX} characters, without spaces around it"
        )
    return text


def parse_subject(text: str) -> str:
    r"""Return the canonical form of a subject that a person wrote.

    Raises ValueError as `canonical_subject` does, and for the form that OpenSSL shows by default,
    such as `/O=Acme/CN=alice`. From its first `=` on it would be one value, and match nobody. A
    slash that does belong to a value, before what looks like a type, is written `\2f`.
    """
    parts = _SLASHES.split(text)
    if len(parts) == 1:
        return canonical_subject(text)
    instead = ",".join(each.strip() for each in reversed(parts) if each.strip())
    if any(each in text for each in ',+"\\;<>'):  # they would need escapes
        instead = "it as in CN=alice,O=Acme"
    raise ValueError(
        f"it has the slashes of OpenSSL: write {instead}, the most specific part first, as"
        " `openssl x509 -noout -subject -nameopt RFC2253` shows it; write \\2f for a slash within"
        " a value"
    )


def subject_of_certificate(certificate: bytes) -> str:
    """Return the subject of a certificate in DER or PEM, the first one of a chain; RFC 4514.

    The most specific part is first, as `openssl x509 -subject -nameopt RFC2253` has it. The subject
    is empty for a certificate that names its owner in its alternative names only. Raises ValueError
    for what is no certificate.
    """
    from cryptography import x509

    is_pem = certificate.lstrip().startswith(b"-----BEGIN")
    load = x509.load_pem_x509_certificate if is_pem else x509.load_der_x509_certificate
    rdns = reversed(load(certificate).subject.rdns)
    return _written([(each.oid.dotted_string, each.value) for each in rdn] for rdn in rdns)


def _parts_of(text: str) -> list[list[tuple[str, str | bytes]]]:
    """Return the types and values of a distinguished name, by its parts that `,` separates."""
    parts: list[list[tuple[str, str | bytes]]] = [[]]
    end, separator = 0, ","
    while separator:
        found = _PART.match(text, end)
        if found is None:
            raise ValueError(
                f"{(text[end:].strip() or text)[:40]!a} in it is not TYPE=VALUE: write it as in"
                " CN=alice,O=Acme, the most specific part first, and a backslash before each of"
                ' , + " \\ ; < > in a value'
            )
        name, raw, separator = found.groups()
        oid = _READ_TYPES.get(name.upper(), name)
        if oid == name and not name[0].isdigit():
            raise ValueError(f"its type {name[:40]} is not known: write the number (OID) instead")
        parts[-1].append((oid, _decoded(raw)))
        if separator == ",":
            parts.append([])
        end = found.end()
    return parts


def _decoded(raw: str) -> str:
    """Return a value without its escapes, and without spaces around that are not escaped."""
    characters = _CHARACTER.findall(raw.lstrip(" "))
    while characters and characters[-1] == " ":
        characters.pop()
    pairs = (
        bytes.fromhex(each[1:]) if len(each) > 2 else each[-1:].encode() for each in characters
    )
    try:
        return b"".join(pairs).decode()
    except UnicodeDecodeError as error:
        raise ValueError("its escaped bytes are not UTF-8") from error


def _written(parts: Iterable[Iterable[tuple[str, str | bytes]]]) -> str:
    return ",".join("+".join(sorted(_attribute(*each) for each in part)) for part in parts)


def _attribute(oid: str, value: str | bytes) -> str:
    if isinstance(value, bytes):
        return f"{_TYPES.get(oid, oid)}=#{value.hex()}"
    ends = (0, len(value) - 1)
    text = "".join(_escaped(each, is_end=at in ends) for at, each in enumerate(value))
    if text.startswith("#"):
        text = f"\\{text}"
    return f"{_TYPES.get(oid, oid)}={text}"


def _escaped(character: str, *, is_end: bool) -> str:
    if character in '\\",+;<>' or (character == " " and is_end):
        return f"\\{character}"
    if character.isprintable():
        return character
    return "".join(f"\\{each:02x}" for each in character.encode())
