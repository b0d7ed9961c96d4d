"""`python -m benchmarks.core.overload`: a server that is offered far more than it can do.

First as many appends as it acknowledges at its best, then ten times as many in flight, and more
than its memory can hold, from peers that never wait; then from our own clients. Then a thousand
connections, and five hundred that send a byte a second. The load comes from a process of its own,
on the same machine: each ratio compares two things that ran one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import psutil

from benchmarks.core.load import Answers, Generator, Load, run
from benchmarks.core.servers import batch
from benchmarks.core.slow_peers import slow_peers
from benchmarks.harness.folders import new_folder
from benchmarks.harness.sampler import Sampler
from benchmarks.harness.tables import table
from sbp_core import limits
from sbp_core.client import AppendItem, AsyncClient, Client, StreamSpec
from sbp_core.cluster import LocalCluster
from sbp_core.errors import SbpError

_MIB: Final = 1024 * 1024
_STREAMS: Final = tuple(f"overload-{number}" for number in range(8))
_CLOSED: Final = ((16, 4), (64, 8), (128, 16))
"""Connections, and appends in flight on each, among which the best is looked for."""
_FULL_CONNECTIONS: Final = 1000
_TASKS: Final = 1000
_THREADS: Final = 64
_SLOW_PEERS: Final = 500
_SAMPLE_S: Final = 0.05

Report = Callable[[str], None]


class Bench:
    """A server of its own, with streams to append to."""

    def __init__(self, cluster: LocalCluster, seconds: float) -> None:
        with Client(cluster.endpoint) as client:
            streams = client.create_streams([StreamSpec(name) for name in _STREAMS])
        self.endpoint = cluster.endpoint
        self.stream_ids = tuple(stream.stream_id for stream in streams)
        self.port = int(cluster.range_servers[0].rpartition(":")[2])
        self.seconds = seconds
        self._process = psutil.Process(cluster.pid)

    def load(self, data: bytes, connection_count: int, in_flight: int) -> Load:
        """Return a load on this server."""
        return Load(self.port, self.stream_ids, data, connection_count, in_flight, self.seconds)

    def resident_mib(self) -> float:
        """Return the server's resident memory."""
        return float(self._process.memory_info().rss) / _MIB

    def processor_seconds(self) -> float:
        """Return how long the server has used a processor; others on the machine do not count."""
        times = self._process.cpu_times()
        return float(times.user + times.system)

    @contextmanager
    def watched(self) -> Iterator[list[float]]:
        """Put the server's highest resident memory in MiB, while the body ran, into the list."""
        found: list[float] = []
        sampler = Sampler(
            lambda: {"server": int(self._process.memory_info().rss)}, interval_s=_SAMPLE_S
        )
        with sampler:
            yield found
        found.append(max(sample["server"] for sample in sampler.samples) / _MIB)


@dataclass(frozen=True, slots=True)
class _Found:
    """The results of one load, and its cost for the server."""

    load: Load
    answers: Answers
    peak_mib: float
    processor_seconds: float

    @property
    def per_processor_second(self) -> float:
        return self.answers.asked / self.processor_seconds

    def row(self, best: _Found) -> tuple[str, ...]:
        answers = self.answers
        return (
            f"{self.load.connection_count} x {self.load.in_flight}",
            f"{answers.per_second:,.0f}",
            f"{answers.per_second / best.answers.per_second:.2f}",
            f"{self.per_processor_second:,.0f}",
            f"{self.per_processor_second / best.per_processor_second:.2f}",
            f"{answers.latency_ms(50):,.0f}",
            f"{answers.latency_ms(99):,.0f}",
            f"{answers.refused / answers.seconds:,.0f}",
            f"{answers.failed:,}",
            f"{100 * answers.late / answers.asked:.2f}",
            f"{self.peak_mib:,.0f}",
        )


def measure_overload(bench: Bench, value_bytes: int, report: Report) -> None:
    """Offer more and more appends of one size."""
    data = batch(value_bytes)
    header = (
        *("in flight", "acks/s", "share of best", "answers/CPU s", "share of best"),
        *("p50 ms", "p99 ms", "refused/s", "failed", "late %", "peak MiB"),
    )
    found: list[_Found] = []

    def measure(connection_count: int, in_flight: int) -> None:
        load = bench.load(data, connection_count, in_flight)
        began = bench.processor_seconds()
        with bench.watched() as peak_mib:
            answers = run(load)
        found.append(_Found(load, answers, peak_mib[0], bench.processor_seconds() - began))

    for counts in _CLOSED:
        measure(*counts)
    best = max(found, key=lambda each: each.answers.per_second)
    connection_count = min(10 * best.load.connection_count, _FULL_CONNECTIONS)
    in_flight = 10 * best.load.connection_count * best.load.in_flight
    measure(connection_count, in_flight // connection_count)
    request_bytes = limits.REQUEST_OVERHEAD_BYTES + len(data)
    beyond = 2 * limits.SERVER_IN_FLIGHT_BYTES_MAX // request_bytes // _FULL_CONNECTIONS
    measure(_FULL_CONNECTIONS, beyond)
    rows = [each.row(best) for each in found]
    report(
        f"appends of {value_bytes:,} B, never waiting\n\n{table(header, rows, text_columns={0})}\n"
    )


def measure_clients(bench: Bench, report: Report) -> None:
    """Let our own clients append, many at a time on one connection."""
    data = batch(1024)
    rows = []
    for name, count, append in (
        ("asyncio", _TASKS, _append_in_tasks),
        ("blocking", _THREADS, _append_in_threads),
    ):
        few, _ = append(bench, data, count // 16)
        with bench.watched() as peak_mib:
            many, failures = append(bench, data, count)
        latency = Answers(latencies=many)
        rows.append(
            (
                name,
                f"{count // 16} and {count}",
                f"{len(few) / bench.seconds:,.0f}",
                f"{len(many) / bench.seconds:,.0f}",
                f"{latency.latency_ms(50):,.0f}",
                f"{latency.latency_ms(99):,.0f}",
                f"{failures:,}",
                f"{peak_mib[0]:,.0f}",
            )
        )
    header = (
        *("client", "at a time", "few: acks/s", "many: acks/s"),
        *("p50 ms", "p99 ms", "failed", "peak MiB"),
    )
    report(f"our own clients, one connection\n\n{table(header, rows, text_columns={0, 1})}\n")


def _append_in_tasks(bench: Bench, data: bytes, count: int) -> tuple[list[float], int]:
    async def work(client: AsyncClient, stream_id: int) -> None:
        while (began := time.perf_counter()) < until:
            try:
                await client.append([AppendItem(stream_id, data)])
                latencies.append(time.perf_counter() - began)
            except SbpError as error:
                failures.append(error)

    async def main() -> None:
        async with AsyncClient(bench.endpoint) as client:
            ids = [bench.stream_ids[number % len(bench.stream_ids)] for number in range(count)]
            await asyncio.gather(*(work(client, stream_id) for stream_id in ids))

    latencies: list[float] = []
    failures: list[SbpError] = []
    until = time.perf_counter() + bench.seconds
    asyncio.run(main())
    return latencies, len(failures)


def _append_in_threads(bench: Bench, data: bytes, count: int) -> tuple[list[float], int]:
    latencies: list[float] = []
    failures: list[SbpError] = []

    def work(client: Client, stream_id: int) -> None:
        while (began := time.perf_counter()) < until:
            try:
                client.append([AppendItem(stream_id, data)])
                latencies.append(time.perf_counter() - began)
            except SbpError as error:
                failures.append(error)

    with Client(bench.endpoint) as client:
        until = time.perf_counter() + bench.seconds
        threads = [
            threading.Thread(
                target=work, args=(client, bench.stream_ids[number % len(bench.stream_ids)])
            )
            for number in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return latencies, len(failures)


def measure_connections(bench: Bench, report: Report) -> None:
    """Let a thousand connections be idle, then let all of them append."""
    data = batch(1024)
    run(replace(bench.load(data, 16, 4), seconds=1.0))
    rows = [("none", f"{bench.resident_mib():,.0f}", "")]
    generator = Generator(bench.load(data, _FULL_CONNECTIONS, 1))
    generator.wait_connected()
    rows.append(("idle, after a HEARTBEAT and an APPEND each", f"{bench.resident_mib():,.0f}", ""))
    with bench.watched() as peak_mib:
        generator.start()
        answers = generator.finish()
    rows.append(("all appending", f"{peak_mib[0]:,.0f}", f"{answers.per_second:,.0f}"))
    header = (f"{_FULL_CONNECTIONS} connections", "server MiB", "acks/s")
    report(f"{table(header, rows, text_columns={0})}\n")


def measure_slow_peers(bench: Bench, report: Report) -> None:
    """Let a client append alone, and beside peers that send a byte a second of their frames."""
    load = bench.load(batch(1024), 1, 16)
    before = run(load)
    with slow_peers(bench.port, _SLOW_PEERS) as gone_after_s:
        beside = run(load)
    after = run(load)
    alone = (before.per_second + after.per_second) / 2
    rows = [
        ("alone, before", f"{before.per_second:,.0f}", ""),
        (
            f"beside {_SLOW_PEERS} slow peers",
            f"{beside.per_second:,.0f}",
            f"{beside.per_second / alone:.2f}",
        ),
        ("alone, after", f"{after.per_second:,.0f}", ""),
    ]
    report(table(("a client with 16 in flight", "acks/s", "ratio"), rows, text_columns={0}))
    report(f"the last slow peer was gone after {max(gone_after_s):.1f} s\n")


MEASUREMENTS: Final[dict[str, Callable[[Bench, Report], None]]] = {
    "small": lambda bench, report: measure_overload(bench, 1024, report),
    "large": lambda bench, report: measure_overload(bench, 64 * 1024, report),
    "clients": measure_clients,
    "connections": measure_connections,
    "slow-peers": measure_slow_peers,
}


def main(arguments: Sequence[str]) -> int:
    """Measure; print a table of each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.core.overload", description=__doc__)
    parser.add_argument("--only", action="append", choices=MEASUREMENTS, help="may be repeated")
    parser.add_argument("--seconds", type=float, default=8.0, help="time of each load (8)")
    settings = parser.parse_args(arguments)
    for name in settings.only or MEASUREMENTS:
        with new_folder() as folder, LocalCluster(folder / "data") as cluster:
            bench = Bench(cluster, settings.seconds)
            MEASUREMENTS[name](bench, lambda text: print(text, flush=True))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
