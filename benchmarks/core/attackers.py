"""`python -m benchmarks.core.attackers`: a client that does no harm, beside attackers.

Each attack (attacks.py) goes on in a process of its own while a client appends batches of 1 KiB,
and another one asks the placement driver. The client connects while the attack is on.

Each round measures the client alone, beside the attack, right after it (when the server may still
work for those who left), beside a process that uses as much of the processors as the attack did and
does nothing to the server, and alone again. Each line gives the median of the rounds: appends per
second by those alone, and the 99th percentile of their latency likewise.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Final

import psutil

from benchmarks.core.attacks import ATTACKS, LONG_NAME, Attackers, Target
from benchmarks.core.load import Answers, run
from benchmarks.core.overload import Bench
from benchmarks.core.servers import batch
from benchmarks.harness.folders import new_folder
from benchmarks.harness.tables import table
from sbp_core.client import AppendItem, Client, StreamSpec
from sbp_core.cluster import LocalCluster

_MIB: Final = 1024 * 1024
_IN_FLIGHT: Final = 4
_OLD_BATCHES: Final = 128
"""Of 1 MiB; what is older than a range server's memory."""
_LONG_NAMES: Final = 3_000
_SETTLE_S: Final = 3.0
"""For an attack to reach its full strength before it is measured."""
_SLICE_S: Final = 0.02
RSS_MIB_MAX: Final = 512
KEPT_MIN: Final = 0.8
P99_MAX: Final = 3.0


@dataclass(slots=True)
class Measured:
    """Results of the harmless client, and their cost; latencies of the driver in seconds."""

    answers: Answers
    peak_mib: float = 0.0
    asked: list[float] = field(default_factory=list)
    failed: int = 0
    busy_share: float = 0.0
    """The share of one processor that the process beside used."""

    @property
    def asked_per_second(self) -> float:
        """Answers of the placement driver in a second."""
        return len(self.asked) / self.answers.seconds

    @property
    def p99_ms(self) -> float:
        """The latency of appends."""
        return self.answers.latency_ms(99)


class Innocent:
    """The client that does no harm."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def measure(self) -> Measured:
        """Append for a while, and ask the placement driver at the same time."""
        is_over = threading.Event()
        found = Measured(Answers())
        asking = threading.Thread(target=self._ask, args=(found, is_over))
        with self._bench.watched() as peak_mib:
            asking.start()
            try:
                found.answers = run(self._bench.load(batch(1024), 1, _IN_FLIGHT))
            finally:
                is_over.set()
                asking.join()
        found.peak_mib = peak_mib[0]
        return found

    def _ask(self, found: Measured, is_over: threading.Event) -> None:
        with Client(self._bench.endpoint) as client:
            while not is_over.is_set():
                began = time.perf_counter()
                client.list_ranges([self._bench.stream_ids[0]])
                found.asked.append(time.perf_counter() - began)
                time.sleep(_SLICE_S)


def _busy(share: float) -> None:
    """Use a share of a processor."""
    while True:
        until = time.perf_counter() + _SLICE_S * share
        while time.perf_counter() < until:
            pass
        time.sleep(_SLICE_S * (1 - share))


@contextmanager
def _beside(share: float) -> Iterator[None]:
    """Run processes that use so much of the processors, and nothing else."""
    shares = [min(1.0, share - number) for number in range(int(share) + 1) if share > number]
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_busy, args=(each,), daemon=True) for each in shares]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join()


@dataclass(frozen=True, slots=True)
class _Ratios:
    """One measurement relative to those without attackers around it."""

    kept: float
    p99: float
    driver_kept: float


@dataclass(frozen=True, slots=True)
class _Round:
    """An attack, once, and what was measured alone around it."""

    before: Measured
    attacked: Measured
    left: Measured
    busy: Measured
    after: Measured

    def ratios(self, measured: Measured) -> _Ratios:
        alone = (self.before.answers.per_second + self.after.answers.per_second) / 2
        asked = (self.before.asked_per_second + self.after.asked_per_second) / 2
        return _Ratios(
            measured.answers.per_second / alone,
            measured.p99_ms / max(self.before.p99_ms, self.after.p99_ms),
            measured.asked_per_second / asked,
        )


def _rounds(name: str, bench: Bench, target: Target, count: int) -> Iterator[_Round]:
    innocent = Innocent(bench)
    before = innocent.measure()
    for _ in range(count):
        with Attackers(name, target) as pid:
            time.sleep(_SETTLE_S)
            process, began = psutil.Process(pid), time.perf_counter()
            used = sum(process.cpu_times()[:2])
            attacked = innocent.measure()
            seconds = time.perf_counter() - began
            attacked.busy_share = (sum(process.cpu_times()[:2]) - used) / seconds
        left = innocent.measure()
        with _beside(attacked.busy_share):
            busy = innocent.measure()
        after = innocent.measure()
        yield _Round(before, attacked, left, busy, after)
        before = after


def _row(name: str, rounds: Sequence[_Round]) -> tuple[str, ...]:
    attacked = [each.ratios(each.attacked) for each in rounds]
    left = [each.ratios(each.left) for each in rounds]
    busy = [each.ratios(each.busy) for each in rounds]
    failed = sum(each.attacked.answers.failed + each.attacked.answers.refused for each in rounds)
    return (
        name,
        f"{ATTACKS[name].connection_count:,}",
        f"{median(each.before.answers.per_second for each in rounds):,.0f}",
        f"{median(each.attacked.answers.per_second for each in rounds):,.0f}",
        *(f"{median(each.kept for each in ratios):.2f}" for ratios in (attacked, left, busy)),
        *(f"{median(each.p99 for each in ratios):.1f}" for ratios in (attacked, left, busy)),
        f"{median(each.driver_kept for each in attacked):.2f}",
        f"{failed:,}",
        f"{median(each.attacked.busy_share for each in rounds):.2f}",
        f"{max(max(each.attacked.peak_mib, each.left.peak_mib) for each in rounds):,.0f}",
    )


_HEADER: Final = (
    *("attack", "connections", "alone acks/s", "acks/s", "kept", "kept, after", "kept, harmless"),
    *("p99 ratio", "p99, after", "p99, harmless", "driver kept", "failed", "its CPUs", "peak MiB"),
)


def _prepare(cluster: LocalCluster, seconds: float) -> tuple[Bench, Target]:
    """Fill a stream with what is old by the end."""
    bench = Bench(cluster, seconds)
    data = batch(_MIB - 2048)
    with Client(cluster.endpoint) as client:
        (old,) = client.create_streams([StreamSpec("old")])
        for _ in range(_OLD_BATCHES):
            client.append([AppendItem(old.stream_id, data)])
        client.create_streams([StreamSpec(f"{LONG_NAME}-{at:05}") for at in range(_LONG_NAMES)])
    driver_port = int(cluster.endpoint.rpartition(":")[2])
    return bench, Target(driver_port, bench.port, old.stream_id, _OLD_BATCHES // 2)


def main(arguments: Sequence[str]) -> int:
    """Measure; print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.core.attackers", description=__doc__
    )
    parser.add_argument("--only", action="append", choices=ATTACKS, help="may be repeated")
    parser.add_argument("--seconds", type=float, default=4.0, help="time of each measurement (4)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each attack (5)")
    settings = parser.parse_args(arguments)
    rows = []
    for name in settings.only or ATTACKS:
        with new_folder() as folder, LocalCluster(folder / "data") as cluster:
            bench, target = _prepare(cluster, settings.seconds)
            rows.append(_row(name, [*_rounds(name, bench, target, settings.rounds)]))
            print(table(_HEADER, rows[-1:], text_columns={0}), flush=True)
    print(f"\n{table(_HEADER, rows, text_columns={0})}")
    print(
        f"wanted: kept and kept after >= {KEPT_MIN}, p99 ratio <= {P99_MAX:.0f},"
        f" peak <= {RSS_MIB_MAX} MiB; what the harmless process costs is not the attack's"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
