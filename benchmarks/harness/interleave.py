"""Runs the systems of a case in turn, A B C A B C, so that what the machine does hits all alike."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from benchmarks.harness.model import Case, Measure, Outcome, Series

Run = Callable[[], Sequence[float]]
"""Does the work of a case on one system once, and gives its numbers."""
Tell = Callable[[str], None]


def in_turn(
    case: Case, runs: Mapping[str, Run | str], *, rounds: int, warm_ups: int, tell: Tell
) -> Outcome:
    """Run each system `warm_ups` times unmeasured and then `rounds` times, in turn.

    A text in the place of a run tells why there is none. Before every run, what is still to be
    written to the disk is written, so that nobody pays for what another has left.
    """
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in runs}
    for number in range(1 - warm_ups, rounds + 1):
        said = []
        for name, run in runs.items():
            if isinstance(run, str):
                continue
            os.sync()
            numbers = tuple(run())
            said.append(f"{name} {_text(case.measure, median(numbers))}")
            if number > 0:
                found[name].append(numbers)
        tell(f"{f'round {number}' if number > 0 else 'warm-up'}: {', '.join(said)}")
    return Outcome(
        case,
        tuple(
            Series(name, absent=run) if isinstance(run, str) else Series(name, tuple(found[name]))
            for name, run in runs.items()
        ),
    )


def _text(measure: Measure, number: float) -> str:
    return f"{number / 2**20:,.1f} MiB" if measure is Measure.OCTETS else f"{number:.3f} s"
