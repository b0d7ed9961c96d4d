"""The web console of a cluster with identities: who sees what, and which requests are refused."""

from __future__ import annotations

import http.client
import re
from urllib.parse import urlencode, urlsplit

import pytest

from sbp_core.access.rights import Grant, Right
from sbp_core.client import AppendItem, Client, Connecting, StreamSpec
from sbp_core.tls import ServerTls
from tests.support.cluster import rows_batch
from tests.support.security import Authority, Issuer, admin_of, identified_settings
from tests.support.warm import WarmCluster
from tests.support.web import serving_console

TIMEOUT_SECONDS = 60
KIND = "application/x-www-form-urlencoded"


@pytest.fixture(scope="module")
def issuer(tmp_path_factory):
    return Issuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def url(issuer, tmp_path_factory):
    """A console without an identity of its own; `etl` may read the stream `orders` only."""
    folder = tmp_path_factory.mktemp("cluster")
    authority = Authority(folder / "authority")
    given = identified_settings(authority, issuer, folder)
    options = ["--auth-jwks-file", str(issuer.jwks_file), "--auth-issuer", given.auth_issuer]
    options += ["--auth-audience", given.auth_audience]
    options += [word for each in given.auth_admins for word in ("--auth-admin", each)]
    files = ServerTls(given.tls_cert_file, given.tls_key_file, authority.ca_file)
    with WarmCluster(folder / "data", tls=files, options=options) as cluster:
        connecting = Connecting(tls=authority.client(admin_of(authority)))
        with Client(cluster.endpoint, connecting=connecting) as admin:
            orders = StreamSpec("orders", properties={"owner": "<b>etl"})
            stream, _ = admin.create_streams([orders, StreamSpec("payroll")])
            admin.append([AppendItem(stream.stream_id, rows_batch([b"an order"]))])
            admin.change_grants([Grant("etl", Right.READ, "orders")])
        with serving_console(cluster.endpoint, "--tls-ca", str(authority.ca_file)) as served:
            yield served


class Browser:
    """Asks as a browser does, with the cookie that it was given."""

    def __init__(self, url):
        self.url = url
        self.cookie = None

    def ask(self, path, fields=None, **headers):
        """Return status, headers and text; a form of this site unless `headers` say otherwise."""
        place = urlsplit(self.url)
        connection = http.client.HTTPConnection(place.hostname, place.port, TIMEOUT_SECONDS)
        sent = {"Cookie": self.cookie} if self.cookie else {}
        if fields is not None:
            sent |= {"Origin": self.url, "Content-Type": KIND}
        sent = {name: value for name, value in (sent | headers).items() if value is not None}
        body = None if fields is None else urlencode(fields)
        connection.request("GET" if fields is None else "POST", path, body, sent)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        given = answer.headers.get("Set-Cookie")
        if given is not None:
            self.cookie = given.partition(";")[0]
        return answer.status, answer.headers, text

    def csrf(self, path="/login"):
        """Return what the forms of this session have."""
        return re.search(r'name="csrf" value="(\w+)"', self.ask(path)[2])[1]

    def sign_in(self, token, target="/"):
        fields = {"csrf": self.csrf(), "token": token.decode(), "next": target}
        return self.ask("/login", fields)


@pytest.fixture
def etl(url, issuer):
    browser = Browser(url)
    assert browser.sign_in(issuer.token("etl"))[0] == 303
    return browser


def test_who_has_no_session_is_asked_for_a_token_and_led_back(url, issuer):
    browser = Browser(url)
    status, headers, _ = browser.ask("/streams?sort=records")
    assert (status, headers["Location"]) == (303, "/login?next=%2Fstreams%3Fsort%3Drecords")
    status, headers, _ = browser.sign_in(issuer.token("etl"), "/streams?sort=records")
    assert (status, headers["Location"]) == (303, "/streams?sort=records")
    assert {"HttpOnly", "SameSite=strict"} <= {*re.split("; ?", headers["Set-Cookie"])}
    assert browser.ask("/streams")[0] == 200


def test_a_user_sees_what_the_cluster_lets_him(etl):
    text = etl.ask("/streams")[2]
    assert "orders" in text
    assert "payroll" not in text
    assert "an order" in etl.ask("/streams/orders/records?from=0")[2]
    assert "<bdi>&lt;b&gt;etl</bdi>" in etl.ask("/streams/orders")[2], "its property"
    assert etl.ask("/streams/payroll")[0] in {403, 404}
    status, _, text = etl.ask("/")
    assert (status, "are for administrators" in text) == (200, True)


def test_an_action_without_the_right_is_refused_by_the_cluster(etl):
    key = re.search(r'name="key" value="([^"]+)"', etl.ask("/streams/orders/delete")[2])
    fields = {"csrf": etl.csrf(), "typed": "orders", "key": key[1]}
    assert etl.ask("/streams/orders/delete", fields)[0] == 403
    assert "an order" in etl.ask("/streams/orders/records?from=0")[2]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": None},
        {"Origin": None, "Sec-Fetch-Site": "cross-site"},
    ],
    ids=["foreign", "opaque", "unsaid", "cross-site"],
)
def test_a_form_of_another_site_is_refused(etl, headers):
    assert etl.ask("/logout", {"csrf": etl.csrf()}, **headers)[0] == 403
    assert etl.ask("/streams")[0] == 200


def test_a_form_of_another_session_is_refused(etl, url):
    for fields in ({}, {"csrf": Browser(url).csrf()}):
        assert etl.ask("/logout", fields)[0] == 403
    assert etl.ask("/logout", {"csrf": "x" * 70_000})[0] == 400
    kind = {"Content-Type": "text/plain"}
    assert etl.ask("/logout", {"csrf": etl.csrf()}, **kind)[0] == 400


def test_a_session_that_was_ended_is_none(etl):
    cookie = etl.cookie
    assert etl.ask("/logout", {"csrf": etl.csrf()})[0] == 303
    etl.cookie = cookie
    assert etl.ask("/streams")[0] == 303


def test_a_token_that_the_cluster_refuses_opens_no_session(url, issuer, etl):
    browser = Browser(url)
    claims, signature = issuer.token("etl"), issuer.token("dashboard").rpartition(b".")[2]
    forged = claims.rpartition(b".")[0] + b"." + signature
    for token, reason in (
        (b"aaaa.bbbb.cccc", "it is no JSON Web Token"),
        (issuer.token("etl", seconds=-60), "it has expired"),
        (forged, "its signature is wrong"),
    ):
        status, _, text = browser.sign_in(token)
        assert reason in text
        assert (status, browser.cookie) == (400, None)
    assert etl.ask("/streams")[0] == 200


@pytest.mark.parametrize("target", ["https://evil.example", "//evil.example", "/\\evil.example"])
def test_signing_in_leads_to_no_other_site(url, issuer, target):
    assert Browser(url).sign_in(issuer.token("etl"), target)[1]["Location"] == "/"


def test_what_is_no_token_is_said_to_be_none(url):
    status, _, text = Browser(url).sign_in(b"not a token!")
    assert (status, "That is no token" in text) == (400, True)


@pytest.mark.parametrize("path", ["/", "/login", "/static/console.js", "/static/../site.py", "/no"])
def test_every_answer_forbids_scripts_of_others_and_frames(etl, path):
    _, headers, text = etl.ask(path)
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "import" not in text
