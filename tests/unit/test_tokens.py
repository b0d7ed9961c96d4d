"""Tokens: which are accepted, and why the others are not."""

import base64
import hashlib
import hmac
import json
import time

import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwk

from sbp_core.access.credentials import TOKEN_BYTES_MAX, Credentials
from sbp_core.access.identity import SUBJECT_LENGTH_MAX
from sbp_core.access.keys import ALGORITHMS, KeyFile, KeyUrl, parse_keys
from sbp_core.access.tokens import LEEWAY_MS, Tokens, UnknownKeyError
from sbp_core.cli.main import main as sbp
from sbp_core.client.io.identifying import read_token
from sbp_core.errors import ConfigurationError, UnauthenticatedError
from tests.support.security import AUDIENCE, ISSUER, Issuer

LEEWAY = LEEWAY_MS // 1000


@pytest.fixture(scope="module")
def issuer(tmp_path_factory):
    return Issuer(tmp_path_factory.mktemp("issuer"), ALGORITHMS)


@pytest.fixture(scope="module")
def tokens(issuer):
    return Tokens(KeyFile(issuer.jwks_file), ISSUER, AUDIENCE)


@pytest.fixture(scope="module")
def signed(issuer):
    return {each: issuer.token(algorithm=each, seconds=3600) for each in ALGORITHMS}


def now_ms():
    return int(1000 * time.time())


def refusal(tokens, token, kind=UnauthenticatedError, at_ms=None):
    with pytest.raises(kind) as raised:
        tokens.verify(token, now_ms() if at_ms is None else at_ms)
    assert len(token) < 100 or token.decode("ascii", "replace") not in str(raised.value)
    return str(raised.value)


def encoded(value):
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def decoded(part):
    return json.loads(base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_token_of_the_issuer_is_accepted(issuer, tokens, algorithm):
    claims = issuer.claims("etl", seconds=100)
    found = tokens.verify(issuer.sign(json.dumps(claims).encode(), algorithm), now_ms())
    assert (found.subject, found.expires_at_ms) == ("etl", 1000 * claims["exp"] + LEEWAY_MS)


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"iss": "https://other"}, "iss is not"),
        ({"iss": None}, "iss is not"),
        ({"aud": "other"}, "aud is not"),
        ({"aud": ["other", 1]}, "aud is not"),
        ({"aud": None}, "aud is not"),
        ({"exp": None}, "no exp"),
        ({"exp": "9999999999"}, "exp is no time"),
        ({"exp": True}, "exp is no time"),
        ({"exp": 10**30}, "exp is no time"),
        ({"exp": -1}, "exp is no time"),
        ({"seconds": -LEEWAY - 1}, "has expired"),
        ({"nbf": int(time.time()) + 3600}, "nbf is in the future"),
        ({"iat": int(time.time()) + 3600}, "iat is in the future"),
        ({"nbf": "now"}, "nbf is no time"),
        *(
            ({"subject": subject}, "sub is not")
            for subject in ("", "CN=node1", " a", "a\n", "a\0b", 7, None, ["a"])
        ),
        ({"subject": "a" * (SUBJECT_LENGTH_MAX + 1)}, "sub is not"),
    ],
)
def test_claims_that_are_refused(issuer, tokens, claims, why):
    assert why in refusal(tokens, issuer.token(**claims))


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": ["x", AUDIENCE]},
        {"seconds": -LEEWAY + 5},
        {"nbf": int(time.time()) + LEEWAY - 5, "iat": time.time() - 0.5},
        {"subject": "a" * SUBJECT_LENGTH_MAX},
        {"subject": "Jürgen@example.org", "roles": {"any": [None, 1.5]}},
    ],
)
def test_claims_that_are_accepted(issuer, tokens, claims):
    assert tokens.verify(issuer.token(**claims), now_ms())


def test_a_token_that_names_a_claim_twice_is_refused(issuer, tokens):
    claims = json.dumps(issuer.claims()).encode()
    assert "twice" in refusal(tokens, issuer.sign(b'{"sub":"admin",' + claims[1:]))


@pytest.mark.parametrize(
    ("token", "cause"), [(b"secret", "it has 1 part, not 3"), (b"a.b.c.d", "it has 4 parts, not 3")]
)
def test_what_is_no_token_is_refused_by_its_parts(tokens, token, cause):
    assert f"no JSON Web Token: {cause}; send" in refusal(tokens, token)


@pytest.mark.parametrize("payload", [b"[]", b"7", b"", b"{", b"\xff", b"[" * 5000, b'{"exp":NaN}'])
def test_a_payload_that_is_no_object_is_refused(issuer, tokens, payload):
    refusal(tokens, issuer.sign(payload))


@pytest.mark.parametrize("name", ["crit", "jku", "jwk", "x5u", "x5c", "b64"])
def test_headers_that_bring_a_key_or_an_extension_are_refused(issuer, tokens, name):
    header, payload, signature = issuer.token().split(b".")
    header = encoded(decoded(header) | {name: issuer.public[0]})
    assert f"its header has {name}" in refusal(tokens, b".".join([header, payload, signature]))


def test_a_key_of_the_token_itself_is_not_used(issuer, tokens, tmp_path):
    stranger = Issuer(tmp_path)
    header, payload, _ = stranger.token("admin").split(b".")
    assert "key is not among" in refusal(tokens, stranger.token("admin"), UnknownKeyError)
    forged = encoded(decoded(header) | {"kid": issuer.public[0]["kid"]})
    signature = stranger.token("admin").split(b".")[2]
    assert "signature is wrong" in refusal(tokens, b".".join([forged, payload, signature]))


@pytest.mark.parametrize(
    "algorithm", ["none", "None", "HS256", "PS256", "RS512", "ES384", "", None, ["RS256"]]
)
def test_the_key_decides_the_algorithm(issuer, tokens, algorithm):
    header, payload, signature = issuer.token(algorithm="RS256").split(b".")
    header = encoded(decoded(header) | {"alg": algorithm})
    assert "alg is not that" in refusal(tokens, b".".join([header, payload, signature]))
    assert "alg is not that" in refusal(tokens, b".".join([header, payload, b""]))


def test_a_public_key_is_no_secret_of_hmac(issuer, tokens):
    _, payload, _ = issuer.token("admin").split(b".")
    for public in issuer.public:
        pem = jwk.import_key(public).raw_value.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        header = encoded({"alg": "HS256", "kid": public["kid"]})
        for secret in (pem, json.dumps(public).encode()):
            mac = hmac.new(secret, header + b"." + payload, hashlib.sha256).digest()
            refusal(tokens, b".".join([header, payload, encoded(mac)]))


def test_several_keys_need_a_kid_and_one_does_not(issuer, tokens, tmp_path):
    alone = Issuer(tmp_path)
    del alone.private["EdDSA"]["kid"]
    assert Tokens(KeyFile(alone.jwks_file), ISSUER, AUDIENCE).verify(alone.token(), now_ms())
    header, payload, signature = issuer.token().split(b".")
    nameless = encoded({"alg": decoded(header)["alg"]})
    assert "no kid" in refusal(tokens, b".".join([nameless, payload, signature]))


def test_a_token_that_is_too_large_is_refused(issuer, tokens):
    assert str(TOKEN_BYTES_MAX) in refusal(tokens, issuer.token(filler="x" * TOKEN_BYTES_MAX))


@given(data=st.data())
def test_no_changed_token_is_accepted(signed, tokens, data):
    token = bytearray(signed[data.draw(st.sampled_from(ALGORITHMS))])
    how = data.draw(st.sampled_from(["replace", "remove", "insert", "swap parts"]))
    at = data.draw(st.integers(0, len(token) - 1))
    byte = data.draw(st.integers(0, 255) | st.sampled_from(b"AQgw.-_="))
    changed = token[:at] + token[at + (how != "insert") :]
    if how != "remove":
        changed.insert(at, byte)
    if how == "swap parts":
        changed = bytearray(b".".join(data.draw(st.permutations(token.split(b".")))))
    if changed != token:
        refusal(tokens, bytes(changed))


@given(st.binary(max_size=300) | st.text("abcAB12-_.={}", max_size=300).map(str.encode))
def test_no_other_bytes_are_accepted(tokens, data):
    refusal(tokens, data)


@given(
    header=st.dictionaries(
        st.sampled_from(["alg", "kid", "typ", "x"]),
        st.none() | st.integers() | st.lists(st.text(max_size=2), max_size=2) | st.text(max_size=9),
    )
)
def test_no_other_header_is_accepted(signed, tokens, header):
    _, payload, signature = signed["EdDSA"].split(b".")
    refusal(tokens, b".".join([encoded(header), payload, signature]))


def keys_with(**members):
    return json.dumps(
        {"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "A" * 43} | members]}
    ).encode()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not JSON"),
        (b"[]", "no JSON object"),
        (b'{"keys": {}}', "no JSON Web Key Set"),
        (b'{"keys": []}', "no key for"),
        (b'{"keys": [{"kty": "oct", "k": "AAAA"}]}', "symmetric"),
        (keys_with(d="A" * 43), "private key"),
        (keys_with(crv="X25519"), "no key for"),
        (keys_with(kty=["OKP"]), "no key for"),
        (keys_with(use="enc"), "no key for"),
        (keys_with(alg="HS256"), "no key for"),
        (keys_with(x="A"), "damaged"),
        (keys_with(x=7), "damaged"),
        (keys_with(kid=""), "kid"),
        (json.dumps({"keys": [{}] * 101}).encode(), "101 keys"),
        (json.dumps({"keys": json.loads(keys_with())["keys"] * 2}).encode(), "kid of its own"),
        (
            keys_with(kty="RSA", crv=None, n=encoded((2**1023).to_bytes(128)).decode(), e="AQAB"),
            "1024 bits",
        ),
    ],
)
def test_key_sets_that_are_refused(data, why, tmp_path):
    with pytest.raises(ValueError, match=why):
        parse_keys(data)
    (tmp_path / "jwks.json").write_bytes(data)
    with pytest.raises(ConfigurationError, match=r"jwks\.json"):
        KeyFile(tmp_path / "jwks.json")


def test_a_key_file_that_changes_is_read_again(tmp_path, caplog):
    old, new = Issuer(tmp_path), Issuer(tmp_path)
    tokens = Tokens(KeyFile(new.jwks_file), ISSUER, AUDIENCE)
    assert tokens.verify(new.token(), now_ms())
    new.jwks_file.write_bytes(b"{}")
    assert tokens.verify(new.token(), now_ms())
    assert "the former ones stay" in caplog.text
    old.jwks_file.write_bytes(old.jwks)
    assert tokens.verify(old.token(), now_ms())
    refusal(tokens, new.token(), UnknownKeyError)


@pytest.mark.parametrize(
    "url", ["http://id.example.org", "file:///etc/passwd", "https://", "https://a@b"]
)
def test_keys_come_over_https_only(url):
    with pytest.raises(ConfigurationError, match="https"):
        KeyUrl(url)


def test_credentials_are_read_where_they_are_used(tmp_path, monkeypatch, issuer):
    path = tmp_path / "token"
    credentials = Credentials(path)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_token(credentials)
    for token in (issuer.token("a"), issuer.token("b")):
        path.write_bytes(token + b"\n")
        assert read_token(credentials) == token
    monkeypatch.setenv("MY_TOKEN", "secret.secret.secret")
    assert read_token(Credentials(token_env="MY_TOKEN")) == b"secret.secret.secret"


@pytest.mark.parametrize("content", [b"", b"\n", b"s3cret s3cret", b"s3cret\0", b"s3cret" * 2000])
def test_credentials_that_cannot_be_read_are_not_shown(tmp_path, content):
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError) as raised:
        read_token(Credentials(path))
    assert "s3cret" not in str(raised.value)
    for given_ in ({}, {"token_file": path, "token_env": "X"}):
        with pytest.raises(ConfigurationError, match="one of them"):
            Credentials(**given_)


def made_keys(folder):
    private, jwks = folder / "private.json", folder / "jwks.json"
    files = ["--private-file", str(private), "--jwks-file", str(jwks)]
    assert sbp(["token", "keys", *files]) == 0
    return private, jwks


def issued(private, *options, subject="etl"):
    words = ["--private-file", str(private), "--issuer", ISSUER, "--audience", AUDIENCE]
    return ["token", "issue", subject, *words, "--valid-for", "1h", *options]


def test_the_command_makes_keys_and_tokens(tmp_path, capsys):
    private, jwks = made_keys(tmp_path)
    assert private.stat().st_mode & 0o777 == 0o600
    capsys.readouterr()
    assert sbp(issued(private)) == 0
    printed = capsys.readouterr().out.strip().encode()
    out = tmp_path / "token"
    for subject in ("etl", "other"):
        assert sbp(issued(private, "--out", str(out), subject=subject)) == 0
        assert out.stat().st_mode & 0o777 == 0o600
    tokens = Tokens(KeyFile(jwks), ISSUER, AUDIENCE)
    found = [tokens.verify(each, now_ms()) for each in (printed, read_token(Credentials(out)))]
    assert [each.subject for each in found] == ["etl", "other"]
    assert now_ms() < found[0].expires_at_ms <= now_ms() + 3_600_000 + LEEWAY_MS


def test_the_command_overwrites_no_key(tmp_path, capsys):
    private, jwks = made_keys(tmp_path)
    before = private.read_bytes(), jwks.read_bytes()
    for name in ("private.json", "new.json"):
        files = ["--private-file", str(tmp_path / name), "--jwks-file", str(jwks)]
        assert sbp(["token", "keys", *files]) == 2
        assert "is not overwritten" in capsys.readouterr().err
    assert (private.read_bytes(), jwks.read_bytes()) == before
    assert not (tmp_path / "new.json").exists()


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"d": "s3cret"', b'{"kty": "OKP", "d": "s3cret"}']
)
def test_a_private_file_that_cannot_be_used_is_not_shown(tmp_path, capsys, content):
    private = tmp_path / "private.json"
    private.write_bytes(content)
    assert sbp(issued(private)) == 2
    shown = capsys.readouterr()
    assert "private file" in shown.err
    assert "s3cret" not in shown.err + shown.out
    assert sbp(issued(private, subject="CN=node1")) == 2
    assert "without =" in capsys.readouterr().err
