"""`python -m benchmarks`: measure in Spark, print tables, keep the figures."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import SparkSession

from benchmarks.harness.environment import environment
from benchmarks.harness.folders import RESULTS, new_folder
from benchmarks.harness.model import Outcome, Shape
from benchmarks.harness.plots import draw
from benchmarks.harness.results import write_results
from benchmarks.harness.session import start_spark
from benchmarks.harness.tables import show
from benchmarks.scenarios.bench import Bench
from benchmarks.scenarios.catalogue import SCENARIOS, Scenario
from benchmarks.systems import sources
from benchmarks.systems.opening import Peer, open_systems
from benchmarks.systems.sources import TASKS

DRIVER_MEMORY: Final = "4g"
"""Spark's default of 1g is too little for Kafka's consumers of sixteen partitions."""
ARROW: Final = "spark.sql.execution.arrow"
ARROW_BYTES: Final = 4 * 1024 * 1024
ARROW_ROWS: Final = 10_000
"""As that page advises, too: the rows of a batch that a task writes, instead of `ARROW_BYTES`."""
WARM_UPS: Final = 5
"""Rounds that are not measured: Java compiles what it runs often, and Kafka's side is all Java. In
the first case of a run, rounds still took less from the fourth to the eighth."""


@dataclass(frozen=True, slots=True)
class Job:
    """A scenario with one of its shapes."""

    scenario: Scenario
    shape: Shape


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the settings of a run. Exits with code 2 when they make no sense."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--full", action="store_true", help="all shapes: 40 minutes")
    parser.add_argument("--rounds", type=_positive, default=5, help="measured rounds (5)")
    parser.add_argument(
        "--only", action="append", choices=SCENARIOS, help="measure this only; may be repeated"
    )
    parser.add_argument(
        "--values",
        action="append",
        type=_positive,
        metavar="BYTES",
        help="only cases with values of this size; may be repeated",
    )
    parser.add_argument(
        "--times", type=_positive, default=1, metavar="N", help="N times the rows of each case"
    )
    parser.add_argument(
        "--no-kafka", action="store_true", help="without the peer, whose jars are fetched once"
    )
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def jobs(settings: argparse.Namespace) -> list[Job]:
    """Return what is to be measured. A scenario that is asked for by name has all its shapes."""
    chosen = [SCENARIOS[name] for name in SCENARIOS if name in (settings.only or SCENARIOS)]
    return [
        Job(scenario, replace(shape, rows=shape.rows * settings.times))
        for scenario in chosen
        for shape in (*scenario.shapes, *_more_shapes(scenario, settings))
        if not settings.values or shape.value_bytes in settings.values
    ]


def _more_shapes(scenario: Scenario, settings: argparse.Namespace) -> tuple[Shape, ...]:
    return scenario.full_shapes if settings.full or settings.only else ()


def measure(spark: SparkSession, job: Job, peer: Peer, *, rounds: int, label: str) -> list[Outcome]:
    """Measure one case on servers of its own."""
    scenario, shape = job.scenario, job.shape
    arrow_rows = min(ARROW_ROWS, max(1, ARROW_BYTES // shape.value_bytes))
    spark.conf.set(f"{ARROW}.maxRecordsPerBatch", str(arrow_rows))
    what = f"{label} {scenario.name}, {shape.rows:,} x {shape.value_bytes:,} B"

    def say(line: str) -> None:
        report(f"{what}, {len(shape.streams)} streams: {line}")

    with (
        new_folder() as folder,
        open_systems(spark, folder, scenario.systems, peer) as systems,
    ):
        bench = Bench(spark, folder, shape, rounds, WARM_UPS, say)
        outcomes = list(scenario.run(bench, systems))
    spark.catalog.clearCache()
    return outcomes


def report(line: str) -> None:
    """Print a line of progress at once."""
    print(line, file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    """Measure what was asked for; return the exit code."""
    settings = parse_arguments(arguments)
    started = time.monotonic()
    peer = Peer(absent="not asked for") if settings.no_kafka else Peer.find(report)
    with new_folder() as folder:
        surroundings = environment(folder) | {"kafka": peer.version or peer.absent}
        report(", ".join(f"{name} {value}" for name, value in surroundings.items()))
        spark = start_spark(folder, tasks=TASKS, memory=DRIVER_MEMORY, jars=peer.connector_jars)
        sources.register(spark)
        outcomes: list[Outcome] = []
        chosen = jobs(settings)
        for number, job in enumerate(chosen, start=1):
            label = f"[{number}/{len(chosen)}]"
            outcomes += measure(spark, job, peer, rounds=settings.rounds, label=label)
            write_results(
                RESULTS / "results.json",
                settings={**vars(settings), "tasks": TASKS, "warm_ups": WARM_UPS},
                environment=surroundings,
                outcomes=outcomes,
            )
        spark.stop()
    print(f"\n{show(outcomes)}")
    pictures = draw(RESULTS, outcomes)
    if not pictures:
        report("no pictures: matplotlib is not installed, or there is none of these scenarios")
    report("\n".join(map(str, ["", RESULTS / "results.json", *pictures])))
    report(f"{time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
