"""The web console of a cluster with identities: the cluster decides, the pages show."""

from __future__ import annotations

import contextlib

import pytest
from playwright.sync_api import expect

from sbp_core.access.rights import Grant, Right
from sbp_core.client import AppendItem, Client, Connecting, Credentials, StreamSpec
from sbp_core.tls import ServerTls
from tests.support.cluster import rows_batch
from tests.support.security import Authority, Issuer, identified_settings
from tests.support.warm import WarmCluster
from tests.support.web import browsing, needs_chromium, serving_console

pytestmark = needs_chromium

TIMEOUT_MS = 60_000


@pytest.fixture(scope="module")
def issuer(tmp_path_factory):
    return Issuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def places(tmp_path_factory, issuer):
    """A client of the administrator alice, and the URL of the console."""
    folder = tmp_path_factory.mktemp("identified")
    authority = Authority(folder / "authority")
    settings = identified_settings(authority, issuer, folder / "data")
    options = ["--auth-jwks-file", str(issuer.jwks_file), "--auth-admin", "alice"]
    options += ["--auth-issuer", settings.auth_issuer, "--auth-audience", settings.auth_audience]
    files = ServerTls(
        settings.tls_cert_file,
        settings.tls_key_file,
        authority.ca_file,
        authority.ca_file,
        is_client_optional=True,
    )
    token_file = folder / "token"
    token_file.write_bytes(issuer.token("alice"))
    connecting = Connecting(tls=authority.client(), credentials=Credentials(str(token_file)))
    with (
        WarmCluster(folder / "data", tls=files, options=options) as cluster,
        Client(cluster.endpoint, connecting=connecting) as client,
        serving_console(cluster.endpoint, "--tls-ca", str(authority.ca_file)) as url,
    ):
        yield client, url


@pytest.fixture(scope="module")
def stream(places):
    """A stream of the group billing, which `reader` may read; another one is hidden from it."""
    client, _ = places
    info, _ = client.create_streams([StreamSpec("orders"), StreamSpec("hidden")])
    client.append([AppendItem(info.stream_id, rows_batch([b"x"] * 10))])
    client.change_grants([Grant("reader", Right.READ, "orders")])
    client.commit_cursors("billing", {info.stream_id: 4})
    return info


@pytest.fixture(scope="module")
def browser():
    with browsing() as running:
        yield running


@pytest.fixture
def signed_in(browser, places, issuer):
    """Opens a page of a subject that has signed in."""
    with contextlib.ExitStack() as stack:

        def open_page(subject):
            context = browser.new_context(base_url=places[1])
            stack.callback(context.close)
            context.set_default_timeout(TIMEOUT_MS)
            expect.set_options(timeout=TIMEOUT_MS)
            page = context.new_page()
            page.goto("/streams")
            page.get_by_label("Token").fill(issuer.token(subject).decode())
            page.get_by_role("button", name="Sign in").click()
            return page

        yield open_page


def test_a_reader_sees_its_streams_and_is_refused_what_it_may_not_do(signed_in, places, stream):
    client, _ = places
    page = signed_in("reader")
    expect(page.locator("main tbody th")).to_contain_text(["orders"])
    expect(page.locator("main tbody tr")).to_have_count(1)
    page.goto("/groups/billing")
    expect(page.get_by_role("alert")).to_contain_text("PERMISSION_DENIED")
    page.goto(f"/streams/{stream.stream_id}/delete")
    page.get_by_label("to confirm").fill("orders")
    page.get_by_role("button", name="Delete it").click()
    expect(page.get_by_role("alert")).to_contain_text("lacks the right manage")
    assert client.find_streams(["orders"]) != []
    for path in ("/servers", "/transactions"):
        page.goto(path)
        expect(page.get_by_role("alert")).to_contain_text("PERMISSION_DENIED")


def test_a_right_that_is_gone_since_the_preview_stops_a_reset(signed_in, places, stream):
    client, _ = places
    grant = Grant("clerk", Right.GROUP, "billing")
    client.change_grants([grant, Grant("clerk", Right.READ, "orders")])
    page = signed_in("clerk")
    page.goto("/groups/billing/reset?together=latest")
    expect(page.locator("main tbody td").last).to_have_text("6 records skipped")
    client.change_grants([grant], is_revoked=True)
    page.get_by_role("button", name="Move the cursors").click()
    expect(page.get_by_role("alert")).to_contain_text("PERMISSION_DENIED")
    (cursor,) = client.describe_cursors("billing")
    assert cursor.next_offset == 4
