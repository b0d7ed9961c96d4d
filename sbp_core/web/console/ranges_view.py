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
    height: float
    kind: str
    inside: str
    title: str


@dataclass(frozen=True, slots=True)
class Lane:
    """A server, and where its lane is."""

    server: str
    y: float


@dataclass(frozen=True, slots=True)
class Mark:
    """An offset at which a range begins."""

    x: float
    text: str


@dataclass(frozen=True, slots=True)
class Picture:
    """The picture; `summary` says in words what it shows."""

    summary: str
    lanes: tuple[Lane, ...]
    cells: tuple[Cell, ...]
    marks: tuple[Mark, ...]
    height: int
    width: int = WIDTH
    left: int = _LEFT


@dataclass(frozen=True, slots=True)
class RangeRow:
    """A range in the table. `end` is None if its server does not answer."""

    index: int
    start: int
    end: int | None
    state: str
    primary: str
    secondaries: str
    fault: str


def make_rows(ranges: Sequence[RangeInfo], at: Reach) -> list[RangeRow]:
    """Return the ranges, the newest first."""
    faults = {each.start_offset: each for each in at.unavailable}
    rows = []
    for each in reversed(ranges):
        fault = faults.get(each.start_offset)
        rows.append(
            RangeRow(
                each.range_index,
                each.start_offset,
                _maybe_end(each, at),
                "open" if each.end_offset is None else "sealed",
                each.servers[0] if each.servers else "no server",
                ", ".join(each.servers[1:]) or "-",
                "" if fault is None else f"cannot be read now: {fault.error}",
            )
        )
    return rows


def draw_ranges(ranges: Sequence[RangeInfo], at: Reach) -> Picture:
    """Return the picture of the newest ranges."""
    drawn = ranges[-DRAWN_MAX:]
    servers = list(dict.fromkeys(server for each in drawn for server in each.servers))
    lanes = tuple(Lane(server, _TOP + LANE * index) for index, server in enumerate(servers))
    tops = {lane.server: lane.y for lane in lanes}
    down = {each.start_offset: each.server for each in at.unavailable}
    boxes = _boxes(drawn, at)
    cells = tuple(
        _cell(
            box, position, server, tops[server], is_down=down.get(box.piece.start_offset) == server
        )
        for box in boxes
        for position, server in enumerate(box.piece.servers)
    )
    marks = [Mark(each.x, count_text(each.piece.start_offset)) for each in boxes]
    left_out = len(ranges) - len(drawn)
    summary = (
        f"{counted(len(ranges), 'range')} on {counted(len(servers), 'server')}"
        f"{f', the newest {len(drawn)} drawn' if left_out else ''}: offsets from left to right"
    )
    return Picture(summary, lanes, cells, _apart(marks), _TOP + LANE * len(lanes) + 4)


@dataclass(frozen=True, slots=True)
class _Box:
    """A range, its end if that is known, and the part of the picture that it has."""

    piece: RangeInfo
    end: int | None
    x: float
    width: float


def _cell(box: _Box, position: int, server: str, top: float, *, is_down: bool) -> Cell:
    piece = box.piece
    role = "primary" if position == 0 else "secondary"
    until = "an end that is not known" if box.end is None else count_text(box.end)
    state = "open" if piece.end_offset is None else "sealed"
    name = f"{role[0].upper()} {piece.range_index}"
    return Cell(
        box.x,
        top + _MARGIN,
        box.width,
        LANE - 2 * _MARGIN,
        "unavailable" if is_down else role,
        f"{name} down" if is_down else name,
        f"range {piece.range_index}, {state}, {count_text(piece.start_offset)} to {until}:"
        f" {role} on {server}{', which does not answer' if is_down else ''}",
    )


def _maybe_end(piece: RangeInfo, at: Reach) -> int | None:
    """Return where a range ends, by its server: the placement driver does not know that if open."""
    if piece.end_offset is not None:
        return piece.end_offset
    return None if at.next_offset is None else max(piece.start_offset, at.next_offset)


def _boxes(drawn: Sequence[RangeInfo], at: Reach) -> list[_Box]:
    """Return the places of ranges, as wide as they have records, but none too small to see."""
    ends = [_maybe_end(each, at) for each in drawn]
    counts = [
        0 if end is None else end - each.start_offset for each, end in zip(drawn, ends, strict=True)
    ]
    total, room = sum(counts), float(WIDTH - _LEFT)
    least = min(_WIDTH_MIN, room / max(len(drawn), 1))
    spare = room - least * len(drawn)
    boxes, x = [], float(_LEFT)
    for each, end, count in zip(drawn, ends, counts, strict=True):
        share = count / total if total else 1 / len(drawn)
        width = least + spare * share
        boxes.append(_Box(each, end, round(x, 1), round(width, 1)))
        x += width
    return boxes


def _apart(marks: Sequence[Mark]) -> tuple[Mark, ...]:
    """Return the marks whose texts do not overlap."""
    kept: list[Mark] = []
    for each in marks:
        if not kept or each.x - kept[-1].x > 8 * len(kept[-1].text) + 8:
            kept.append(each)
    return tuple(kept)
