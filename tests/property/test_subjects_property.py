"""Subjects of certificates, and how people write them: one form, in which both are compared."""

from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID, ObjectIdentifier
from hypothesis import given
from hypothesis import strategies as st

from sbp_core.access.identity import canonical_subject, parse_subject, subject_of_certificate

KEY = Ed25519PrivateKey.generate()
NAMED = {NameOID.ORGANIZATION_NAME: "O", NameOID.USER_ID: "UID", NameOID.STREET_ADDRESS: "STREET"}
TYPES = st.sampled_from([*NAMED, ObjectIdentifier("1.2.3.4")])
VALUES = st.text(st.sampled_from('ab \\,+"#;<>=/\0\n\u202eé'), min_size=1, max_size=5) | st.text(
    st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5
)
PARTS = st.dictionaries(TYPES, VALUES, min_size=1, max_size=3)
"""A multi-valued part, by type."""


def name_of(parts):
    rdns = [[x509.NameAttribute(*each) for each in part.items()] for part in reversed(parts)]
    return x509.Name(map(x509.RelativeDistinguishedName, rdns))


def certificate_of(name):
    builder = x509.CertificateBuilder(name, name, KEY.public_key(), 1)
    builder = builder.not_valid_before(datetime(2025, 1, 1, tzinfo=UTC))
    signed = builder.not_valid_after(datetime(2035, 1, 1, tzinfo=UTC)).sign(KEY, None)
    return signed.public_bytes(Encoding.DER)


@given(st.lists(PARTS, min_size=1, max_size=3))
def test_the_subject_of_a_certificate_is_in_the_form_that_is_compared(parts):
    name = name_of(parts)
    subject = subject_of_certificate(certificate_of(name))
    assert subject.isprintable()
    assert canonical_subject(subject) == subject
    other = name.rfc4514_string()
    assert not other.isprintable() or canonical_subject(other) == subject


@given(st.lists(PARTS, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_what_people_write_is_brought_into_that_form(parts, random):
    def attribute(oid, value):
        kind = NAMED.get(oid, oid.dotted_string)
        escaped = "".join(f"\\{each:02X}" for each in value.encode())
        plain = value if value.isalnum() and value.isascii() else escaped
        gap = " " * random.randint(0, 2)
        return f"{gap}{random.choice((kind, kind.lower()))}{gap}={gap}{plain}{gap}"

    def part(values):
        return "+".join(random.sample([attribute(*each) for each in values.items()], len(values)))

    written = ",".join(map(part, parts))
    assert canonical_subject(written) == subject_of_certificate(certificate_of(name_of(parts)))


@given(st.text(st.sampled_from('ab=,+ \\#0.5CN"'), max_size=20) | st.text(max_size=20))
def test_any_text_has_a_form_that_stays_or_is_refused(text):
    try:
        subject = canonical_subject(text)
    except ValueError:
        return
    assert canonical_subject(subject) == subject


@pytest.mark.parametrize(
    ("written", "subject"),
    [
        ("alice", "alice"),
        ("CN=alice, O = Acme", "CN=alice,O=Acme"),
        ("cn=alice,1.2.840.113549.1.9.1=a@b", "CN=alice,emailAddress=a@b"),
        ("serialNumber=5,CN=x", "2.5.4.5=5,CN=x"),
        ("UID=b+CN=a", "CN=a+UID=b"),
        (r"O=Acme\2C Inc\2e", r"O=Acme\, Inc."),
        ("O=Acme,CN=alice", "O=Acme,CN=alice"),
        ("CN=Alice", "CN=Alice"),
    ],
)
def test_the_form_of_a_subject(written, subject):
    assert canonical_subject(written) == subject


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ("O=Acme/CN=alice", "write CN=alice,O=Acme, the most"),
        ("/C=DE/O=Acme/OU=a b/cn = alice", "write cn = alice,OU=a b,O=Acme,C=DE, the most"),
        ("O=Acme, Inc./CN=alice", "as in CN=alice,O=Acme"),
        ("/CN=alice", "write CN=alice, the most"),
    ],
)
def test_the_slashes_of_openssl_are_refused_with_the_form_to_write(written, instead):
    with pytest.raises(ValueError, match="slashes of OpenSSL") as caught:
        parse_subject(written)
    assert instead in str(caught.value)


@pytest.mark.parametrize("written", ["CN=http://a/b", "a/b", r"O=Acme\2fCN=alice", "CN=a/nickname"])
def test_other_slashes_belong_to_a_value(written):
    assert parse_subject(written) == written.replace(r"\2f", "/")


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("", "1 to 256 characters"),
        (" a", "without spaces around"),
        ("a\n", "cannot be printed"),
        ("O=Acme/CN=alice,", "is not TYPE=VALUE"),
        ("/O=Acme/CN=alice", "most specific part first"),
        ('O="Acme, Inc."', "a backslash before each"),
        ("CN= #0411", "is not TYPE=VALUE"),
        ("nickname=a", "its type nickname is not known: write the number"),
        (r"CN=\ff", "not UTF-8"),
    ],
)
def test_what_can_be_no_subject_is_refused_with_the_reason(written, why):
    with pytest.raises(ValueError, match=why):
        canonical_subject(written)
