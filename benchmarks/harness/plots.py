"""Pictures of the results: how much in a second, how late, and how cost grows with the work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.harness.model import Case, Measure, Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS: Final = {
    "sbp": "#2a7f9e",
    "sbp at-least-once": "#8cc3d6",
    "sbp JSON": "#8cc3d6",
    "ceiling": "#9a9a9a",
    "kafka": "#c8553d",
    "kafka JSON": "#c8553d",
    "kafka synced": "#e3a99d",
}
PERCENTILES: Final = (50, 90, 99, 100)

Draw = Callable[["Axes", Sequence[Outcome]], None]


def draw(folder: Path, outcomes: Sequence[Outcome]) -> list[Path]:
    """Draw a PNG for each kind of picture there are outcomes for; none without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return []
    found = []
    for name, title, plot, chosen in _pictures(outcomes):
        figure = Figure(figsize=(9, max(4.0, 1.5 + 0.6 * len(chosen))), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        plot(axes, chosen)
        axes.set_title(title, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        axes.legend(handles.values(), handles.keys(), frameon=False)
        figure.savefig(folder / f"{name}.png", dpi=120)
        found.append(folder / f"{name}.png")
    return found


def _pictures(
    outcomes: Sequence[Outcome],
) -> list[tuple[str, str, Draw, list[Outcome]]]:
    """Return name, title, way and content of the pictures that have one."""
    rates = [each for each in outcomes if each.case.measure is Measure.RATE]
    groups = _growing(outcomes)
    found = [
        ("throughput", "MB/s of values", _bars, [each for each in rates if _is_plain(each)]),
        (
            "latency",
            "ms by percentile",
            _lines,
            [each for each in outcomes if each.case.scenario.startswith("latency")],
        ),
        *(
            (f"growth-{name}", f"{name}: seconds by {axis}", _growth(axis), group)
            for name, (axis, group) in groups.items()
        ),
    ]
    return [each for each in found if each[3]]


def _is_plain(outcome: Outcome) -> bool:
    return outcome.case.shape.rows > len(outcome.case.shape.streams)


def _growing(outcomes: Sequence[Outcome]) -> dict[str, tuple[str, list[Outcome]]]:
    """Return the scenarios whose cases differ in one thing that grows, and its name."""
    axes = {
        "backlog-read": "rows",
        "streams-read": "streams",
        "streams-write": "streams",
        "planning": "streams",
    }
    groups = {
        name: (axis, [each for each in outcomes if each.case.scenario == name])
        for name, axis in axes.items()
    }
    return {name: found for name, found in groups.items() if len(found[1]) > 1}


def _bars(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    """Draw a group of bars for each case, from the top down."""
    for place, outcome in enumerate(outcomes):
        measured = [each for each in outcome.series if each.rounds]
        height = 0.8 / len(measured)
        for index, series in enumerate(measured):
            rate = outcome.case.shape.payload_bytes / series.typical / 1e6
            where = place - 0.4 + (index + 0.5) * height
            color = COLORS.get(series.system)
            axes.barh(where, rate, height * 0.9, color=color, label=series.system)
    axes.set_yticks(range(len(outcomes)), [_label(each.case) for each in outcomes])
    axes.set_ylim(len(outcomes) - 0.5, -0.5)
    axes.set_xlabel("MB/s")


def _lines(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    """Draw a line over the percentiles for each system of each case."""
    for outcome, style in zip(outcomes, ("-", "--", ":", "-."), strict=False):
        for series in outcome.series:
            if series.rounds:
                times = [series.percentile(percent) * 1000 for percent in PERCENTILES]
                axes.plot(
                    [str(percent) for percent in PERCENTILES],
                    times,
                    style,
                    marker="o",
                    color=COLORS.get(series.system),
                    label=f"{series.system}, {outcome.case.scenario}",
                )
    axes.set_ylim(bottom=0)
    axes.set_xlabel("percentile (100: the longest)")
    axes.set_ylabel("ms")


def _growth(axis: str) -> Draw:
    def plot(axes: Axes, outcomes: Sequence[Outcome]) -> None:
        for system in (series.system for series in outcomes[0].series if series.rounds):
            points = [
                (_size(outcome.case, axis), series.typical)
                for outcome in outcomes
                for series in outcome.series
                if series.system == system and series.rounds
            ]
            color = COLORS.get(system)
            axes.plot(*zip(*points, strict=True), marker="o", color=color, label=system)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(axis)
        axes.set_ylabel("seconds")

    return plot


def _size(case: Case, axis: str) -> int:
    return len(case.shape.streams) if axis == "streams" else case.shape.rows


def _label(case: Case) -> str:
    name = f"{case.scenario} {case.detail}".strip()
    shape = case.shape
    return f"{name}, {shape.rows:,} x {shape.value_bytes:,} B, {len(shape.streams)} str."
