"""Runs the systems of a case in turn, A B C A B C, so that what the machine does hits all alike."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Final, TypeVar

from benchmarks.harness.model import OURS, Case, Measure, Outcome, Series
from benchmarks.harness.processor import processor_seconds, since

T = TypeVar("T")
REASON_LENGTH_MAX: Final = 300

Run = Callable[[], Sequence[float]]
"""Does the work of a case on one system once, and gives its numbers."""
Report = Callable[[str], None]


def in_turn(
    case: Case, runs: Mapping[str, Run | str], *, rounds: int, warm_ups: int, report: Report
) -> Outcome:
    """Run each system `warm_ups` times unmeasured and then `rounds` times, in turn.

    A text in the place of a run is the reason why there is none. If a system that we are compared
    with fails, it has no figures from then on. Dirty pages are written to the disk before every
    run, so that no system pays for the writes of another.
    """
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in runs}
    spent: dict[str, list[Mapping[str, float]]] = {name: [] for name in runs}
    there = dict(runs)
    for number in range(1 - warm_ups, rounds + 1):
        results = []
        for name, run in there.items():
            if isinstance(run, str):
                continue
            os.sync()
            before = processor_seconds()
            done = attempt(case, name, run)
            if isinstance(done, str):
                there[name] = done
                results.append(f"{name} {done}")
                continue
            numbers = tuple(done)
            results.append(f"{name} {_text(case.measure, median(numbers))}")
            if number > 0:
                found[name].append(numbers)
                spent[name].append(since(before))
        report(f"{f'round {number}' if number > 0 else 'warm-up'}: {', '.join(results)}")
    return Outcome(
        case,
        tuple(
            Series(name, absent=run)
            if isinstance(run, str)
            else Series(name, tuple(found[name]), processor=tuple(spent[name]))
            for name, run in there.items()
        ),
    )


def attempt(case: Case, name: str, do: Callable[[], T]) -> T | str:
    """Return what `do` gives for a system, or why it failed; a failure of ours is raised."""
    try:
        return do()
    except Exception as error:
        if name == OURS:
            raise
        lines = str(error).strip().splitlines() or [""]
        where = f"{case.scenario} with {len(case.shape.streams)} streams"
        return f"failed in {where}, {type(error).__name__}: {lines[0][:REASON_LENGTH_MAX]}"


def _text(measure: Measure, number: float) -> str:
    return f"{number / 2**20:,.1f} MiB" if measure is Measure.BYTES else f"{number:.3f} s"
