"""Both sides in turn, or the word that there is no peer."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Final

from pyspark.sql import SparkSession

from benchmarks.peer.broker import open_broker
from benchmarks.peer.jars import PeerAbsentError, Pinned, ensure_jars
from benchmarks.peer.latency import kafka_latencies, sbp_latencies
from benchmarks.peer.report import Absent, Finding, compare, compare_waits
from benchmarks.peer.scenarios import SCENARIOS, KafkaBench, PeerScenario
from benchmarks.scenarios import Bench, Side, open_bench
from benchmarks.sources import Shape

LATENCY: Final = "kafka-latency"
CHOICES: Final = (*SCENARIOS, LATENCY)
OURS: Final = "sbp"
THEIRS: Final = "kafka"
WARM_UPS: Final = 3
"""Rounds that are not timed: Java compiles what it runs often, and Kafka's side is all Java."""

Run = Callable[[], list[float]]
"""Runs one side once and gives its seconds: one time of it all, or one of each record."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Kafka by its jars; without them it is absent, and `absent` tells why."""

    name: str = "Kafka"
    broker_jars: tuple[Path, ...] = ()
    connector_jars: tuple[Path, ...] = ()
    absent: str = ""

    @staticmethod
    def find(tell: Callable[[str], None]) -> Peer:
        """Find the jars, fetching those that are not here."""
        pinned = Pinned.load()
        name = f"Kafka {pinned.broker_version}"
        try:
            broker = ensure_jars(pinned.broker, tell=tell)
            return Peer(name, broker, ensure_jars(pinned.connector, tell=tell))
        except PeerAbsentError as error:
            return Peer(name, absent=str(error))

    def measure(
        self,
        spark: SparkSession,
        scenario: str,
        shape: Shape,
        rounds: int,
        *,
        folder: Path,
        tell: Callable[[str], None],
    ) -> Finding:
        """Run the connector and Kafka in turn, unmeasured first and then `rounds` times.

        Both servers run all the time, on new folders below `folder`.
        """
        if self.absent:
            return Absent(scenario, self.name, self.absent)
        try:
            with (
                open_bench(spark, folder / OURS, shape) as (bench, _),
                open_broker(folder / THEIRS, self.broker_jars) as address,
            ):
                if scenario == LATENCY:
                    sides = _waits(bench, address)
                else:
                    sides = _rates(SCENARIOS[scenario], bench, address)
                found = _in_turn(sides, rounds, tell=lambda line: tell(f"{scenario}: {line}"))
        except PeerAbsentError as error:
            return Absent(scenario, self.name, str(error))
        if scenario == LATENCY:
            return compare_waits(scenario, self.name, found[OURS], found[THEIRS])
        return compare(
            scenario,
            self.name,
            rows=shape.rows,
            payload_bytes=shape.payload_bytes,
            seconds=[*chain.from_iterable(found[OURS])],
            peer_seconds=[*chain.from_iterable(found[THEIRS])],
        )


def _rates(scenario: PeerScenario, bench: Bench, address: str) -> dict[str, Run]:
    """Return what each side runs, its rows being where they are read from."""
    kafka = KafkaBench(bench, address, scenario.settings)
    if scenario.ours.needs_rows:
        bench, kafka = bench.fill(), kafka.fill()
    return {
        OURS: lambda: [scenario.ours.run(bench, Side.SBP)],
        THEIRS: lambda: [scenario.run(kafka)],
    }


def _waits(bench: Bench, address: str) -> dict[str, Run]:
    """Return what each side runs to see how long single records take."""
    kafka = KafkaBench(bench, address)
    return {OURS: partial(sbp_latencies, bench), THEIRS: partial(kafka_latencies, kafka)}


def _in_turn(
    sides: Mapping[str, Run], rounds: int, *, tell: Callable[[str], None]
) -> dict[str, list[list[float]]]:
    """Return the seconds of each side in each round, warm-ups left out."""
    found: dict[str, list[list[float]]] = {side: [] for side in sides}
    for number in range(1 - WARM_UPS, rounds + 1):
        times = []
        for side, run in sides.items():
            os.sync()  # nobody pays for what the other has left to be written
            seconds = run()
            times.append(f"{side} {median(seconds):.3f} s")
            if number > 0:
                found[side].append(seconds)
        tell(f"{f'round {number}' if number > 0 else 'warm-up'}: {', '.join(times)}")
    return found
