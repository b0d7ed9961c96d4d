"""The web console in a real browser, against a cluster."""

from __future__ import annotations

import contextlib
import json
import re
from urllib.parse import quote

import pyarrow as pa
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from sbp_core.client import AppendItem, Client, StreamSpec
from sbp_core.records import StreamSchema, encode_columns
from tests.support.cluster import rows_batch
from tests.support.warm import WarmCluster
from tests.support.web import browsing, needs_chromium, serving_console

pytestmark = [pytest.mark.browser, needs_chromium]

HOSTILE = "<img src=x onerror=alert(1)>"
TIMEOUT_MS = 60_000
expect.set_options(timeout=TIMEOUT_MS)


@pytest.fixture(scope="module")
def own():
    """A cluster that no other tests have streams in, so that the pages show what is expected."""
    with WarmCluster() as running:
        yield running


@pytest.fixture(scope="module")
def client(own):
    with Client(own.endpoint) as connected:
        yield connected


@pytest.fixture(scope="module")
def streams(client):
    """The ids of streams with plain records, with typed ones, and with hostile ones."""
    names = ("plain", "typed", "hostile")
    found = {info.name: info.stream_id for info in client.create_streams([*map(StreamSpec, names)])}
    for number in range(3):
        values = [f'{{"number": {number}, "index": {index}}}'.encode() for index in range(40)]
        client.append([AppendItem(found["plain"], rows_batch(values))])
    client.append([AppendItem(found["hostile"], rows_batch([HOSTILE.encode(), b"\xff\xfe\x00"]))])
    given = StreamSchema.of(pa.schema([pa.field(HOSTILE, pa.string())]))
    client.evolve_schema(found["hostile"], given, may_change=True)
    columns = [pa.field("id", pa.int64()), pa.field("city", pa.string())]
    for count in (1, 2):
        given = StreamSchema.of(pa.schema(columns[:count]))
        version = client.evolve_schema(found["typed"], given, may_change=True)
        data = [pa.array([1, 2, 3]), pa.array(["Oslo", "Bern", None])][:count]
        rows = pa.record_batch(data, schema=given.arrow)
        batch = encode_columns(rows, version.schema, stream_id=found["typed"], timestamp_ms=1)
        client.append([AppendItem(found["typed"], batch)])
    client.commit_cursors("billing", {found["plain"]: 20})
    client.seal_streams([found["plain"]])
    return found


@pytest.fixture(scope="module")
def url(own):
    with serving_console(own.endpoint) as served:
        yield served


@pytest.fixture(scope="module")
def browser():
    with browsing() as running:
        yield running


@contextlib.contextmanager
def opened(browser, url, **options):
    """A page of its own session; it has no errors, which include those of the content policy."""
    context = browser.new_context(base_url=url, **options)
    context.set_default_timeout(TIMEOUT_MS)
    page, faults = context.new_page(), []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("dialog", lambda dialog: faults.append(dialog.message))
    page.on("console", lambda message: faults.append(message.text))
    yield page
    context.close()
    assert faults == []


@pytest.fixture
def page(browser, url, streams):
    with opened(browser, url) as shown:
        yield shown


PAGES = (
    *("/", "/groups", "/groups/billing", "/transactions", "/servers", "/login", "/streams/new"),
    *("/streams", "/streams?search=nothing", "/streams/plain", "/streams/{plain}/change"),
    *("/streams/{plain}/trim", "/streams/{plain}/delete", "/streams/plain/records"),
    *("/streams/plain/records?from=0", "/streams/plain/records/7", "/streams/typed/schema"),
    *("/streams/typed/records?from=0", "/streams/typed/schema?before=1&after=2"),
)
"""Paths, with the ids of streams to fill in."""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_every_page_keeps_the_rules_of_accessibility(browser, url, streams, width, theme):
    viewport = {"width": width, "height": 800}
    with opened(browser, url, color_scheme=theme, viewport=viewport) as page:
        for path in PAGES:
            assert page.goto(path.format(**streams)).status == 200, path
            found = Axe().run(page)
            assert found.violations_count == 0, f"{path}: {found.generate_report()}"


@pytest.mark.parametrize("width", [360, 390])
def test_a_narrow_page_does_not_scroll_sideways(browser, url, streams, width):
    with opened(browser, url, viewport={"width": width, "height": 640}) as page:
        for path in PAGES:
            page.goto(path.format(**streams))
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
            places = page.get_by_role("navigation", name="Pages", exact=True).get_by_role("link")
            boxes = [each.bounding_box() for each in places.all()]
            assert len(boxes) == 5
            assert all(0 <= each["x"] <= width - each["width"] for each in boxes), path


def test_the_tab_key_comes_first_to_the_skip_link_and_to_each_place(page):
    page.goto("/streams")
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport(ratio=1)
    for name in ("sbp console", "Overview", "Streams", "Groups", "Transactions", "Servers"):
        page.keyboard.press("Tab")
        focused = page.get_by_role("banner").get_by_role("link", name=name, exact=True)
        expect(focused).to_be_focused()
        style = focused.evaluate("each => getComputedStyle(each).outlineStyle")
        assert style == "solid", name
    skip.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    inside = page.evaluate("document.activeElement.closest('main') !== null")
    assert inside, "the next stop behind the skip link is in the content"


def test_numbers_and_records_move_while_the_page_stays(page, client):
    (info,) = client.create_streams([StreamSpec("moving")])
    page.goto("/streams/moving/records?live=1")
    page.evaluate("window.isSamePage = true")
    expect(page.locator("main tbody")).to_contain_text("sbp produce moving")
    client.append([AppendItem(info.stream_id, rows_batch([b"first of all"]))])
    expect(page.locator("main tbody")).to_contain_text("first of all")
    assert page.evaluate("window.isSamePage")
    page.keyboard.press("p")
    expect(page.get_by_role("button", name="Pause")).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("status")).to_have_text("Paused")


def test_records_are_searched_page_by_page(page):
    page.goto("/streams/plain/records?from=0&count=10")
    expect(page.locator("main tbody tr")).to_have_count(10)
    page.get_by_role("link", name="Later").click()
    expect(page.locator("main tbody th").first).to_have_text("10")
    page.get_by_label("Text in any value").fill('"index": 39')
    page.get_by_label("From").fill("earliest")
    page.get_by_label("Records", exact=True).fill("2")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("main tbody th")).to_have_text(["39", "79"])
    page.get_by_role("link", name="Search on").click()
    expect(page.locator("main tbody th")).to_have_text(["119"])
    page.locator("main tbody a").click()
    expect(page.get_by_role("dialog")).to_contain_text('"number": 2')
    page.get_by_role("dialog").get_by_role("link", name="Previous").click()
    expect(page.get_by_role("dialog")).to_contain_text('"index": 38')


def test_a_search_goes_on_to_the_end_and_says_how_far_it_is(page, streams):
    on = '<a href="/streams/plain/records?text=number&count=500&from=100" data-search-on>On</a>'

    def shorten(route):
        """Answer as if the first step of a search had not come to the end."""
        answer, links = route.fetch(), 'aria-label="Other records">'
        route.fulfill(response=answer, body=answer.text().replace(links, links + on))

    page.route(re.compile(r"records\?text=number&count=500$"), shorten)
    page.goto("/streams/plain/records?text=number&count=500")
    expect(page.locator(".progress [role=status]")).to_contain_text("140 found. That is the end")
    expect(page.locator("main tbody th").last).to_have_text("119")
    saved = page.get_by_role("link", name="Save as CSV")
    expect(saved).to_have_attribute("href", re.compile("count=140"))
    page.goto("/streams/plain/records?text=not+there")
    expect(page.locator("main tbody")).to_contain_text("No record here fits")


def test_times_are_of_the_zone_of_the_reader_and_utc_on_demand(browser, url, streams):
    with opened(browser, url, timezone_id="Asia/Kolkata") as page:
        page.goto("/streams/plain/records?from=0&count=1")
        time = page.locator(".records time")
        expect(time).to_have_text("2023-11-15 03:43:20")
        expect(time).to_have_attribute("title", "2023-11-14 22:13:20 UTC")
        page.get_by_label("From").fill("2023-11-15T03:43")
        page.get_by_role("button", name="Show").click()
        expect(page).to_have_url(re.compile("from=2023-11-14T22%3A13%3A00Z"))
        expect(page.get_by_label("From")).to_have_value("2023-11-15T03:43:00")


def test_columns_are_left_out_and_stay_so(page):
    page.goto("/streams")
    expect(page.get_by_role("columnheader", name="Retention")).to_be_visible()
    page.locator(".chooser summary").click()
    page.get_by_label("Retention").uncheck()
    expect(page.get_by_role("columnheader", name="Retention")).to_have_count(0)
    page.reload()
    expect(page.get_by_role("columnheader", name="Records/s")).to_be_visible()
    expect(page.get_by_role("columnheader", name="Retention")).to_have_count(0)


def test_rows_are_cards_on_a_narrow_page(browser, url, streams):
    with opened(browser, url, viewport={"width": 390, "height": 844}) as page:
        page.goto("/streams?search=plain")
        row = page.get_by_role("row").filter(has_text="plain")
        assert row.bounding_box()["width"] < 390
        cell = row.get_by_role("cell").filter(has_text="120").first
        shown = cell.evaluate("each => getComputedStyle(each, '::before').content")
        assert shown == '"Records"'


def test_a_chart_says_its_values_at_the_pointer_and_by_the_keyboard(page, streams):
    page.goto("/streams/plain")
    chart = page.locator("#rates [data-chart]")
    expect(chart).to_be_visible()
    chart.hover()
    expect(page.locator("#rates .tip")).to_contain_text("plain:")
    page.mouse.move(1, 1)
    expect(page.locator("#rates .tip")).to_have_count(0)
    chart.focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#rates .tip")).to_contain_text("plain:")


def test_columns_of_typed_records_are_a_table_and_can_be_searched(page):
    page.goto("/streams/typed/records?from=0")
    expect(page.locator("main thead th")).to_have_text(["Offset", "id", "city"])
    page.get_by_label("Column").fill("city=Bern")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("main tbody tr")).to_have_text([re.compile(r"4\s*2\s*Bern")])


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ("from=abc", "'abc' is no"),
        ("from=99999", "99999"),
        ("from=0&count=abc", "'abc' is not a number from 1 to 1000"),
        ("from=0&count=100000000", "'100000000' is not a number from 1 to 1000"),
        ("from=0&column=price", "no column 'price': the stream has id, city"),
    ],
)
def test_what_cannot_be_shown_is_an_error_and_no_empty_table(browser, url, streams, query, fault):
    context = browser.new_context(base_url=url)
    page = context.new_page()
    page.goto(f"/streams/typed/records?{query}")
    expect(page.locator("#records [role=alert]")).to_contain_text(fault)
    expect(page.locator("#records table, #records nav")).to_have_count(0)
    context.close()


def test_what_is_shown_can_be_kept(page):
    page.goto("/streams/plain/records?from=5&count=3")
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Save as JSON lines").click()
    assert downloading.value.suggested_filename == "plain-5-8.jsonl"
    lines = downloading.value.path().read_text().splitlines()
    assert [json.loads(line)["offset"] for line in lines] == [5, 6, 7]


def test_hostile_names_and_values_are_text(page):
    page.goto("/streams/hostile/records?from=0")
    expect(page.locator("main tbody")).to_contain_text(HOSTILE)
    page.goto("/streams/hostile/records/0")
    expect(page.locator("pre").last).to_have_text(HOSTILE)
    page.goto("/streams/hostile/records/1")
    expect(page.locator("pre").last).to_contain_text("ff fe 00")
    page.goto("/streams/hostile/schema")
    expect(page.locator("main tbody")).to_contain_text(HOSTILE)
    page.goto(f"/streams?search={quote(HOSTILE)}")
    expect(page.get_by_label("Name or id")).to_have_value(HOSTILE)


def test_favourites_are_kept(page):
    page.goto("/streams")
    page.get_by_role("button", name="Favourite typed").click()
    page.goto("/")
    links = page.get_by_role("navigation", name="Favourite streams")
    links.get_by_role("link", name="typed").click()
    star = page.get_by_role("button", name="Favourite typed")
    expect(star).to_have_attribute("aria-pressed", "true")


def test_the_keyboard_is_enough(page):
    page.goto("/")
    page.keyboard.press("g")
    page.keyboard.press("s")
    expect(page.get_by_role("heading", level=1)).to_have_text("Streams")
    page.keyboard.press("/")
    expect(page.get_by_label("Name or id")).to_be_focused()
    page.keyboard.type("typ")
    page.keyboard.press("Enter")
    expect(page.locator("main tbody tr")).to_have_count(1)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_theme_is_kept(browser, url):
    with opened(browser, url, color_scheme="light") as page:
        page.goto("/login")
        ground = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(ground)
        page.get_by_role("button", name="Theme: system").click()
        page.get_by_role("button", name="Theme: light").click()
        assert page.evaluate(ground) != light
        page.reload()
        assert page.evaluate(ground) != light


def test_an_action_asks_and_is_done_once_confirmed(page, client):
    client.create_streams([StreamSpec("doomed")])
    page.goto("/streams/doomed")
    page.get_by_role("link", name="Delete").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("to confirm").fill("doomed")
    dialog.get_by_role("link", name="Cancel").click()
    assert client.find_streams(["doomed"]) != []
    page.get_by_role("link", name="Delete").click()
    dialog.get_by_label("to confirm").fill("doomed")
    dialog.get_by_role("button").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Streams")
    assert client.find_streams(["doomed"]) == []


def test_every_page_works_without_the_script(browser, url, streams, client):
    with opened(browser, url, java_script_enabled=False) as page:
        page.goto("/streams?sort=records")
        expect(page.locator("main tbody th").first).to_contain_text("plain")
        page.get_by_label("Name or id").fill("typed")
        page.get_by_role("button", name="Search").click()
        page.get_by_role("link", name="typed").click()
        page.get_by_role("link", name="Trim").click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(page.get_by_role("heading", level=1)).to_contain_text("typed")


def test_a_cluster_that_is_down_is_said_to_be_and_its_pages_come_back(browser, streams):
    with WarmCluster() as other, serving_console(other.endpoint) as served:
        context = browser.new_context(base_url=served)
        context.set_default_timeout(TIMEOUT_MS)
        page = context.new_page()
        page.goto("/streams")
        expect(page.locator("main caption")).to_have_text("0 streams")
        other.kill()
        expect(page.get_by_role("alert")).to_contain_text("refused")
        expect(page.locator("#live-state")).to_contain_text("Not live")
        other.restart()
        expect(page.locator("main caption")).to_have_text("0 streams")
        expect(page.locator("#live-state")).to_have_text("Live")
        context.close()
