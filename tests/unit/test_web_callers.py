"""Which client executes a request, and how many of them there are."""

import asyncio
from pathlib import Path

import httpx
import pytest
from starlette.requests import HTTPConnection
from starlette.responses import Response

from sbp_core.access.credentials import BearerToken, Credentials
from sbp_core.client.connecting import Connecting
from sbp_core.errors import ThrottledError, UnauthenticatedError
from sbp_core.settings.web_settings import WebSettings
from sbp_core.tls import Tls
from sbp_core.web import callers as module
from sbp_core.web.browsers import COOKIE, SESSION_SECONDS, SESSIONS_MAX, Sessions
from sbp_core.web.callers import IDLE_SECONDS, Callers
from sbp_core.web.console.app import make_app
from sbp_core.web.console.histories import Sampler
from sbp_core.web.console.site import Site

TLS = Tls("ca.pem", "own.pem", "own.key")
OWN = Connecting(tls=TLS, credentials=Credentials("token"))


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class FakeClient:
    """A client as `Callers` sees it."""

    def __init__(self, endpoint, how):
        self.how = how
        self.is_closed = False

    async def close(self):
        self.is_closed = True


def settings(connecting=OWN, host="127.0.0.1"):
    return WebSettings(endpoint="127.0.0.1:1", connecting=connecting, port=0, host=host)


def request(token=None, cookie=None):
    headers = []
    if token is not None:
        headers.append((b"authorization", b"Bearer " + token))
    if cookie is not None:
        headers.append((b"cookie", f"{COOKIE}={cookie}".encode()))
    return HTTPConnection({"type": "http", "headers": headers})


def during(callers, wanted, then=None):
    """Return a request under way that asks for its client; `then` is awaited before it ends."""

    async def app(scope, receive, send):
        wanted.scope[module._USED] = scope[module._USED]
        scope["found"] = await callers.client(wanted)
        if then is not None:
            await then()

    async def ask():
        scope = {"type": "http"}
        await callers.counting(app)(scope, None, None)
        return scope["found"]

    return ask()


def made(connecting=OWN, host="127.0.0.1", sessions=None, **options):
    clock = Clock()
    callers = Callers(settings(connecting, host), sessions, make=FakeClient, clock=clock, **options)
    return callers, clock


def test_each_token_has_a_client_and_no_request_acts_with_the_certificate_of_the_process():
    async def run():
        callers, _ = made()
        own = await during(callers, request())
        first = await during(callers, request(b"a.b.c"))
        assert await during(callers, request(b"a.b.c")) is first
        assert await during(callers, request(b"x.y.z")) is not first
        assert own.how == OWN
        assert first.how.credentials == BearerToken(b"a.b.c")
        assert first.how.tls == Tls("ca.pem")
        assert "a.b.c" not in repr(first.how)
        await callers.close()
        assert own.is_closed
        assert first.is_closed

    asyncio.run(run())


def test_what_is_no_token_and_a_token_where_none_is_accepted_are_refused():
    async def run():
        callers, _ = made()
        for text in (b"", b"two words", b"\xff", b"a" * 9000):
            with pytest.raises(UnauthenticatedError, match="no token"):
                await during(callers, request(text))
        plain, _ = made(Connecting())
        with pytest.raises(UnauthenticatedError, match="accepts none"):
            await during(plain, request(b"a.b.c"))

    asyncio.run(run())


def test_where_other_machines_connect_to_a_request_needs_a_token():
    async def run():
        listening = WebSettings(
            endpoint="127.0.0.1:1",
            connecting=Connecting(tls=Tls("ca.pem")),
            port=0,
            host="0.0.0.0",
            listener_cert=Path("web.pem"),
            listener_key=Path("web.key"),
        )
        callers = Callers(listening, make=FakeClient)
        with pytest.raises(UnauthenticatedError, match="each needs one"):
            await during(callers, request())
        assert (await during(callers, request(b"a.b.c"))).how.credentials is not None
        await callers.close()

    asyncio.run(run())


def test_one_more_identity_closes_the_client_that_is_unused_for_longest():
    async def run():
        callers, clock = made(clients_max=2)
        first = await during(callers, request(b"a"))
        clock.now = 1.0
        second = await during(callers, request(b"b"))
        clock.now = 2.0
        assert await during(callers, request(b"a")) is first
        await during(callers, request(b"c"))
        await asyncio.sleep(0)
        assert (first.is_closed, second.is_closed) == (False, True)
        await callers.close()

    asyncio.run(run())


def test_clients_in_use_are_never_closed_for_another():
    async def run():
        callers, _ = made(clients_max=1)

        async def while_in_use():
            with pytest.raises(ThrottledError, match="1 identities have requests"):
                await during(callers, request(b"b"))

        used = await during(callers, request(b"a"), while_in_use)
        assert not used.is_closed
        await during(callers, request(b"b"))
        await asyncio.sleep(0)
        assert used.is_closed
        await callers.close()

    asyncio.run(run())


def test_clients_that_are_unused_for_long_are_closed():
    async def run():
        callers, clock = made()
        unused = await during(callers, request(b"a"))
        clock.now = IDLE_SECONDS

        async def sweep():
            callers._sweep()

        used = await during(callers, request(b"b"), sweep)
        await asyncio.sleep(0)
        assert (unused.is_closed, used.is_closed) == (True, False)
        await callers.close()

    asyncio.run(run())


def opened(sessions, token, subject="etl"):
    """Return the id of a new session."""
    response = Response()
    sessions.open(response, subject, token, is_secure=True)
    cookie = response.headers["set-cookie"]
    assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Secure"))
    assert token.decode() not in cookie
    return cookie.partition("=")[2].partition(";")[0]


def test_a_session_has_its_token_until_it_ends():
    clock = Clock()
    sessions = Sessions(clock)
    session_id, other = opened(sessions, b"a.b.c"), opened(sessions, b"x.y.z")
    assert session_id != other
    callers = Callers(settings(), sessions, make=FakeClient)
    assert callers.maybe_token(request(cookie=session_id)) == b"a.b.c"
    assert callers.maybe_token(request(b"h.e.ader", session_id)) == b"h.e.ader"
    assert Callers(settings(), make=FakeClient).maybe_token(request(cookie=session_id)) is None
    sessions.end(request(cookie=other), Response())
    assert sessions.maybe_token(request(cookie=other)) is None
    clock.now = float(SESSION_SECONDS)
    assert sessions.maybe_token(request(cookie=session_id)) is None
    assert sessions.maybe_token(request(cookie="guessed")) is None
    assert sessions.maybe_token(request()) is None


def test_a_subject_ends_only_its_own_oldest_session():
    sessions = Sessions(Clock())
    other = opened(sessions, b"other.token", "dashboard")
    first, second = opened(sessions, b"first.token"), opened(sessions, b"second.token")
    for _ in range(SESSIONS_MAX):
        opened(sessions, b"another.token")
    assert sessions.maybe_token(request(cookie=first)) is None
    assert sessions.maybe_token(request(cookie=second)) is None
    assert sessions.maybe_token(request(cookie=other)) == b"other.token"


def test_a_subject_without_a_session_waits_while_other_subjects_have_all():
    sessions = Sessions(Clock())
    first, *_ = [opened(sessions, b"a.token", f"user-{at}") for at in range(SESSIONS_MAX)]
    with pytest.raises(ThrottledError, match="1024 sessions are open"):
        opened(sessions, b"late.token", "late")
    assert sessions.maybe_token(request(cookie=first)) == b"a.token"
    again = opened(sessions, b"again.token", "user-0")
    assert sessions.maybe_token(request(cookie=first)) is None
    assert sessions.maybe_token(request(cookie=again)) == b"again.token"


class RefusedClient(FakeClient):
    """A client of a cluster that refuses the token."""

    async def list_streams(self):
        raise UnauthenticatedError.of("the token is refused: it has expired")

    placement_drivers = metadata_changes = list_streams


def test_a_refused_token_opens_no_session_and_ends_the_session_that_it_had():
    sessions = Sessions()
    cookies = {COOKIE: opened(sessions, b"a.b.c")}

    async def run():
        callers = Callers(settings(), sessions, make=RefusedClient)
        with pytest.raises(UnauthenticatedError, match="no JSON Web Token"):
            await callers.verify(b"aaaa.bbbb.cccc")
        with pytest.raises(UnauthenticatedError, match="sub is not a subject"):
            await callers.verify(b"e30.e30.e30")
        with pytest.raises(UnauthenticatedError, match="it has expired"):
            await callers.verify(b"e30.eyJzdWIiOiJldGwifQ.e30")
        assert not callers._entries, "a refused token keeps no client"
        app = make_app(Site(callers, Sampler(asyncio.Event()), "127.0.0.1:1"))
        transport = httpx.ASGITransport(callers.counting(app))
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", cookies=cookies
        ) as web:
            answer = await web.get("/streams")
            assert answer.headers["location"] == "/login?next=%2Fstreams&refused=1"
            assert "refused the token" in (await web.get(answer.headers["location"])).text
        await callers.close()

    asyncio.run(run())
    assert sessions.maybe_token(request(cookie=cookies[COOKIE])) is None


def test_a_client_that_is_held_stays_open_and_is_that_of_requests_without_a_token():
    async def body():
        clock = Clock()
        callers = Callers(settings(), make=FakeClient, clock=clock, clients_max=1)
        own = callers.maybe_own()
        with callers.holding(own):
            clock.now = IDLE_SECONDS + 1
            callers._sweep()
            assert callers.maybe_own() is own
            with pytest.raises(ThrottledError):
                await during(callers, request(b"a.b.c"))
        clock.now += IDLE_SECONDS + 1
        callers._sweep()
        assert callers.maybe_own() is not own
        tls_only = Connecting(tls=Tls("ca.pem"))
        assert Callers(settings(tls_only), make=FakeClient).maybe_own() is None
        await callers.close()

    asyncio.run(body())


def test_a_session_can_be_watched_until_it_ends():
    clock = Clock()
    sessions = Sessions(clock)
    sessions.open(response := Response(), "anna", b"a.b.c", is_secure=True)
    asked = request(cookie=response.headers["set-cookie"].partition("=")[2].partition(";")[0])
    is_open = sessions.watch(asked)
    assert is_open()
    clock.now = SESSION_SECONDS
    assert not is_open()
    assert not sessions.watch(request())()
