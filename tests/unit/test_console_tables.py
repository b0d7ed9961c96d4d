"""Tables of the console: order, pages, and links that keep the rest of the address."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest

from sbp_core.web.console.sorting import Column, make_table, parse_count

COLUMNS = (
    Column("name", "Name", lambda row: row[0]),
    Column("size", "Size", lambda row: row[1], is_number=True),
)
ROWS = [("b", 2), ("a", None), ("c", 9)]


def table(query, rows=ROWS, **options):
    return make_table(rows, COLUMNS, query, "/things", **options)


def names(query):
    return "".join(name for name, _ in table(query).rows)


@pytest.mark.parametrize(
    ("sort", "expected"),
    [("", "abc"), ("-name", "cba"), ("size", "cba"), ("-size", "bca"), ("nonsense", "abc")],
)
def test_numbers_begin_with_the_most_and_unknown_ones_are_last(sort, expected):
    assert names({"sort": sort}) == expected


def test_a_heading_sorts_by_its_column_and_then_the_other_way_round():
    name, size = table({"sort": "size", "search": "x&y", "page": "3"}).headings
    assert (name.order, size.order) == (None, "descending")
    assert parse_qs(urlsplit(name.link).query) == {"sort": ["name"], "search": ["x&y"]}
    assert parse_qs(urlsplit(size.link).query)["sort"] == ["-size"]
    flipped = table({"sort": "-size"}).headings[1]
    assert (flipped.order, flipped.link) == ("ascending", "/things?sort=size")


def test_a_table_has_pages_of_which_the_last_one_is_the_end():
    rows = [(f"{index:03}", index) for index in range(25)]
    first, last = (table({"page": page}, rows, page_rows=10) for page in ("1", "99"))
    assert (first.previous, first.next, first.text) == (None, "/things?page=2", "1 to 10 of 25")
    assert (last.previous, last.next, last.text) == ("/things?page=2", None, "21 to 25 of 25")
    assert table({}, []).text == "0 to 0 of 0"


@pytest.mark.parametrize("text", ["", "-1", "1.5", "\u0661", "9" * 20, str(2**63)])
def test_what_is_no_number_of_64_bits_is_none(text):
    assert parse_count(text) is None
    assert parse_count(str(2**63 - 1)) == 2**63 - 1
