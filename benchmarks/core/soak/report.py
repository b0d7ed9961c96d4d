"""The result of a soak: tables, JSON, and which bars were missed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from benchmarks.core.soak import board
from benchmarks.core.soak.board import Board
from benchmarks.core.soak.cluster import NEVER_RESTARTED, Restart
from benchmarks.core.soak.records import CLICKS, READ, WRITERS
from benchmarks.core.soak.sampling import Look, totals
from benchmarks.core.soak.verdict import Course, Courses, Finding, judge
from benchmarks.harness.tables import table

_PROCESS_HEADER: Final = (
    *("process", "minutes", "anonymous MiB", "growth", "in 1 h", "resident MiB", "growth"),
    *("descriptors", "growth", "threads", "growth"),
)


@dataclass(frozen=True, slots=True)
class Records:
    """Acknowledged records of a writer; those that a reader got, each counted once; and repeats."""

    reader: str
    writer: int
    acknowledged: int
    read: int
    doubled: int

    @property
    def lost(self) -> int:
        """Records that were acknowledged, and not read."""
        return self.acknowledged - self.read


def all_records(counters: Board) -> list[Records]:
    """Return the records of each writer, in each stream and in the query that counts."""
    found = [
        Records(
            stream,
            writer,
            counters[board.acknowledged(writer)],
            counters[board.read(stream, writer)],
            counters[board.doubled(stream, writer)],
        )
        for stream, writer in READ
    ]
    (writer,) = (number for number, streams in enumerate(WRITERS) if CLICKS in streams)
    acknowledged, counted = counters[board.acknowledged(writer)], counters[board.AGGREGATED]
    doubled = max(0, counted - acknowledged)
    found.append(Records("foreachBatch", writer, acknowledged, counted - doubled, doubled))
    return found


@dataclass(frozen=True, slots=True)
class Result:
    """All that a soak has found."""

    looks: Sequence[Look]
    restarts: Sequence[Restart]
    records: Sequence[Records]
    counts: Mapping[str, int]
    failure: str
    """Why the soak ended before its time; empty if it did not."""

    @property
    def findings(self) -> list[Finding]:
        """The verdict on each life of each process."""
        return judge(self.looks)

    @property
    def faults(self) -> list[str]:
        """Each bar that was missed."""
        found = [self.failure] if self.failure else []
        for each in self.findings:
            name = f"{each.process.name} (process {each.process.pid})"
            found += [f"{name}: {fault}" for fault in each.faults]
        for records in self.records:
            where = f"{records.reader}, writer {records.writer}"
            found += [f"{where}: {records.lost} lost"] if records.lost else []
            found += [f"{where}: {records.doubled} doubled"] if records.doubled else []
        return found

    def show(self) -> str:
        """Return the tables, and what was missed."""
        parts = [self._processes(), self._restarts(), self._records(), self._log()]
        parts += [f"MISSED {fault}" for fault in self.faults] or ["all bars held"]
        return "\n\n".join(part for part in parts if part)

    def as_json(self) -> dict[str, Any]:
        """Return everything, with all samples: time in s, then as `Usage` has it."""
        began_s = self.looks[0].at_s
        samples: dict[str, list[list[float]]] = {}
        for look in self.looks:
            for process, usage in look.usages.items():
                key = f"{process.name} {process.pid}"
                samples.setdefault(key, []).append([round(look.at_s - began_s, 1), *usage])
        return {
            "faults": self.faults,
            "processes": [asdict(each) for each in self.findings],
            "restarts": [asdict(each) | {"at_s": each.at_s - began_s} for each in self.restarts],
            "records": [asdict(each) | {"lost": each.lost} for each in self.records],
            "counts": dict(self.counts),
            "log": totals(self.looks),
            "samples": samples,
        }

    def _processes(self) -> str:
        lines = [
            _process_line(each, each.courses) for each in self.findings if each.courses is not None
        ]
        short = Counter(each.process.name for each in self.findings if each.courses is None)
        notes = [f"too short to be judged: {name}, {count}" for name, count in short.items()]
        notes.append(f"{NEVER_RESTARTED} is never restarted")
        return "\n".join([table(_PROCESS_HEADER, lines, text_columns={0}), *notes])

    def _restarts(self) -> str:
        began_s = self.looks[0].at_s
        lines = [
            (
                each.name,
                each.signal,
                f"{(each.at_s - began_s) / 60:.1f}",
                f"{each.down_s:.2f}",
                f"{each.pause_s:.2f}",
            )
            for each in self.restarts
        ]
        header = ("restart", "signal", "minute", "down s", "longest pause of a writer s")
        return table(header, lines, text_columns={0, 1}) if lines else ""

    def _records(self) -> str:
        lines = [
            (
                each.reader,
                f"{each.writer}",
                f"{each.acknowledged:,}",
                f"{each.read:,}",
                f"{each.lost:,}",
                f"{each.doubled:,}",
            )
            for each in self.records
        ]
        header = ("records in", "writer", "acknowledged", "read", "lost", "doubled")
        return table(header, lines, text_columns={0})

    def _log(self) -> str:
        counted = [*self.counts.items(), *totals(self.looks).items()]
        lines = [(name, f"{count:,.0f}") for name, count in counted]
        return table(("counted", "in all"), lines, text_columns={0})


def _process_line(found: Finding, courses: Courses) -> tuple[str, ...]:
    return (
        found.process.name,
        f"{found.seconds / 60:.0f}",
        *_cells(courses.anonymous),
        f"{courses.anonymous.per_hour:+.1f}",
        *_cells(courses.resident),
        *_cells(courses.descriptors),
        *_cells(courses.threads),
    )


def _cells(course: Course) -> tuple[str, str]:
    return f"{course.first:.0f}", f"{course.growth:+.0f}"
