"""`python -m benchmarks`: measure, print a table, keep the figures."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from benchmarks import delays, headers, isolation, memory, report, sources, typed
from benchmarks.peer import measure as peers
from benchmarks.peer.report import Comparison, Finding, tables
from benchmarks.scenarios import SCENARIOS, Scenario, Side, open_bench
from benchmarks.sources import Shape
from sbp_spark.java import use_java

RESULTS: Final = Path(__file__).parent / "results"
TASKS: Final = 2
STREAMS: Final = tuple(f"bench-{index}" for index in range(TASKS))
PAYLOAD_BYTES_DEFAULT: Final = 400_000_000
DELAY_VALUE_BYTES: Final = 100
MEMORY: Final = "memory"
HEADERS: Final = "headers"
CHOICES: Final = (
    *SCENARIOS,
    *peers.CHOICES,
    *typed.CHOICES,
    *delays.CHOICES,
    MEMORY,
    HEADERS,
)


@dataclass(frozen=True, slots=True)
class Found:
    """What moving rows in Spark has shown."""

    rates: list[report.Rate] = field(default_factory=list)
    compared: list[Finding] = field(default_factory=list)
    forms: list[Comparison] = field(default_factory=list)
    sizes: list[typed.Size] = field(default_factory=list)
    delayed: list[delays.Delay] = field(default_factory=list)
    memories: list[report.Memory] = field(default_factory=list)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the settings of a run. Exits with code 2 when they make no sense."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--values", type=_positive, default=100, metavar="BYTES", help="size of a value (100)"
    )
    parser.add_argument("--rows", type=_positive, help="rows of each run (400 MB of values)")
    parser.add_argument("--rounds", type=_positive, default=5, help="timed rounds (5)")
    parser.add_argument(
        "--memory",
        action="append",
        nargs="?",
        const=memory.PAYLOAD_MIB_DEFAULT,
        type=_positive,
        metavar="MIB",
        help="also move so many MiB (1024) and watch the memory; may be repeated",
    )
    parser.add_argument(
        "--isolation",
        action="store_true",
        help="measure a reader at the tail beside others that catch up, without Spark, and no more",
    )
    parser.add_argument(
        "--only", action="append", choices=CHOICES, help="measure this only; may be repeated"
    )
    parser.add_argument(
        "--headers",
        dest="only",
        action="append_const",
        const=HEADERS,
        help="the same as --only headers: what headers cost, without Spark",
    )
    parser.add_argument(
        "--kafka",
        action="store_true",
        help="the same as --only for each scenario beside Kafka, whose jars are fetched once",
    )
    settings = parser.parse_args(arguments)
    settings.rows = settings.rows or max(1, PAYLOAD_BYTES_DEFAULT // settings.values)
    asked = [*(settings.only or []), *(peers.CHOICES if settings.kafka else [])]
    usual = [*SCENARIOS, *typed.CHOICES, *delays.CHOICES]
    chosen = asked or [*usual, *([MEMORY] if settings.memory else [])]
    settings.only = [name for name in CHOICES if name in chosen]
    return settings


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def start_spark(folder: Path, jars: Sequence[Path] = ()) -> SparkSession:
    """Start Spark in this process with more jars and as many task slots as there are streams."""
    use_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    inherited = os.environ.get("PYTHONPATH")
    here = str(Path(__file__).parents[1])
    os.environ["PYTHONPATH"] = f"{here}{os.pathsep}{inherited}" if inherited else here
    spark = (
        SparkSession.builder.master(f"local[{TASKS}]")
        .appName("benchmarks")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.jars", ",".join(map(str, jars)))
        .getOrCreate()
    )
    sources.register(spark)
    return spark


def measure(spark: SparkSession, scenario: Scenario, shape: Shape, rounds: int) -> report.Rate:
    """Run both sides in turn, once unmeasured and then `rounds` times."""
    seconds: dict[Side, list[float]] = {side: [] for side in Side}
    with (
        tempfile.TemporaryDirectory(dir=RESULTS, prefix="run-") as folder,
        open_bench(spark, Path(folder), shape) as (bench, _),
    ):
        ready = bench.fill() if scenario.needs_rows else bench
        for number in range(rounds + 1):
            taken = {side: scenario.run(ready, side) for side in Side}
            name = f"round {number}" if number else "warm-up"
            times = ", ".join(f"{side.value} {taken[side]:.2f} s" for side in Side)
            tell(f"{scenario.name}: {name}: {times}")
            for side in Side if number else ():
                seconds[side].append(taken[side])
    return report.rate(
        scenario.name,
        scenario.ceiling,
        rows=shape.rows,
        payload_bytes=shape.payload_bytes,
        seconds=seconds[Side.SBP],
        ceiling_seconds=seconds[Side.CEILING],
    )


def measure_delays(spark: SparkSession, names: Sequence[str], rounds: int) -> list[delays.Delay]:
    """Measure what micro-batches take beside their records, on a server for each."""
    found = []
    for name in names:
        with (
            tempfile.TemporaryDirectory(dir=RESULTS, prefix="run-") as folder,
            open_bench(spark, Path(folder), Shape(0, DELAY_VALUE_BYTES, STREAMS)) as (bench, _),
        ):
            if name == delays.MICRO_BATCH:
                found.append(delays.micro_batches(bench, rounds, tell=tell))
            else:
                found.append(delays.planning(bench.endpoint, rounds, tell=tell))
    return found


def measure_memory(spark: SparkSession, mib: int) -> list[report.Memory]:
    """Move so many MiB of values in and out."""
    shape = Shape(mib * 2**20 // memory.VALUE_BYTES, memory.VALUE_BYTES, STREAMS)
    with (
        tempfile.TemporaryDirectory(dir=RESULTS, prefix="run-") as folder,
        open_bench(spark, Path(folder), shape) as (bench, server_pid),
    ):
        return memory.measure(bench, server_pid, tell=tell)


def run_isolation(rounds: int) -> int:
    """Measure the wait at the tail; return the exit code."""
    with tempfile.TemporaryDirectory(dir=RESULTS, prefix="run-") as folder:
        surroundings = report.environment(Path(folder))
        latencies = isolation.measure(Path(folder) / "data", rounds, tell=tell)
    print(f"\n{report.latency_table(latencies)}")
    found = {"environment": surroundings, "latencies": [asdict(each) for each in latencies]}
    results = RESULTS / "isolation.json"
    results.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    tell(f"\n{results}")
    return 0


def measure_peer(
    spark: SparkSession, peer: peers.Peer, names: Sequence[str], shape: Shape, rounds: int
) -> list[Finding]:
    """Measure the connector beside Kafka, on servers of their own for each scenario."""
    found = []
    for name in names:
        with tempfile.TemporaryDirectory(dir=RESULTS, prefix="run-") as folder:
            found.append(peer.measure(spark, name, shape, rounds, folder=Path(folder), tell=tell))
    return found


def measure_forms(spark: SparkSession, names: Sequence[str], rounds: int) -> list[Comparison]:
    """Measure columns with types beside JSON, on a server for each scenario."""
    found = []
    for name in names:
        with tempfile.TemporaryDirectory(dir=RESULTS, prefix="run-") as folder:
            found.append(typed.measure(spark, name, rounds, folder=Path(folder), tell=tell))
    return found


def measure_sizes(spark: SparkSession) -> list[typed.Size]:
    """Measure the octets of columns with types beside those of JSON."""
    with tempfile.TemporaryDirectory(dir=RESULTS, prefix="run-") as folder:
        return typed.measure_sizes(spark, folder=Path(folder), tell=tell)


def measure_in_spark(settings: argparse.Namespace, shape: Shape, folder: Path) -> Found:
    """Measure what moves rows; Spark is not started for anything else."""
    if all(name == HEADERS for name in settings.only):
        return Found()
    beside = [name for name in settings.only if name in peers.CHOICES]
    peer = peers.Peer.find(tell) if beside else peers.Peer()
    spark = start_spark(folder, peer.connector_jars)
    chosen = [SCENARIOS[name] for name in settings.only if name in SCENARIOS]
    forms = [name for name in settings.only if name in (typed.READ, typed.WRITE)]
    waits = [name for name in settings.only if name in delays.CHOICES]
    mibs = (settings.memory or [memory.PAYLOAD_MIB_DEFAULT]) if MEMORY in settings.only else []
    found = Found(
        rates=[measure(spark, scenario, shape, settings.rounds) for scenario in chosen],
        compared=measure_peer(spark, peer, beside, shape, settings.rounds),
        forms=measure_forms(spark, forms, settings.rounds),
        sizes=measure_sizes(spark) if typed.BYTES in settings.only else [],
        delayed=measure_delays(spark, waits, settings.rounds),
        memories=[each for mib in mibs for each in measure_memory(spark, mib)],
    )
    spark.stop()
    return found


def tell(line: str) -> None:
    """Print a line of progress at once."""
    print(line, file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    """Measure what was asked for; return the exit code."""
    settings = parse_arguments(arguments)
    RESULTS.mkdir(exist_ok=True)
    if settings.isolation:
        return run_isolation(settings.rounds)
    started = time.monotonic()
    shape = Shape(settings.rows, settings.values, STREAMS)
    with tempfile.TemporaryDirectory(dir=RESULTS, prefix="run-") as folder:
        surroundings = report.environment(Path(folder))
        tell(", ".join(f"{name} {value}" for name, value in surroundings.items()))
        found = measure_in_spark(settings, shape, Path(folder))
        costs = headers.measure() if HEADERS in settings.only else []
    what = f"{settings.rows:,} rows of {settings.values} B"
    show(found, costs, what=what, rounds=settings.rounds)
    results = RESULTS / "results.json"
    report.write_json(
        results,
        settings={**vars(settings), "tasks": TASKS},
        surroundings=surroundings,
        rates=found.rates,
        peer=[asdict(each) for each in found.compared],
        typed=[*map(asdict, found.forms), *map(asdict, found.sizes)],
        delays=delays.to_json(found.delayed),
        memories=found.memories,
        headers=costs,
    )
    picture = report.maybe_draw(RESULTS / "results.png", found.rates, title=what)
    tell(f"\n{results}\n{picture or ''}\n{time.monotonic() - started:.0f} s")
    return 0


def show(found: Found, costs: Sequence[report.HeaderCost], *, what: str, rounds: int) -> None:
    """Print the tables of what was measured."""
    if found.rates:
        print(f"\n{what}, {rounds} rounds, {TASKS} tasks\n\n{report.rate_table(found.rates)}")
    if found.compared:
        print(f"\n{what}, {rounds} rounds, beside a peer\n\n{tables(found.compared)}")
    if found.forms:
        print(f"\nflights as columns, {rounds} rounds, {TASKS} tasks\n\n{tables(found.forms)}")
    if found.sizes:
        print(f"\nwhat a flight takes in the log\n\n{typed.size_table(found.sizes)}")
    if found.delayed:
        print(f"\ntime of a micro-batch\n\n{delays.table(found.delayed)}")
    if found.memories:
        print(f"\nvalues of {memory.VALUE_BYTES} B\n\n{report.memory_table(found.memories)}")
    if costs:
        print(f"\nprocessor time of one header\n\n{report.header_table(costs)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
