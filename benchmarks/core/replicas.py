"""`python -m benchmarks.core.replicas`: the cost of three replicas, beside one, and beside Kafka.

A placement driver and three range servers, a process each, on this machine. Bare sockets append
records of 1 KiB from 256 clients, and of 1 MiB from eight, each of which waits for its
acknowledgement, to a stream with one replica and to one with three. The same load goes to Kafka:
three brokers, three replicas, acks=all, min.insync.replicas=2; once as it is by default, which is
without fsync, and once with flush.messages=1. Kafka is left out if its jars cannot be had.

The sides run in turn. All servers share the processors and the disk of this machine, which real
replicas do not: the processor time of all servers per append says what remains of that elsewhere.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

import psutil

from benchmarks.core.load import Answers, Generator, Load
from benchmarks.core.servers import batch
from benchmarks.harness.folders import new_folder
from benchmarks.harness.tables import table
from benchmarks.peer.broker import START_TIMEOUT_S, Broker, open_brokers
from benchmarks.peer.jars import PeerAbsentError, Pinned, ensure_jars
from benchmarks.peer.produce import create_topic
from sbp_core.client import Client, StreamSpec
from sbp_core.cluster import LocalCluster
from sbp_spark.java import use_java

_SERVERS: Final = 3
_ROUNDS: Final = 5
_SECONDS: Final = 2.0
_LARGE_BYTES: Final = 1024 * 1024 - 2048
"""A value that makes a batch of 1 MiB, and a record that Kafka accepts by default."""
_KAFKA_SETTINGS: Final = {"min.insync.replicas": "2"}
_KAFKA_SYNCED: Final = _KAFKA_SETTINGS | {"flush.messages": "1"}
OURS: Final = "sbp, 3 replicas"


@dataclass(frozen=True, slots=True)
class Case:
    """Clients that append values of this size, one at a time each."""

    name: str
    value_bytes: int
    clients: int


CASES: Final = (
    Case("1 KiB, 256 clients", 1024, 256),
    Case("1 MiB, 8 clients", _LARGE_BYTES, 8),
)


@dataclass(frozen=True, slots=True)
class Side:
    """A system that gets the load: the processes of its servers, and when it acknowledges."""

    name: str
    acknowledges: str
    load: Load
    pids: tuple[int, ...]

    def measure(self, case: Case) -> Figures:
        """Append for a while."""
        value = os.urandom(case.value_bytes) if self.load.topic else batch(case.value_bytes)
        load = replace(self.load, batch=value, connection_count=case.clients)
        generator = Generator(load)
        generator.wait_connected()
        before = self._cpu_seconds()
        generator.start()
        answers = generator.finish()
        cpu_seconds = self._cpu_seconds() - before
        if answers.failed or answers.refused:
            raise AssertionError(f"{self.name}: {answers.failed + answers.refused} appends failed")
        return Figures.of(answers, cpu_seconds)

    def _cpu_seconds(self) -> float:
        times = [psutil.Process(pid).cpu_times() for pid in self.pids]
        return float(sum(each.user + each.system for each in times))


@dataclass(frozen=True, slots=True)
class Figures:
    """The results of a run; `cpu_us` is processor time of all servers for an append."""

    per_second: float
    median_ms: float
    p99_ms: float
    cpu_us: float

    @staticmethod
    def of(answers: Answers, cpu_seconds: float) -> Figures:
        """Return the figures of a load."""
        return Figures(
            answers.per_second,
            answers.latency_ms(50),
            answers.latency_ms(99),
            1e6 * cpu_seconds / answers.asked,
        )


def _own_sides(stack: ExitStack, folder: Path, seconds: float) -> list[Side]:
    """Start our servers; return the sides with three replicas and with one."""
    cluster = stack.enter_context(
        LocalCluster(
            folder / "data", range_servers=_SERVERS, start_timeout_ms=1000 * START_TIMEOUT_S
        )
    )
    pids = [cluster.pid, *(each.pid for each in psutil.Process(cluster.pid).children())]
    with Client(cluster.endpoint) as client:
        specs = [StreamSpec(f"of-{count}", replica_count=count) for count in (_SERVERS, 1)]
        streams = client.create_streams(specs)
        ranges = client.list_ranges([each.stream_id for each in streams])
    sides = []
    for name, stream in zip((OURS, "sbp, 1 replica"), streams, strict=True):
        primary = ranges[stream.stream_id][-1].servers[0]
        load = Load(_port(primary), (stream.stream_id,), None, 1, 1, seconds)
        sides.append(Side(name, "after fdatasync", load, tuple(pids)))
    return sides


def _kafka_sides(brokers: Sequence[Broker], seconds: float) -> list[Side]:
    sides = []
    nodes = range(1, len(brokers) + 1)
    for topic, settings, acknowledges in (
        ("synced", _KAFKA_SYNCED, "after fsync"),
        ("unsynced", _KAFKA_SETTINGS, "before fsync"),
    ):
        create_topic(brokers[0].address, topic, nodes, settings)
        load = Load(_port(brokers[0].address), (), None, 1, 1, seconds, topic=topic)
        pids = tuple(each.pid for each in brokers)
        sides.append(Side(f"kafka {topic}, 3 replicas", acknowledges, load, pids))
    return sides


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _rows(case: Case, sides: Sequence[Side], found: Sequence[Sequence[Figures]]) -> list[Row]:
    """Return a row of each side; `found` has the figures of each round, in the order of sides."""
    ours = next(at for at, side in enumerate(sides) if side.name == OURS)
    rows: list[Row] = []
    for at, side in enumerate(sides):
        own = [figures[at] for figures in found]
        ratios = [figures[ours].per_second / figures[at].per_second for figures in found]
        per_second = median(each.per_second for each in own)
        rows.append(
            (
                case.name,
                side.name,
                side.acknowledges,
                f"{per_second:,.0f}",
                f"{per_second * case.value_bytes / 1e6:,.0f}",
                f"{median(each.median_ms for each in own):.1f}",
                f"{median(each.p99_ms for each in own):.1f}",
                f"{median(each.cpu_us for each in own):,.0f}",
                f"{median(ratios):.2f}",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
            )
        )
    return rows


Row = tuple[str, ...]
_HEADER: Final = (
    *("what", "system", "acknowledges", "acks/s", "MB/s", "median ms", "p99 ms"),
    *("CPU us/ack", "ratio", "spread"),
)


def measure(
    *, rounds: int, seconds: float, with_kafka: bool, report: Callable[[str], None]
) -> None:
    """Measure all sides in turn, and print a table."""
    with new_folder() as folder, ExitStack() as stack:
        sides = _own_sides(stack, folder, seconds)
        if with_kafka:
            try:
                use_java()
                jars = ensure_jars(Pinned.load().broker, report=report)
                brokers = stack.enter_context(open_brokers(folder / "kafka", jars, _SERVERS))
                sides += _kafka_sides(brokers, seconds)
            except PeerAbsentError as error:
                report(f"kafka is absent: {error}")
        rows: list[Row] = []
        for case in CASES:
            for side in sides:  # Java compiles what it runs often
                side.measure(case)
            found = [[side.measure(case) for side in sides] for _ in range(rounds)]
            rows += _rows(case, sides, found)
        print(table(_HEADER, rows, text_columns={0, 1, 2}))
        print(f"ratio: acks/s of {OURS} / acks/s of the system; CPU: of all its servers")


def main(arguments: Sequence[str]) -> int:
    """Measure; print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.core.replicas")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="measured rounds (5)")
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="time of a side (2)")
    parser.add_argument("--no-kafka", action="store_true", help="without the peer")
    settings = parser.parse_args(arguments)
    measure(
        rounds=settings.rounds,
        seconds=settings.seconds,
        with_kafka=not settings.no_kafka,
        report=lambda line: print(line, file=sys.stderr, flush=True),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
