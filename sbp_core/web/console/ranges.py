"""The ranges of a stream as a picture: offsets from left to right, a lane for each server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sbp_core.client import RangeInfo, Reach
from sbp_core.web.console.words import count_text, counted

WIDTH: Final = 1000
LANE: Final = 30
_LEFT: Final = 190
_TOP: Final = 22
_MARGIN: Final = 5
_WIDTH_MIN: Final = 72
"""The width of a range with few records, if all have room: its text has."""
DRAWN_MAX: Final = 24
"""Ranges in the picture, the newest ones; all are in the table."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A range on one server: `kind` is its style, `inside` its text, `title` all about it."""

    x: float
    y: float
    width: float
    kind: str
    inside: str
    title: str
    height: int = LANE - 2 * _MARGIN


@dataclass(frozen=True, slots=True)
class Picture:
    """The picture; `summary` says in words what it shows.

    `lanes` are servers with the top of their lanes; `marks` are x and offset of ranges' starts.
    """

    summary: str
    lanes: Sequence[tuple[str, int]]
    cells: Sequence[Cell]
    marks: Sequence[tuple[float, str]]
    height: int
    width: int = WIDTH
    left: int = _LEFT


def end_of(piece: RangeInfo, at: Reach) -> int | None:
    """Return the end of a range, None if its server does not answer.

    The placement driver does not know the end of an open range; its server does.
    """
    if piece.end_offset is not None:
        return piece.end_offset
    return None if at.next_offset is None else max(piece.start_offset, at.next_offset)


def draw_ranges(ranges: Sequence[RangeInfo], at: Reach) -> Picture:
    """Return the picture of the newest ranges, as wide as they have records."""
    drawn = ranges[-DRAWN_MAX:]
    servers = list(dict.fromkeys(server for each in drawn for server in each.servers))
    tops = {server: _TOP + LANE * index for index, server in enumerate(servers)}
    down = {(each.start_offset, each.server) for each in at.unavailable}
    cells, marks, x = [], [(-1000.0, "")], float(_LEFT)
    for piece, width in zip(drawn, _widths(drawn, at), strict=True):
        cells += [
            _cell(piece, end_of(piece, at), position, (x, tops[server], width), down)
            for position, server in enumerate(piece.servers)
        ]
        before, text = marks[-1]
        if x - before > 8 * len(text) + 8:  # texts do not overlap
            marks.append((round(x, 1), count_text(piece.start_offset)))
        x += width
    shown = f", the newest {len(drawn)} drawn" if len(drawn) < len(ranges) else ""
    summary = (
        f"{counted(len(ranges), 'range')} on {counted(len(servers), 'server')}{shown}: offsets from"
        " left to right"
    )
    height = _TOP + LANE * len(servers) + 4
    return Picture(summary, [*tops.items()], cells, marks[1:], height)


def _cell(
    piece: RangeInfo,
    end: int | None,
    position: int,
    place: tuple[float, int, float],
    down: set[tuple[int, str | None]],
) -> Cell:
    server, (x, top, width) = piece.servers[position], place
    role = "primary" if position == 0 else "secondary"
    is_down = (piece.start_offset, server) in down
    until = "an end that is not known" if end is None else count_text(end)
    state = "open" if piece.end_offset is None else "sealed"
    name = f"{role[0].upper()} {piece.range_index}"
    return Cell(
        *(round(x, 1), top + _MARGIN, round(width, 1)),
        "unavailable" if is_down else role,
        f"{name} down" if is_down else name,
        f"range {piece.range_index}, {state}, {count_text(piece.start_offset)} to {until}:"
        f" {role} on {server}{', which does not answer' if is_down else ''}",
    )


def _widths(drawn: Sequence[RangeInfo], at: Reach) -> list[float]:
    """Return the widths of ranges, as wide as they have records, but none too small to see."""
    counts = [max((end_of(each, at) or 0) - each.start_offset, 0) for each in drawn]
    total, room = sum(counts), float(WIDTH - _LEFT)
    least = min(_WIDTH_MIN, room / max(len(drawn), 1))
    spare = room - least * len(drawn)
    return [least + spare * (count / total if total else 1 / len(drawn)) for count in counts]
