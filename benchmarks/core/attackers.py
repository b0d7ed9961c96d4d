"""`python -m benchmarks.core.attackers`: a client that does no harm, beside attackers.

Each attack (attacks.py) goes on in a process of its own while a client appends batches of 1 KiB,
and another one asks the placement driver. They are measured alone before and after, and beside a
process that uses as much of the processors and does nothing to the server: what is lost there is
not what the attack does. The client connects while the attack is on.

Each line says what the client kept: appends per second beside the attack by those alone, the 99th
percentile of their latency likewise, and what it kept beside the harmless process.
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
from typing import Final

import psutil

from benchmarks.core.attacks import ATTACKS, Attackers, Target
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
_SETTLE_S: Final = 3.0
"""For an attack to reach its full strength before it is measured."""
_SLICE_S: Final = 0.02
RSS_MIB_MAX: Final = 512
KEPT_MIN: Final = 0.8
P99_MAX: Final = 3.0


@dataclass(slots=True)
class Measured:
    """What the harmless client got, and what it took: latencies of the driver in seconds."""

    answers: Answers
    peak_mib: float = 0.0
    asked: list[float] = field(default_factory=list)
    failed: int = 0
    busy_share: float = 0.0
    """Of one processor, by the process beside."""

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


def _measure_attack(name: str, bench: Bench, target: Target) -> tuple[str, ...]:
    innocent = Innocent(bench)
    before = innocent.measure()
    with Attackers(name, target) as pid:
        time.sleep(_SETTLE_S)
        process, began = psutil.Process(pid), time.perf_counter()
        used = sum(process.cpu_times()[:2])
        attacked = innocent.measure()
        attacked.busy_share = (sum(process.cpu_times()[:2]) - used) / (time.perf_counter() - began)
    with _beside(attacked.busy_share):
        busy = innocent.measure()
    after = innocent.measure()
    alone = (before.answers.per_second + after.answers.per_second) / 2
    p99_ms = max(before.p99_ms, after.p99_ms)
    asked = (before.asked_per_second + after.asked_per_second) / 2
    return (
        name,
        f"{ATTACKS[name].connection_count:,}",
        f"{alone:,.0f}",
        f"{attacked.answers.per_second:,.0f}",
        f"{attacked.answers.per_second / alone:.2f}",
        f"{busy.answers.per_second / alone:.2f}",
        f"{attacked.p99_ms / p99_ms:.1f}",
        f"{busy.p99_ms / p99_ms:.1f}",
        f"{attacked.asked_per_second / asked:.2f}",
        f"{attacked.answers.failed + attacked.answers.refused:,}",
        f"{attacked.busy_share:.2f}",
        f"{attacked.peak_mib:,.0f}",
    )


_HEADER: Final = (
    *("attack", "connections", "alone acks/s", "acks/s", "kept", "kept, harmless"),
    *("p99 ratio", "p99, harmless", "driver kept", "failed", "its CPUs", "peak MiB"),
)


def _prepare(cluster: LocalCluster, seconds: float) -> tuple[Bench, Target]:
    """Fill a stream with what is old by the end."""
    bench = Bench(cluster, seconds)
    octets = batch(_MIB - 2048)
    with Client(cluster.endpoint) as client:
        (old,) = client.create_streams([StreamSpec("old")])
        for _ in range(_OLD_BATCHES):
            client.append([AppendItem(old.stream_id, octets)])
    driver_port = int(cluster.endpoint.rpartition(":")[2])
    return bench, Target(driver_port, bench.port, old.stream_id, _OLD_BATCHES // 2)


def main(arguments: Sequence[str]) -> int:
    """Measure; print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.core.attackers", description=__doc__
    )
    parser.add_argument("--only", action="append", choices=ATTACKS, help="may be repeated")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement (8)")
    settings = parser.parse_args(arguments)
    rows = []
    for name in settings.only or ATTACKS:
        with new_folder() as folder, LocalCluster(folder / "data") as cluster:
            bench, target = _prepare(cluster, settings.seconds)
            rows.append(_measure_attack(name, bench, target))
            print(table(_HEADER, rows[-1:], text_columns={0}), flush=True)
    print(f"\n{table(_HEADER, rows, text_columns={0})}")
    print(
        f"wanted: kept >= {KEPT_MIN}, p99 ratio <= {P99_MAX:.0f}, peak <= {RSS_MIB_MAX} MiB;"
        " what the harmless process costs is not the attack's"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
