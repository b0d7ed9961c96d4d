"""Feeds damaged inputs to one of the parsers, or to all of them in turn.

    python tests/fuzz/run.py headers --runs 100000 --seed 7
    python tests/fuzz/run.py headers --replay crash-headers
    python tests/fuzz/run.py headers --runs 100000 --engine atheris    # pip install '.[fuzz]'

An input fails when an exception escapes from the target's check, when it takes more than a second
of processor time, or when the process grows by more than MEMORY_GROWTH_BYTES_MAX. It is then in the
file crash-TARGET-SEED for --replay, also when a signal killed the process. The other engine is
libFuzzer with its own bounds; it leaves a file of its own beside that one.
"""

from __future__ import annotations

import argparse
import mmap
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

INPUT_SECONDS_MAX = 1.0
MEMORY_GROWTH_BYTES_MAX = 256 << 20
LENGTH_BYTES = 8
TARGET_NAMES = (
    "frames",
    "headers",
    "envelope",
    "rows",
    "columns",
    "schema",
    "session",
    "features",
    "tls",
    "kafka",
    "log",
    "entries",
)


class HangError(Exception):
    """An input took too much processor time."""


class BlackBox:
    """The input being tried, in a file that survives the process: its length, then its bytes."""

    def __init__(self, path: Path, input_bytes_max: int) -> None:
        self.path = path
        with path.open("w+b") as file:
            file.truncate(LENGTH_BYTES + input_bytes_max)
            self._map = mmap.mmap(file.fileno(), 0)

    def note(self, data: bytes) -> None:
        self._map[LENGTH_BYTES : LENGTH_BYTES + len(data)] = data
        self._map[:LENGTH_BYTES] = len(data).to_bytes(LENGTH_BYTES, "big")

    def keep(self) -> None:
        self._map.close()

    def drop(self) -> None:
        self._map.close()
        self.path.unlink()


def read_input(path: Path) -> bytes:
    """Return the input in a file of BlackBox."""
    data = path.read_bytes()
    length = int.from_bytes(data[:LENGTH_BYTES], "big")
    return data[LENGTH_BYTES : LENGTH_BYTES + length]


class Watch:
    """Tries inputs within the bounds on time and memory; used as a context manager."""

    def __init__(self, check: Callable[[bytes], None]) -> None:
        self._check = check
        self._status = os.open("/proc/self/status", os.O_RDONLY)
        self._peak_before = self._peak_bytes()

    def __enter__(self) -> Watch:
        self._handler_before = signal.signal(signal.SIGPROF, self._expired)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self._handler_before)
        os.close(self._status)

    @property
    def grown_bytes(self) -> int:
        return self._peak_bytes() - self._peak_before

    def try_input(self, data: bytes) -> None:
        signal.setitimer(signal.ITIMER_PROF, INPUT_SECONDS_MAX)
        self._check(data)
        if self.grown_bytes > MEMORY_GROWTH_BYTES_MAX:
            raise MemoryError(f"the process has grown by {self.grown_bytes} bytes")

    def _peak_bytes(self) -> int:
        """Return the process's largest resident size; getrusage would count its parent's too."""
        status = os.pread(self._status, 4096, 0)
        return int(status.split(b"VmHWM:")[1].split(b"kB")[0]) * 1024

    def _expired(self, *_: object) -> None:
        raise HangError(f"more than {INPUT_SECONDS_MAX} s of processor time")


def replay(name: str, path: Path) -> None:
    from fuzz_targets import TARGETS

    with Watch(TARGETS[name].check) as watch:
        watch.try_input(read_input(path))
    print(f"{name}: {path} passes")


def run_mutations(name: str, runs: int, seed: int, crashes: Path) -> None:
    from fuzz_mutations import INPUT_BYTES_MAX, mutate
    from fuzz_targets import TARGETS

    target = TARGETS[name]
    corpus = target.corpus()
    for data in corpus:
        target.check(data)
    rng = Random(seed)
    box = BlackBox(crashes / f"crash-{name}-{seed}", INPUT_BYTES_MAX)
    started = time.monotonic()
    with Watch(target.check) as watch:
        for number in range(runs):
            data = mutate(rng, corpus)
            box.note(data)
            try:
                watch.try_input(data)
            except BaseException:
                box.keep()
                print(f"{name}: seed {seed}, input {number}: kept as {box.path}", flush=True)
                raise
        grown_mib = watch.grown_bytes >> 20
    box.drop()
    seconds = time.monotonic() - started
    print(f"{name}: {runs} inputs, seed {seed}, {seconds:.1f} s, peak +{grown_mib} MiB", flush=True)


def run_atheris(name: str, runs: int, seed: int, crashes: Path) -> None:
    """Let libFuzzer choose inputs by the coverage they reach. Ends the process."""
    import atheris

    with atheris.instrument_imports(include=["sbp_core"]):
        from fuzz_targets import TARGETS
    from fuzz_mutations import INPUT_BYTES_MAX

    target = TARGETS[name]
    folder = Path(tempfile.mkdtemp(prefix="sbp-fuzz-"))
    for index, data in enumerate(target.corpus()):
        (folder / str(index)).write_bytes(data)

    def check(data: bytes) -> None:
        try:
            target.check(data)
        except Exception:
            BlackBox(crashes / f"crash-{name}-{seed}", INPUT_BYTES_MAX).note(data)
            raise

    options = [
        f"-runs={runs}",
        f"-seed={seed}",
        f"-max_len={INPUT_BYTES_MAX}",
        "-timeout=10",
        f"-artifact_prefix={crashes}/libfuzzer-{name}-",
    ]
    atheris.Setup([sys.argv[0], *options, str(folder)], check)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description="Feed damaged inputs to a parser.")
    parser.add_argument("target", choices=[*TARGET_NAMES, "all"])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument("--replay", type=Path, help="try the input in this file, and no other")
    parser.add_argument("--engine", choices=["mutations", "atheris"], default="mutations")
    parser.add_argument("--crashes", type=Path, default=Path(), help="folder for failing inputs")
    arguments = parser.parse_args()
    seed = time.time_ns() % 2**31 if arguments.seed is None else arguments.seed
    names = TARGET_NAMES if arguments.target == "all" else (arguments.target,)
    for name in names:
        if arguments.replay is not None:
            replay(name, arguments.replay)
        elif arguments.engine == "atheris":
            run_atheris(name, arguments.runs, seed, arguments.crashes)
        else:
            run_mutations(name, arguments.runs, seed, arguments.crashes)


if __name__ == "__main__":
    main()
