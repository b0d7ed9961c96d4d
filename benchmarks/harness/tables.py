"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from benchmarks.harness.model import Measure, Outcome, Series
from benchmarks.harness.processor import PARTS

_MIB: Final = 1024 * 1024


def show(outcomes: Sequence[Outcome]) -> str:
    """Return a table for each kind of measure, a line for each system of a case."""
    makers = {
        Measure.RATE: _rates,
        Measure.DELAY: _delays,
        Measure.BYTES: _sizes,
        Measure.MEMORY: _memories,
    }
    parts = []
    for measure, make in makers.items():
        chosen = [each for each in outcomes if each.case.measure is measure]
        parts += [make(chosen)] if chosen else []
    spent = _processor_lines([each for each in outcomes if each.case.measure is Measure.RATE])
    header = (*_CASE, "core s", *PARTS)
    parts += [table(header, spent, text_columns=_TEXTS)] if spent else []
    absent = {
        f"{series.system} is absent: {series.absent}"
        for outcome in outcomes
        for series in outcome.series
        if series.absent
    }
    return "\n\n".join([*parts, *sorted(absent)])


def _rates(outcomes: Sequence[Outcome]) -> str:
    header = (*_CASE, "rows/s", "MB/s", "seconds", *_RATIO)
    lines = []
    for outcome in outcomes:
        shape = outcome.case.shape
        for series in _measured(outcome):
            rates = (shape.rows / series.typical, shape.payload_bytes / series.typical / 1e6)
            numbers = (*(f"{rate:,.0f}" for rate in rates), f"{series.typical:.2f}")
            lines.append((*_case(outcome, series), *numbers, *_ratio(outcome, series)))
    return table(header, lines, text_columns=_TEXTS)


def _delays(outcomes: Sequence[Outcome]) -> str:
    header = (*_CASE, "p50 ms", "p99 ms", "max ms", *_RATIO)
    lines = []
    for outcome in outcomes:
        for series in _measured(outcome):
            numbers = [f"{series.percentile(percent) * 1000:,.1f}" for percent in (50, 99, 100)]
            lines.append((*_case(outcome, series), *numbers, *_ratio(outcome, series)))
    return table(header, lines, text_columns=_TEXTS)


def _sizes(outcomes: Sequence[Outcome]) -> str:
    header = (*_CASE, "MiB", "B/row", *_RATIO)
    lines = []
    for outcome in outcomes:
        for series in _measured(outcome):
            numbers = (series.typical / _MIB, series.typical / outcome.case.shape.rows)
            texts = [f"{number:,.1f}" for number in numbers]
            lines.append((*_case(outcome, series), *texts, *_ratio(outcome, series)))
    return table(header, lines, text_columns=_TEXTS)


def _memories(outcomes: Sequence[Outcome]) -> str:
    header = (*_CASE, "MiB", *_RATIO)
    lines = []
    for outcome in outcomes:
        for series in _measured(outcome):
            text = f"{series.typical / _MIB:,.0f}"
            lines.append((*_case(outcome, series), text, *_ratio(outcome, series)))
    return table(header, lines, text_columns=_TEXTS)


def _processor_lines(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """Return the core-seconds of each process, and the part of them that the kernel took."""
    lines = []
    for outcome in outcomes:
        for series in _measured(outcome):
            if series.processor:
                spent = [series.core_seconds(part) for part in PARTS]
                texts = (f"{seconds:.2f}" for seconds in (sum(spent[:-1]), *spent))
                lines.append((*_case(outcome, series), *texts))
    return lines


_CASE: Final = ("scenario", "values", "streams", "rows", "system")
_RATIO: Final = ("ours is better", "spread")
_TEXTS: Final = {0, 4}


def _measured(outcome: Outcome) -> list[Series]:
    return [series for series in outcome.series if series.rounds]


def _case(outcome: Outcome, series: Series) -> tuple[str, ...]:
    case = outcome.case
    name = f"{case.scenario} {case.detail}".strip()
    shape = case.shape
    numbers = (f"{shape.value_bytes:,}", f"{len(shape.streams):,}", f"{shape.rows:,}")
    return (name, *numbers, series.system)


def _ratio(outcome: Outcome, series: Series) -> tuple[str, str]:
    ratio = outcome.ratio(series)
    if ratio is None:
        return "", ""
    return f"{ratio.typical:.2f}", f"{ratio.low:.2f} to {ratio.high:.2f}"


def table(
    header: tuple[str, ...], lines: Sequence[tuple[str, ...]], *, text_columns: set[int]
) -> str:
    """Return a table for the terminal: columns as wide as their longest cell, numbers right."""
    cells = [header, *lines]
    widths = [max(len(line[index]) for line in cells) for index in range(len(header))]
    rule = tuple("-" * width for width in widths)
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index in text_columns else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (header, rule, *lines)
    )
