"""Audit events as the console reads, filters and pages them."""

from __future__ import annotations

import json

import pytest

from sbp_core.web.console.audit_view import (
    ROWS_MAX,
    SEARCHED_MAX,
    AuditPage,
    EventFilter,
    EventSearch,
    parse_event,
)

EVENT = {
    "time": "2026-11-26T07:38:52.673+00:00",
    "server": "placement driver",
    "operation": "CREATE_STREAMS",
    "peer": "127.0.0.1:38636",
    "role": "client",
    "identity": "Alice",
    "stream_id": 1,
    "name": "orders",
    "outcome": "refused",
    "status": "PERMISSION_DENIED",
    "message": "no",
}


def encoded(**changes: object) -> str:
    return json.dumps({**EVENT, **changes})


def test_an_event_has_its_fields_and_the_others_are_details():
    event = parse_event(5, encoded())
    assert (event.offset, event.operation, event.identity) == (5, "CREATE_STREAMS", "Alice")
    assert (event.outcome, event.status, event.message) == ("refused", "PERMISSION_DENIED", "no")
    assert event.details == (("stream_id", "1"), ("name", "orders"))
    assert parse_event(0, '{"operation": "X"}').identity == ""


@pytest.mark.parametrize("value", [None, "", {"base64": "/w=="}, "[1]", "{", "1", "[" * 100_000])
def test_a_record_that_is_no_event_is_shown_as_it_is(value):
    event = parse_event(1, value)
    assert not event.is_readable
    assert [name for name, _ in event.details] == ["record"]


def test_a_filter_looks_for_parts_of_names():
    event = parse_event(0, encoded())
    assert EventFilter().accepts(event)
    assert EventFilter("ali", "streams", "refused").accepts(event)
    assert not EventFilter(outcome="done").accepts(event)
    assert not EventFilter(identity="bob").accepts(event)
    assert not EventFilter(operation="drain").accepts(event)


def searched(count: int, wanted: EventFilter, *, first: int = 0, end: int | None = None):
    """The page of a stream of `count` events, every tenth of which is done."""
    values = [encoded(outcome="refused" if each % 10 else "done") for each in range(count)]
    search = EventSearch(wanted, first, count if end is None else end)
    while (block := search.maybe_block(70)) is not None:
        search.add(block[0], list(enumerate(values))[slice(*block)])
    return search.page()


def test_pages_go_from_the_newest_event_to_the_oldest_without_a_gap():
    offsets: list[int] = []
    end: int | None = 2 * ROWS_MAX + 7
    while end is not None:
        page = searched(2 * ROWS_MAX + 7, EventFilter(), end=end)
        assert page.searched_to == end
        offsets += [event.offset for event in page.events]
        end = page.next_end
    assert offsets == list(reversed(range(2 * ROWS_MAX + 7)))


def test_a_search_for_what_is_rare_ends_and_says_how_far_it_came():
    count = SEARCHED_MAX + 200
    page = searched(count, EventFilter(identity="bob"))
    assert page.events == ()
    assert page.searched_to == count
    assert page.searched_from == page.next_end
    assert 0 <= count - SEARCHED_MAX - page.searched_from < 70
    assert searched(count, EventFilter(), first=count - 3).next_end is None


def test_an_empty_stream_has_an_empty_page():
    assert searched(0, EventFilter()) == AuditPage((), 0, 0, None)
    assert searched(9, EventFilter(), first=7, end=3) == AuditPage((), 3, 3, None)
