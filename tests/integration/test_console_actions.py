"""The actions of the web console in a browser: each says what it will do, and does it once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from playwright.sync_api import expect

from sbp_core.client import AppendItem, Client, StreamSpec, StreamUpdate, Transaction
from tests.support.clock import until
from tests.support.cluster import rows_batch
from tests.support.warm import WarmCluster
from tests.support.web import browsing, needs_chromium, serving_console

pytestmark = needs_chromium

TIMEOUT_MS = 60_000
HIDDEN = "main form[method=post] input[type=hidden]"


@pytest.fixture(scope="module")
def own():
    """A cluster of these tests alone: they drain its server."""
    with WarmCluster() as running:
        yield running


@pytest.fixture(scope="module")
def client(own):
    with Client(own.endpoint) as connected:
        yield connected


@pytest.fixture(scope="module")
def page(own):
    with serving_console(own.endpoint) as url, browsing() as browser:
        context = browser.new_context(base_url=url)
        context.set_default_timeout(TIMEOUT_MS)
        expect.set_options(timeout=TIMEOUT_MS)
        yield context.new_page()


@pytest.fixture
def stream(client, request):
    """A stream with ten records."""
    (info,) = client.create_streams([StreamSpec(request.node.name[-60:])])
    client.append([AppendItem(info.stream_id, rows_batch([b"x"] * 10))])
    return info


def notice(page):
    return page.locator("main [role=status]")


def facts(page):
    return page.locator("main [data-in-dialog]")


def confirm(page, button, typed=None):
    if typed is not None:
        page.get_by_label("to confirm").fill(typed)
    page.get_by_role("button", name=button).click()


def test_a_stream_is_created_and_changed(page, client):
    page.goto("/streams")
    page.get_by_role("link", name="Create a stream").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("orders")
    dialog.get_by_label("How long").fill("7d")
    dialog.get_by_role("button", name="Preview").click()
    expect(facts(page)).to_contain_text("Records are kept: 7d")
    assert client.find_streams(["orders"]) == []
    confirm(page, "Create it")
    expect(notice(page)).to_contain_text("created orders (id ")
    (info,) = client.describe_streams(["orders"])
    assert info.retention_period_ms == 7 * 86_400_000
    page.get_by_role("link", name="Change", exact=True).click()
    dialog.get_by_label("How long").fill("1d")
    dialog.get_by_role("button", name="Preview").click()
    expect(facts(page)).to_contain_text("removed permanently")
    confirm(page, "Change it")
    expect(notice(page)).to_contain_text("changed orders")
    (info,) = client.describe_streams(["orders"])
    assert info.retention_period_ms == 86_400_000


def test_a_stream_that_cannot_be_created_has_no_button(page, client, stream):
    query = "retention=0&retention_size=0"
    page.goto(f"/streams/new?name=wide&replicas=3&{query}")
    expect(facts(page)).to_contain_text("2 range servers would have to store each record")
    expect(page.get_by_role("button", name="Create it")).to_have_count(0)
    page.goto(f"/streams/new?name={stream.name}&replicas=1&{query}")
    expect(page.get_by_role("alert")).to_contain_text(f"there is a stream {stream.name}")


def test_a_stream_that_changes_since_the_question_stays_as_it_is(page, client, stream):
    query = "replicas=1&ack_count=1&retention=7d&retention_size=0"
    page.goto(f"/streams/{stream.stream_id}/change?name={stream.name}&{query}")
    client.update_streams([StreamUpdate(stream.stream_id, name="renamed")])
    confirm(page, "Change it")
    expect(page.get_by_role("alert")).to_contain_text("nothing was changed: renamed (id ")
    (info,) = client.describe_streams(["renamed"])
    assert info.retention_period_ms == 0


def test_a_trim_counts_the_records_that_go(page, client, stream):
    page.goto(f"/streams/{stream.stream_id}")
    page.get_by_role("link", name="Trim", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("First record to keep").fill("-4")
    dialog.get_by_role("button", name="Preview").click()
    expect(facts(page)).to_contain_text("6 records below offset 6 removed permanently")
    confirm(page, "Trim it")
    expect(notice(page)).to_contain_text("its first record has offset 6")
    (bounds,) = client.stream_bounds([stream.stream_id])
    assert bounds.start_offset == 6


def test_a_trim_of_all_records_asks_for_the_name(page, client, stream):
    page.goto(f"/streams/{stream.stream_id}/trim?position=latest")
    confirm(page, "Trim it", "other")
    expect(page.get_by_role("alert")).to_contain_text(f"nothing was done: type {stream.name}")
    page.go_back()
    confirm(page, "Trim it", stream.name)
    expect(notice(page)).to_contain_text("its first record has offset 10")


def test_another_name_than_that_of_the_stream_deletes_nothing(page, client, stream):
    page.goto(f"/streams/{stream.stream_id}/delete")
    expect(facts(page)).to_contain_text("10 records, removed permanently")
    confirm(page, "Delete it", "other")
    expect(page.get_by_role("alert")).to_contain_text(f"nothing was done: type {stream.name}")
    assert client.find_streams([stream.stream_id]) != []


def test_a_form_that_is_sent_twice_acts_once(page, client):
    page.goto("/streams/new?name=twice&replicas=1&retention=0&retention_size=0")
    fields = {
        each.get_attribute("name"): each.get_attribute("value")
        for each in page.locator(HIDDEN).all()
    }
    origin = page.evaluate("location.origin")

    def send():
        return page.request.post(
            "/streams/new", form=fields, headers={"Origin": origin}, max_redirects=0
        )

    first, second = send(), send()
    assert (first.status, second.status) == (303, 303)
    assert first.headers["location"] == second.headers["location"]
    (info,) = client.find_streams(["twice"])
    assert first.headers["location"].startswith(f"/streams/{info.stream_id}?done=")
    page.goto(first.headers["location"])
    page.reload()
    expect(notice(page)).to_contain_text("created twice")


def test_cursors_move_as_the_preview_shows(page, client, stream):
    client.commit_cursors("billing", {stream.stream_id: 4})
    page.goto("/groups/billing")
    expect(page.locator("#members")).to_contain_text(
        "by a consumer without shared, which reads all streams"
    )
    page.get_by_role("link", name="Move the cursors").click()
    expect(page.get_by_label(stream.name)).to_have_value("4")
    page.get_by_label("All streams").fill("latest")
    page.get_by_role("button", name="Preview").click()
    cells = page.locator("main tbody tr td")
    expect(cells).to_have_text(["4", "10", "+6", "6 records skipped"])
    confirm(page, "Move the cursors")
    expect(notice(page)).to_have_text("moved: 1 cursor of group billing")
    (cursor,) = client.describe_cursors("billing")
    assert cursor.next_offset == 10
    page.goto("/groups/billing/reset")
    page.get_by_label(stream.name).fill("1")
    page.get_by_role("button", name="Preview").click()
    expect(cells).to_have_text(["10", "1", "-9", "9 records read again"])


def test_a_cursor_that_moves_since_the_preview_stops_the_reset(page, client, stream):
    client.commit_cursors("mail", {stream.stream_id: 4})
    page.goto("/groups/mail/reset?together=earliest")
    client.commit_cursors("mail", {stream.stream_id: 7})
    confirm(page, "Move the cursors")
    expect(page.get_by_role("alert")).to_contain_text(
        f"nothing was moved: the cursor of stream {stream.stream_id} went from 4 to 7"
    )
    (cursor,) = client.describe_cursors("mail")
    assert cursor.next_offset == 7


def test_a_group_is_not_reset_under_its_members(page, client, stream):
    client.commit_cursors("team", {stream.stream_id: 4})
    membership = client.join_group("team", [stream.name], session_timeout_ms=60_000)
    page.goto("/groups/team")
    expect(page.locator("#members tbody th")).to_have_text(membership.member_id)
    expect(page.locator("#members tbody")).to_contain_text(stream.name)
    page.goto("/groups/team/reset?together=latest")
    expect(facts(page).first).to_contain_text("Group team has 1 member")
    expect(page.get_by_role("button", name="Move the cursors")).to_have_count(0)
    client.leave_group("team", membership.member_id)
    page.goto("/groups/team/reset?together=latest")
    confirm(page, "Move the cursors")
    expect(notice(page)).to_have_text("moved: 1 cursor of group team")


def test_a_group_that_committed_nothing_has_members_and_no_cursors_to_move(page, client, stream):
    membership = client.join_group("early", [stream.name])
    page.goto("/groups")
    expect(page.locator("#groups tr", has_text="early")).to_contain_text("never")
    page.goto("/groups/early")
    expect(page.locator("#members")).to_contain_text(membership.member_id)
    expect(page.get_by_role("link", name="Move the cursors")).to_have_count(0)
    client.leave_group("early", membership.member_id)


def test_cursors_are_deleted_by_a_dialog(page, client, stream):
    client.commit_cursors("gone", {stream.stream_id: 4})
    page.goto("/groups/gone")
    page.get_by_role("link", name="Delete the cursors").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(stream.name)
    confirm(dialog, "Delete", "gone")
    expect(notice(page)).to_have_text("deleted: 1 cursor of group gone")
    assert client.describe_cursors("gone") == []


def test_a_stuck_batch_is_given_up_by_the_name_of_its_producer(page, client, stream):
    producer, transaction = "etl", Transaction("etl.1.a")
    client.append([AppendItem(stream.stream_id, rows_batch([b"a"]))], transaction=transaction)
    (part,) = transaction.parts()
    more = replace(part, record_count=3)  # three were staged once
    client.commit_txn(producer, 1, [more], record_count=3, digest=bytes(8), timeout_ms=200)
    until(lambda: client.describe_txns(producer)[0].state == "stuck")
    page.goto("/transactions")
    expect(page.get_by_role("heading", name="Stuck: 1")).to_be_visible()
    page.get_by_role("link", name="Give up batch 1 of etl").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"stream {stream.name}: up to 3 records lost permanently")
    confirm(dialog, "Give it up", producer)
    expect(notice(page)).to_contain_text("lost: 3 records of batch 1 of etl")
    expect(page.get_by_role("heading", name="Lost: 1")).to_be_visible()


def test_a_server_is_drained_and_the_drain_is_cancelled(page, client):
    page.goto("/servers")
    page.get_by_role("link", name="Drain range server").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("It gets no new ranges.")
    expect(dialog).to_contain_text("No other server can be given ranges now")
    confirm(dialog, "Drain it")
    expect(page.locator("#servers tbody .state")).to_have_text("live draining")
    (server,) = client.range_servers()
    assert server.is_draining
    page.get_by_role("link", name="Cancel the drain").click()
    confirm(dialog, "Cancel the drain")
    expect(page.locator("#servers tbody .state")).to_have_text("live")
    assert not client.range_servers()[0].is_draining
