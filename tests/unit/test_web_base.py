"""Where a program of HTTP may listen, which pages may ask it, and how errors are answered."""

import asyncio
import json
from pathlib import Path

import pytest
from starlette.requests import HTTPConnection

from sbp_core import errors
from sbp_core.access.credentials import Credentials
from sbp_core.client.connecting import Connecting
from sbp_core.errors import ConfigurationError, Outcome, PermissionDeniedError, SbpError
from sbp_core.settings.web_settings import WebSettings
from sbp_core.tls import Tls
from sbp_core.web.browsers import check_same_site, is_foreign, of_this_host
from sbp_core.web.problems import STATUS_OF, problem_of, status_of

HTTPS = {"listener_cert": Path("web.pem"), "listener_key": Path("web.key")}
IDENTIFYING = Connecting(tls=Tls("ca.pem"))


def settings(host, connecting=IDENTIFYING, **options):
    return WebSettings(
        endpoint="127.0.0.1:12378", connecting=connecting, port=12381, host=host, **options
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.9.9.9"])
def test_on_a_loopback_address_everything_is_allowed(host):
    own = Connecting(tls=Tls("ca.pem", "own.pem", "own.key"), credentials=Credentials("token"))
    for connecting in (Connecting(), own):
        assert not settings(host, connecting).needs_token


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "log.example.org"])
def test_beyond_the_machine_requests_need_tokens_and_tls(host):
    assert settings(host, **HTTPS).needs_token
    for connecting, https in ((IDENTIFYING, {}), (Connecting(), HTTPS), (Connecting(), {})):
        with pytest.raises(ConfigurationError, match="--https-cert"):
            settings(host, connecting, **https)
        assert not settings(host, connecting, **https, insecure=True).needs_token


@pytest.mark.parametrize(
    "own",
    [
        Connecting(tls=Tls("ca.pem", "own.pem", "own.key")),
        Connecting(tls=Tls("ca.pem"), credentials=Credentials("token")),
    ],
)
def test_an_identity_of_the_process_is_for_its_machine_only(own):
    for insecure in (False, True):
        with pytest.raises(ConfigurationError, match="would act with the token or certificate"):
            settings("192.0.2.1", own, **HTTPS, insecure=insecure)


@pytest.mark.parametrize("host", ["", "a b", "127.0.0.1:80", "http://x"])
def test_what_is_no_host_is_refused(host):
    with pytest.raises(ConfigurationError):
        settings(host)


def request(host="127.0.0.1:12381", **headers):
    """Return a request of a page or program; underscores are dashes in names of headers."""
    fields = {"host": host} | {name.replace("_", "-"): value for name, value in headers.items()}
    encoded = [(name.encode(), value.encode()) for name, value in fields.items()]
    return HTTPConnection(
        {"type": "http", "scheme": "http", "path": "/", "query_string": b"", "headers": encoded}
    )


@pytest.mark.parametrize(
    ("headers", "foreign", "same_site"),
    [
        ({}, False, False),
        ({"origin": "http://127.0.0.1:12381"}, False, True),
        ({"origin": "http://127.0.0.1:8080"}, True, False),
        ({"origin": "https://127.0.0.1:12381"}, True, False),
        ({"origin": "http://evil.example"}, True, False),
        ({"origin": "null"}, True, False),
        ({"origin": "http://evil.example", "sec_fetch_site": "same-origin"}, True, False),
        ({"sec_fetch_site": "same-origin"}, False, True),
        ({"sec_fetch_site": "same-site"}, True, False),
        ({"sec_fetch_site": "cross-site"}, True, False),
        ({"sec_fetch_site": "none"}, False, True),
    ],
)
def test_pages_of_other_sites_are_told_apart(headers, foreign, same_site):
    asked = request(**headers)
    assert is_foreign(asked) is foreign
    if same_site:
        check_same_site(asked)
    else:
        with pytest.raises(PermissionDeniedError, match="not from a page of this site"):
            check_same_site(asked)


@pytest.mark.parametrize(
    ("named", "status"),
    [
        ("127.0.0.1:12381", 200),
        ("localhost:12381", 200),
        ("[::1]:12381", 200),
        ("rebound.example.org:12381", 403),
        ("", 403),
    ],
)
def test_a_name_that_was_rebound_to_this_machine_is_refused(named, status):
    sent = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})

    async def send(message):
        sent.append(message)

    asyncio.run(of_this_host(app, "127.0.0.1")(request(named).scope, None, send))
    assert sent[0]["status"] == status


def test_a_program_that_other_machines_reach_has_any_name():
    sent = []

    async def app(scope, receive, send):
        sent.append(scope)

    asyncio.run(of_this_host(app, None)(request("log.example.org").scope, None, None))
    assert len(sent) == 1


def subclasses(kind):
    return {kind}.union(*map(subclasses, kind.__subclasses__()))


def test_each_error_that_a_server_sends_has_a_status_that_was_chosen_for_it():
    own = {each for each in subclasses(errors.RefusedError) if each.codes}
    for each in own:
        assert 400 <= status_of(each.of("no")) < 600
    retriable = {each for each in own if each.retriable}
    assert {status_of(each.of("later")) for each in retriable} <= {429, 503, 507}
    assert all(issubclass(each, SbpError) for each in STATUS_OF)


def test_an_error_is_a_problem_with_its_outcome_and_when_to_retry():
    error = errors.ThrottledError.of("over the quota")
    error.throttle_time_ms = 2_400
    answer = problem_of(error).response()
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "3"
    assert answer.headers["content-type"] == "application/problem+json"
    assert json.loads(answer.body) == {
        "type": "urn:sbp:problem:throttled",
        "title": "Throttled",
        "status": 429,
        "detail": "over the quota [TOO_MANY_REQUESTS 1429]",
        "outcome": "not applied",
        "retriable": True,
        "code": 1429,
    }
    lost = problem_of(errors.ConnectionLostError("gone"))
    assert (lost.status, lost.outcome, lost.is_retriable) == (502, Outcome.UNKNOWN, True)
    assert problem_of(errors.UnauthenticatedError.of("who?")).headers == {
        "WWW-Authenticate": "Bearer"
    }
