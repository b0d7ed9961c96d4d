"""Keys of tokens that a server fetches from a URL."""

import time

import pytest

from sbp_core import limits
from sbp_core.access.keys import ALGORITHMS, KeyUrl
from sbp_core.access.tokens import Tokens, UnknownKeyError
from sbp_core.errors import ConfigurationError
from tests.support.clock import ManualClock
from tests.support.security import AUDIENCE, ISSUER, Issuer, serving_keys


@pytest.fixture(scope="module")
def issuer(tmp_path_factory):
    return Issuer(tmp_path_factory.mktemp("issuer"), ALGORITHMS)


def now_ms():
    return int(1000 * time.time())


@pytest.fixture
def served_keys(tmp_path):
    with serving_keys(tmp_path) as served:
        yield served


def test_keys_of_a_url_are_fetched_and_the_last_good_ones_stay(issuer, served_keys, caplog):
    url, answers, ca_file = served_keys
    clock = ManualClock()
    keys = KeyUrl(f"{url}/jwks.json", ca_file, clock.monotonic)
    tokens = Tokens(keys, ISSUER, AUDIENCE)
    token = issuer.token()
    assert tokens.wants_keys(token, now_ms())
    with pytest.raises(UnknownKeyError, match="could not fetch the keys of the issuer"):
        tokens.verify(token, now_ms())
    bad = [
        (200, {}, b"{}"),
        (404, {}, issuer.jwks),
        (302, {"Location": "http://localhost/jwks.json"}, b""),
        (302, {"Location": "file:///etc/passwd"}, b""),
        (200, {}, b" " * (limits.SMALL_FILE_BYTES_MAX + 1)),
    ]
    for answer in [(302, {"Location": f"{url}/moved"}, b""), *bad]:
        answers += [answer, (200, {}, issuer.jwks)] if answer not in bad else [answer]
        clock.advance(1)
        keys.reload()
        assert not answers
        assert tokens.verify(token, now_ms())
        assert not tokens.wants_keys(token, now_ms())
    assert caplog.text.count("keys not fetched, the former ones stay") == len(bad)


def test_keys_that_cannot_be_fetched_are_asked_for_again_ever_more_slowly(issuer, served_keys):
    url, answers, ca_file = served_keys
    clock = ManualClock()
    tokens = Tokens(KeyUrl(url, ca_file, clock.monotonic), ISSUER, AUDIENCE)
    token = issuer.token()
    for pause_ms in (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000):
        assert tokens.wants_keys(token, now_ms())
        tokens.keys.reload()
        with pytest.raises(UnknownKeyError, match=r"fetch the keys of the issuer \(HTTP Error 503"):
            tokens.verify(token, now_ms())
        clock.advance(pause_ms - 1)
        assert not tokens.wants_keys(token, now_ms())
        clock.advance(1)
    answers.append((200, {}, issuer.jwks))
    tokens.keys.reload()
    assert tokens.verify(token, now_ms())
    clock.advance(600_000)
    tokens.keys.reload()
    clock.advance(999)
    assert not tokens.wants_keys(token, now_ms())
    clock.advance(1)
    assert tokens.wants_keys(token, now_ms())


def test_a_server_of_an_unknown_authority_has_no_keys(issuer, served_keys, tmp_path):
    url, *_ = served_keys
    tokens = Tokens(KeyUrl(url), ISSUER, AUDIENCE)
    tokens.keys.reload()
    with pytest.raises(UnknownKeyError, match="certificate verify failed"):
        tokens.verify(issuer.token(), now_ms())
    for content, why in ((None, "No such file"), (b"", "authority"), (issuer.jwks, "authority")):
        file = tmp_path / "other.pem"
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(ConfigurationError, match=f"jwks_ca_file .*{why}"):
            KeyUrl(url, file)


def test_an_unknown_key_makes_keys_be_fetched_once_a_minute(issuer, served_keys, tmp_path):
    url, answers, ca_file = served_keys
    clock = ManualClock()
    tokens = Tokens(KeyUrl(url, ca_file, clock.monotonic), ISSUER, AUDIENCE)
    answers.append((200, {}, issuer.jwks))
    tokens.keys.reload()
    (tmp_path / "other").mkdir()
    unknown, known = Issuer(tmp_path / "other").token(), issuer.token()
    for seconds, wanted in ((0, []), (59, []), (60, [unknown]), (600, [unknown, known])):
        clock.advance(1000 * seconds)
        found = [each for each in (unknown, known) if tokens.wants_keys(each, now_ms())]
        assert found == wanted
        clock.advance(-1000 * seconds)
