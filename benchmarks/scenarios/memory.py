"""How much memory it takes to move more bytes than anyone should hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import psutil

from benchmarks.harness.model import Case, Measure, Outcome, Series
from benchmarks.harness.sampler import Sampler
from benchmarks.scenarios.bench import Bench, Systems, seconds_to_nothing
from benchmarks.systems.base import LogSystem, System, check_stored


def memory(bench: Bench, systems: Systems) -> list[Outcome]:
    """Write the rows and read them back twice, in a batch and as one micro-batch.

    The Python workers are started before, by moving nothing, so that their start is not growth.
    """
    peaks = {name: _peaks(bench, system) for name, system in systems.items()}
    first = next(each for each in peaks.values() if not isinstance(each, str))
    return [
        Outcome(
            Case("memory", Measure.MEMORY, bench.shape, f"{step}: {process}"),
            tuple(
                Series(name, absent=found)
                if isinstance(found, str)
                else Series(name, ((found[step, process],),))
                for name, found in peaks.items()
            ),
        )
        for step, process in first
    ]


def _peaks(bench: Bench, system: System | str) -> dict[tuple[str, str], float] | str:
    """Return the highest resident bytes of each process in each step."""
    if isinstance(system, str):
        return system
    log_system = cast("LogSystem", system)
    jvm_pid = _java().pid

    def sample() -> Mapping[str, int]:
        return resident_bytes(log_system.server_pid, jvm_pid)

    few = bench.with_shape(replace(bench.shape, rows=len(bench.shape.streams)))
    seconds_to_nothing(few.filled(system).rows())
    store = system.new_store(bench.shape)

    def write() -> None:
        store.batch_writer(bench.input_of(store).rows()).save()
        check_stored(store)

    steps: dict[str, Callable[[], object]] = {
        "write": write,
        "batch read": lambda: seconds_to_nothing(store.rows()),
        "streaming read": lambda: bench.run_seconds(
            store.streamed_rows().writeStream.format("noop")
        ),
    }
    found: dict[tuple[str, str], float] = {}
    for step, work in steps.items():
        with Sampler(sample) as sampler:
            work()
        found |= {(step, process): peak for process, peak in highest(sampler.samples).items()}
        bench.report(f"{step} done")
    return found


def resident_bytes(server_pid: int, jvm_pid: int) -> dict[str, int]:
    """Return the resident bytes of the server, of the JVM, and of the JVM's Python processes.

    Pages that forked processes share count in each of them.
    """
    pythons = [
        size
        for process in psutil.Process(jvm_pid).children(recursive=True)
        if (size := _python_bytes(process)) > 0
    ]
    return {
        "server": psutil.Process(server_pid).memory_info().rss,
        "all Python workers": sum(pythons),
        "largest Python worker": max(pythons, default=0),
        "Java": psutil.Process(jvm_pid).memory_info().rss,
    }


def _java() -> psutil.Process:
    """Return the Java that this process started for Spark."""
    children = psutil.Process().children(recursive=True)
    return next(process for process in children if process.name() == "java")


def _python_bytes(process: psutil.Process) -> int:
    """Return 0 for a process that is not Python's, or that has just ended."""
    try:
        return int(process.memory_info().rss) if "python" in process.name() else 0
    except psutil.NoSuchProcess:
        return 0


def highest(samples: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return the highest of what each process had."""
    return {process: max(sample[process] for sample in samples) for process in samples[0]}
