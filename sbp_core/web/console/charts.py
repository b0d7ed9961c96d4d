"""Lines over time, as the numbers of an SVG picture that the template macros.html draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

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
_GAP_MS: Final = 25_000
"""Points further apart are not connected: nobody looked in between."""


@dataclass(frozen=True, slots=True)
class Series:
    """Values over time, as (ms since 1970, value), in the order of time."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Line:
    """A line: its path, and its newest value in words."""

    name: str
    path: str
    now: str


@dataclass(frozen=True, slots=True)
class Level:
    """A horizontal line of the grid."""

    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Moment:
    """A time on the axis."""

    x: float
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


def draw(title: str, series: Sequence[Series], now_ms: float, unit: str) -> Chart:
    """Return the chart of the time from the first value to `now_ms`, from zero up.

    `unit` stands behind the newest values. Series without two points are left out.
    """
    drawn = [each for each in series if len(each.points) > 1][:LINES_MAX]
    if not drawn:
        return Chart(f"{title}: not enough was seen yet", (), (), ())
    span_ms = max(now_ms - min(each.points[0][0] for each in drawn), _SPAN_MS_MIN)
    first_ms = now_ms - span_ms
    most = max(value for each in drawn for _, value in each.points)
    top = _ceiling(most)
    depth = HEIGHT - _TOP - _BOTTOM

    def place(at_ms: float, value: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT) * min(max((at_ms - first_ms) / span_ms, 0.0), 1.0)
        return round(x, 1), round(_TOP + depth * (1 - value / top), 1)

    def path(each: Series) -> str:
        parts, before_ms = [], -float("inf")
        for at_ms, value in each.points:
            x, y = place(at_ms, value)
            parts.append(f"{'M' if at_ms - before_ms > _GAP_MS else 'L'}{x} {y}")
            before_ms = at_ms
        return "".join(parts)

    lines = tuple(
        Line(each.name, path(each), f"{count_text(each.points[-1][1])}{unit}") for each in drawn
    )
    parts = (0, 0.5, 1) if top > 1 else (0, 1)
    levels = tuple(
        Level(round(_TOP + depth * (1 - part), 1), short_count(top * part)) for part in parts
    )
    newest = "; ".join(f"{each.name} {each.now}" for each in lines)
    summary = f"{title} over the last {span_ms / 60_000:.0f} min. Now: {newest}"
    return Chart(
        f"{summary}. The most: {count_text(most)}{unit}", lines, levels, _moments(first_ms, now_ms)
    )


def _moments(first_ms: float, now_ms: float) -> tuple[Moment, ...]:
    middle_ms = (first_ms + now_ms) / 2
    return (
        Moment(LEFT, _clock(first_ms), "start"),
        Moment((LEFT + WIDTH) / 2, _clock(middle_ms), "middle"),
        Moment(WIDTH, _clock(now_ms), "end"),
    )


def _clock(at_ms: float) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M:%S")


def _ceiling(value: float) -> float:
    """Return a round number, the value or a little more; 1 for nothing."""
    if value <= 1:
        return 1.0
    scale = 10.0 ** (len(str(int(value))) - 1)
    return next(step * scale for step in _STEPS if step * scale >= value)
