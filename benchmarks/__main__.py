"""`python -m benchmarks`: measure, print a table, keep the figures."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from benchmarks import headers, isolation, memory, report, sources
from benchmarks.scenarios import SCENARIOS, Scenario, Side, open_bench
from benchmarks.sources import Shape
from sbp_spark.java import use_java

RESULTS: Final = Path(__file__).parent / "results"
TASKS: Final = 2
STREAMS: Final = tuple(f"bench-{index}" for index in range(TASKS))
PAYLOAD_BYTES_DEFAULT: Final = 200_000_000
MEMORY: Final = "memory"
HEADERS: Final = "headers"
CHOICES: Final = (*SCENARIOS, MEMORY, HEADERS)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the settings of a run. Exits with code 2 when they make no sense."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--values", type=_positive, default=100, metavar="BYTES", help="size of a value (100)"
    )
    parser.add_argument("--rows", type=_positive, help="rows of each run (200 MB of values)")
    parser.add_argument("--rounds", type=_positive, default=5, help="timed rounds (5)")
    parser.add_argument(
        "--memory", action="store_true", help="also move 1 GiB and watch the memory"
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
    settings = parser.parse_args(arguments)
    settings.rows = settings.rows or max(1, PAYLOAD_BYTES_DEFAULT // settings.values)
    chosen = settings.only or [*SCENARIOS, *([MEMORY] if settings.memory else [])]
    settings.only = [name for name in CHOICES if name in chosen]
    return settings


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def start_spark(folder: Path) -> SparkSession:
    """Start Spark in this process, with as many task slots as there are streams."""
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


def measure_memory(spark: SparkSession) -> list[report.Memory]:
    """Move 1 GiB of values in and out."""
    shape = Shape(memory.PAYLOAD_BYTES // memory.VALUE_BYTES, memory.VALUE_BYTES, STREAMS)
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


def measure_in_spark(
    settings: argparse.Namespace, shape: Shape, folder: Path
) -> tuple[list[report.Rate], list[report.Memory]]:
    """Measure what moves rows; Spark is not started for anything else."""
    chosen = [SCENARIOS[name] for name in settings.only if name in SCENARIOS]
    if not chosen and MEMORY not in settings.only:
        return [], []
    spark = start_spark(folder)
    rates = [measure(spark, scenario, shape, settings.rounds) for scenario in chosen]
    memories = measure_memory(spark) if MEMORY in settings.only else []
    spark.stop()
    return rates, memories


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
        rates, memories = measure_in_spark(settings, shape, Path(folder))
        costs = headers.measure() if HEADERS in settings.only else []
    what = f"{settings.rows:,} rows of {settings.values} B"
    if rates:
        print(f"\n{what}, {settings.rounds} rounds, {TASKS} tasks\n\n{report.rate_table(rates)}")
    if memories:
        mib = memory.PAYLOAD_BYTES // 2**20
        print(f"\n{mib:,} MiB of {memory.VALUE_BYTES} B values\n\n{report.memory_table(memories)}")
    if costs:
        print(f"\nprocessor time of one header\n\n{report.header_table(costs)}")
    results = RESULTS / "results.json"
    report.write_json(
        results,
        settings={**vars(settings), "tasks": TASKS},
        surroundings=surroundings,
        rates=rates,
        memories=memories,
        headers=costs,
    )
    picture = report.maybe_draw(RESULTS / "results.png", rates, title=what)
    tell(f"\n{results}\n{picture or ''}\n{time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
