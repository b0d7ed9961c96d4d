"""Pictures of the console as numbers, which the template macros.html draws as SVG.

Charts are lines over time. The picture of a stream has offsets from left to right, and a lane for
each server of its ranges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from sbp_core.client import RangeInfo, Reach
from sbp_core.operating.samples import step_seconds
from sbp_core.web.console.words import count_text, counted, short_count

WIDTH: Final = 600
HEIGHT: Final = 170
LEFT: Final = 56
_TOP: Final = 10
_BOTTOM: Final = 22
LINES_MAX: Final = 5
"""Lines of a chart; more cannot be told apart."""
_STEPS: Final = (1, 2, 5, 10)
_SPAN_MS_MIN: Final = 60_000
_GAP_STEPS: Final = 2.5
"""Points further apart than this many steps of samples are not connected: these failed between."""
SPANS: Final[Mapping[str, float]] = {
    "15 min": 900e3,
    "1 h": 3_600e3,
    "6 h": 6 * 3_600e3,
    "24 h": 24 * 3_600e3,
}
"""The times that a chart may show, in ms."""
SPARK_WIDTH: Final = 80
SPARK_HEIGHT: Final = 18
SPARK_SPAN_MS: Final = SPANS["15 min"]


@dataclass(frozen=True, slots=True)
class Series:
    """Values over time, as (ms since 1970, value), in the order of time."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Line:
    """A line: its path, the values of its points in words, and the newest of these."""

    name: str
    path: str
    values: str
    now: str


@dataclass(frozen=True, slots=True)
class Level:
    """A horizontal line of the grid."""

    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Moment:
    """A time on the axis, in ms since 1970, and its text in UTC."""

    x: float
    at_ms: int
    text: str
    anchor: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture of `width` by `height`; `summary` says in words what it shows."""

    summary: str
    lines: tuple[Line, ...]
    levels: tuple[Level, ...]
    times: tuple[Moment, ...]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT


def span_of(query: Mapping[str, str]) -> str:
    """Return the time that the charts of an address show, a key of SPANS."""
    asked = query.get("span", "")
    return asked if asked in SPANS else next(iter(SPANS))


def draw(
    title: str,
    series: Sequence[Series],
    now_ms: float,
    unit: str,
    span_ms: float = SPANS["24 h"],
) -> Chart:
    """Return the chart of the last `span_ms`, or of the time since the first value; from zero up.

    `unit` stands behind values. Series without two points are left out.
    """
    drawn = [
        Series(each.name, points)
        for each in series
        if len(points := [point for point in each.points if point[0] >= now_ms - span_ms]) > 1
    ][:LINES_MAX]
    if not drawn:
        return Chart(f"{title}: not enough was seen yet", (), (), ())
    frame = _Frame.around(drawn, now_ms, (LEFT, _TOP, WIDTH - LEFT, HEIGHT - _TOP - _BOTTOM))
    lines = tuple(
        Line(
            each.name,
            frame.path(each.points),
            "|".join(f"{count_text(value)}{unit}" for _, value in each.points),
            f"{count_text(each.points[-1][1])}{unit}",
        )
        for each in drawn
    )
    parts = (0, 0.5, 1) if frame.top > 1 else (0, 1)
    levels = tuple(
        Level(frame.place(now_ms, frame.top * part)[1], short_count(frame.top * part))
        for part in parts
    )
    most = count_text(max(value for each in drawn for _, value in each.points))
    minutes = (now_ms - frame.first_ms) / 60_000
    shown = f"{minutes / 60:.0f} h" if minutes > 120 else f"{minutes:.0f} min"
    newest = "; ".join(f"{each.name} {each.now}" for each in lines)
    summary = f"{title} over the last {shown}. Now: {newest}. The most: {most}{unit}"
    return Chart(summary, lines, levels, _moments(frame.first_ms, now_ms))


def draw_spark(points: Sequence[tuple[float, float]], now_ms: float) -> str:
    """Return the path of a small line without axes; nothing without two points, or for zeros."""
    if len(points) < 2 or not any(value for _, value in points):
        return ""
    area = (1.0, 2.0, SPARK_WIDTH - 2.0, SPARK_HEIGHT - 4.0)
    return _Frame.around([Series("", points)], now_ms, area).path(points)


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where times from `first_ms` to `now_ms` and values from 0 to `top` are in an area.

    `area` is x, y, width and height.
    """

    first_ms: float
    now_ms: float
    top: float
    area: tuple[float, float, float, float]

    @classmethod
    def around(
        cls, series: Sequence[Series], now_ms: float, area: tuple[float, float, float, float]
    ) -> _Frame:
        """Return the frame that all points of these series are in."""
        first_ms = min(now_ms - _SPAN_MS_MIN, *(each.points[0][0] for each in series))
        most = max(value for each in series for _, value in each.points)
        return cls(first_ms, now_ms, _ceiling(most), area)

    def place(self, at_ms: float, value: float) -> tuple[float, float]:
        """Return x and y of a point."""
        left, top, width, height = self.area
        part = (at_ms - self.first_ms) / (self.now_ms - self.first_ms)
        x = left + width * min(max(part, 0.0), 1.0)
        return round(x, 1), round(top + height * (1 - value / self.top), 1)

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        """Return the line through points, which has gaps where samples failed."""
        parts, before_ms = [], -float("inf")
        for at_ms, value in points:
            x, y = self.place(at_ms, value)
            gap_ms = _GAP_STEPS * 1000 * step_seconds((self.now_ms - before_ms) / 1000)
            parts.append(f"{'M' if at_ms - before_ms > gap_ms else 'L'}{x} {y}")
            before_ms = at_ms
        return "".join(parts)


def _moments(first_ms: float, now_ms: float) -> tuple[Moment, ...]:
    pattern = "%H:%M:%S" if now_ms - first_ms < 7_200e3 else "%H:%M"
    middle_ms = (first_ms + now_ms) / 2
    places = (
        (LEFT, first_ms, "start"),
        ((LEFT + WIDTH) / 2, middle_ms, "middle"),
        (WIDTH, now_ms, "end"),
    )
    return tuple(
        Moment(x, int(at_ms), datetime.fromtimestamp(at_ms / 1000, UTC).strftime(pattern), anchor)
        for x, at_ms, anchor in places
    )


def _ceiling(value: float) -> float:
    """Return a round number, the value or a little more; 1 for nothing."""
    if value <= 1:
        return 1.0
    scale = 10.0 ** (len(str(int(value))) - 1)
    return next(step * scale for step in _STEPS if step * scale >= value)


PICTURE_WIDTH: Final = 1000
LANE: Final = 30
_PICTURE_LEFT: Final = 190
_PICTURE_TOP: Final = 22
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
    width: int = PICTURE_WIDTH
    left: int = _PICTURE_LEFT


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
    tops = {server: _PICTURE_TOP + LANE * index for index, server in enumerate(servers)}
    down = {(each.start_offset, each.server) for each in at.unavailable}
    cells, marks, x = [], [(-1000.0, "")], float(_PICTURE_LEFT)
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
    height = _PICTURE_TOP + LANE * len(servers) + 4
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
    total, room = sum(counts), float(PICTURE_WIDTH - _PICTURE_LEFT)
    least = min(_WIDTH_MIN, room / max(len(drawn), 1))
    spare = room - least * len(drawn)
    return [least + spare * (count / total if total else 1 / len(drawn)) for count in counts]
