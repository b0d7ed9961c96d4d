"""How much memory it takes to move more bytes than anyone should hold."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Final

import psutil  # type: ignore[import-untyped]

from benchmarks.report import Memory
from benchmarks.scenarios import Bench, Side, available_now_read, batch_read

SAMPLE_INTERVAL_S: Final = 0.5
VALUE_BYTES: Final = 1024
PAYLOAD_MIB_DEFAULT: Final = 1024

_MIB: Final = 1024 * 1024


class Sampler:
    """Calls `sample` at once, every `interval_s`, and once more at the end, in a thread."""

    def __init__(
        self, sample: Callable[[], Mapping[str, int]], *, interval_s: float = SAMPLE_INTERVAL_S
    ) -> None:
        self._sample = sample
        self._interval_s = interval_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-sampler", daemon=True)
        self.samples: list[Mapping[str, int]] = []

    def __enter__(self) -> Sampler:
        self.samples.append(self._sample())
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()
        self.samples.append(self._sample())

    def _run(self) -> None:
        while not self._is_over.wait(self._interval_s):
            self.samples.append(self._sample())


def measure(bench: Bench, server_pid: int, *, tell: Callable[[str], None]) -> list[Memory]:
    """Write the rows of the bench and read them back twice, in batch and as one micro-batch.

    The Python workers are started before, by moving nothing, so that their start is not growth.
    """
    jvm_pid = _java().pid

    def sample() -> Mapping[str, int]:
        return resident_bytes(server_pid, jvm_pid)

    warm = replace(bench, shape=replace(bench.shape, rows=len(bench.shape.streams))).fill()
    batch_read(warm, Side.SBP)
    found: list[Memory] = []
    with Sampler(sample) as sampler:
        filled = bench.fill()
    mib = bench.shape.payload_bytes // _MIB
    found += summarize(f"write {mib:,} MiB", sampler.samples)
    tell(f"memory: {mib:,} MiB written")
    for step, read in (("batch read", batch_read), ("streaming read", available_now_read)):
        with Sampler(sample) as sampler:
            read(filled, Side.SBP)
        found += summarize(f"{step} {mib:,} MiB", sampler.samples)
        tell(f"memory: {step} done")
    return found


def resident_bytes(server_pid: int, jvm_pid: int) -> dict[str, int]:
    """Return the resident octets of the server, of the JVM, and of the JVM's Python processes.

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


def summarize(step: str, samples: Sequence[Mapping[str, int]]) -> list[Memory]:
    """Return first, highest and last of what each process had, in MiB."""
    return [
        Memory(
            step=step,
            process=process,
            start_mib=samples[0][process] / _MIB,
            peak_mib=max(sample[process] for sample in samples) / _MIB,
            end_mib=samples[-1][process] / _MIB,
        )
        for process in samples[0]
    ]
