"""Lines over time, as the numbers of an SVG picture that the template macros.html draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from sbp_core.operating.samples import step_seconds
from sbp_core.web.console.words import count_text, short_count

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
