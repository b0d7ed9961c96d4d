"""Tables that the server sorts and cuts into pages; their links keep the rest of the address."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlencode

T = TypeVar("T")

ROWS_PER_PAGE: Final = 100


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """A column that sorts by `key`; rows where that is None are last. Numbers begin with most."""

    name: str
    title: str
    key: Callable[[T], Any]
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Heading:
    """The head of a column: where its link leads, and how it is sorted now (as `aria-sort`)."""

    name: str
    is_number: bool
    link: str
    order: str | None


@dataclass(frozen=True, slots=True)
class Table(Generic[T]):
    """The rows of one page of a table. `text` says which; links are None at the ends."""

    headings: tuple[Heading, ...]
    rows: tuple[T, ...]
    total: int
    text: str
    previous: str | None
    next: str | None


def make_table(
    rows: Sequence[T],
    columns: Sequence[Column[T]],
    query: Mapping[str, str],
    path: str,
    *,
    page_rows: int = ROWS_PER_PAGE,
) -> Table[T]:
    """Return the page of the rows that the query of an address asks for.

    `sort` names a column, with a minus before it for the other direction; `page` counts from 1.
    A value that is wrong counts as left out.
    """
    asked = query.get("sort", "")
    named = {each.name: each for each in columns}
    by = named.get(asked.removeprefix("-"), columns[0])
    is_descending = by.is_number != asked.startswith("-")
    known = [each for each in rows if by.key(each) is not None]
    known.sort(key=by.key, reverse=is_descending)
    ordered = known + [each for each in rows if by.key(each) is None]
    page_count = max(-(-len(ordered) // page_rows), 1)
    page = min(max(parse_count(query.get("page", "")) or 1, 1), page_count)
    first = (page - 1) * page_rows
    shown = tuple(ordered[first : first + page_rows])

    def heading(column: Column[T]) -> Heading:
        is_one = column is by
        flipped = is_one and not asked.startswith("-")
        link = link_to(path, query, sort=f"{'-' if flipped else ''}{column.name}", page=None)
        order = ("descending" if is_descending else "ascending") if is_one else None
        return Heading(column.title, column.is_number, link, order)

    return Table(
        tuple(map(heading, columns)),
        shown,
        len(ordered),
        f"{first + 1 if shown else 0:,} to {first + len(shown):,} of {len(ordered):,}",
        link_to(path, query, page=str(page - 1)) if page > 1 else None,
        link_to(path, query, page=str(page + 1)) if page < page_count else None,
    )


def link_to(path: str, query: Mapping[str, str], **changes: str | None) -> str:
    """Return an address with parts of its query changed; None leaves one out."""
    parts = {**query, **changes}
    text = urlencode({name: value for name, value in parts.items() if value})
    return f"{path}?{text}" if text else path


def parse_count(text: str) -> int | None:
    """Return the number that a text is; None if it is none, or no 64-bit one."""
    is_number = text.isascii() and text.isdigit() and len(text) <= 19
    return int(text) if is_number and int(text) < 2**63 else None
