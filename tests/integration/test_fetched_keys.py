"""Keys of tokens that a server fetches from a URL."""

import time

import pytest

from sbp_core import limits
from sbp_core.access.keys import ALGORITHMS, KeyUrl
from sbp_core.access.tokens import Tokens, UnknownKeyError
from tests.support.clock import ManualClock
from tests.support.security import AUDIENCE, ISSUER, Issuer, serving_keys


@pytest.fixture(scope="module")
def issuer(tmp_path_factory):
    return Issuer(tmp_path_factory.mktemp("issuer"), ALGORITHMS)


def now_ms():
    return int(1000 * time.time())


@pytest.fixture
def served_keys(tmp_path, monkeypatch):
    with serving_keys(tmp_path, monkeypatch) as served:
        yield served


def test_keys_of_a_url_are_fetched_and_the_last_good_ones_stay(issuer, served_keys, caplog):
    url, answers = served_keys
    keys = KeyUrl(f"{url}/jwks.json")
    tokens = Tokens(keys, ISSUER, AUDIENCE)
    token = issuer.token()
    assert tokens.wants_keys(token, now_ms())
    with pytest.raises(UnknownKeyError):
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
        keys.reload()
        assert not answers
        assert tokens.verify(token, now_ms())
        assert not tokens.wants_keys(token, now_ms())
    assert caplog.text.count("keys not fetched, the former ones stay") == len(bad)


def test_an_unknown_key_makes_keys_be_fetched_once_a_minute(issuer, served_keys, tmp_path):
    url, answers = served_keys
    clock = ManualClock()
    tokens = Tokens(KeyUrl(url, clock.monotonic), ISSUER, AUDIENCE)
    answers.append((200, {}, issuer.jwks))
    tokens.keys.reload()
    (tmp_path / "other").mkdir()
    unknown, known = Issuer(tmp_path / "other").token(), issuer.token()
    for seconds, wanted in ((0, []), (59, []), (60, [unknown]), (600, [unknown, known])):
        clock.advance(1000 * seconds)
        found = [each for each in (unknown, known) if tokens.wants_keys(each, now_ms())]
        assert found == wanted
        clock.advance(-1000 * seconds)
