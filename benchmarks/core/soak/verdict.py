"""Whether a process stayed flat.

Each life of a process is judged alone. Its warm-up is its first five minutes, in which caches fill.
Growth is the median of its last minute minus the median of the minute after the warm-up. A life
that has fewer than two minutes after that is shown, and not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import linear_regression, median
from typing import Final

from benchmarks.core.soak.sampling import Look, Process, Usage

MEMORY_MIB_MAX: Final = 32.0
DESCRIPTORS_MAX: Final = 8
"""How much a process may grow."""
WARM_UP_SECONDS: Final = 300.0
_WINDOW_SECONDS: Final = 60.0
_HOUR_SECONDS: Final = 3600.0
_KIB_PER_MIB: Final = 1024.0


@dataclass(frozen=True, slots=True)
class Course:
    """The growth of something: its first value after the warm-up, and its slope in an hour."""

    first: float
    growth: float
    per_hour: float


@dataclass(frozen=True, slots=True)
class Courses:
    """Memory (MiB), descriptors and threads of a process after its warm-up."""

    anonymous: Course
    resident: Course
    descriptors: Course
    threads: Course


@dataclass(frozen=True, slots=True)
class Finding:
    """One life of a process. `courses` is None if it is too short to be judged."""

    process: Process
    seconds: float
    courses: Courses | None = None

    @property
    def faults(self) -> list[str]:
        """Each growth beyond its bar."""
        if self.courses is None:
            return []
        memory_mib = self.courses.anonymous.growth
        descriptors = self.courses.descriptors.growth
        found = [f"memory {memory_mib:+.0f} MiB"] if memory_mib > MEMORY_MIB_MAX else []
        found += [f"descriptors {descriptors:+.0f}"] if descriptors > DESCRIPTORS_MAX else []
        return found


def judge(looks: Sequence[Look]) -> list[Finding]:
    """Return a finding for each life of each process, in the order of their names."""
    lives: dict[Process, list[tuple[float, Usage]]] = {}
    for look in looks:
        for process, usage in look.usages.items():
            lives.setdefault(process, []).append((look.at_s, usage))
    found = [_finding(process, life) for process, life in lives.items()]
    return sorted(found, key=lambda each: (each.process.name, lives[each.process][0][0]))


def _finding(process: Process, life: Sequence[tuple[float, Usage]]) -> Finding:
    first_s, last_s = life[0][0], life[-1][0]
    warm_s = first_s + WARM_UP_SECONDS
    if last_s - warm_s < 2 * _WINDOW_SECONDS:
        return Finding(process, last_s - first_s)
    warm = [(at_s, usage) for at_s, usage in life if at_s >= warm_s]

    def course(of: Callable[[Usage], float]) -> Course:
        times = [at_s for at_s, _ in warm]
        values = [of(usage) for _, usage in warm]
        pairs = list(zip(times, values, strict=True))
        first = median(value for at_s, value in pairs if at_s < warm_s + _WINDOW_SECONDS)
        last = median(value for at_s, value in pairs if at_s > last_s - _WINDOW_SECONDS)
        slope = linear_regression(times, values).slope
        return Course(first, last - first, _HOUR_SECONDS * slope)

    courses = Courses(
        course(lambda usage: usage.anonymous_kib / _KIB_PER_MIB),
        course(lambda usage: usage.resident_kib / _KIB_PER_MIB),
        course(lambda usage: usage.descriptors),
        course(lambda usage: usage.threads),
    )
    return Finding(process, last_s - first_s, courses)
