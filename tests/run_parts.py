"""Run the tests in parts, two at a time: `tests/run_parts.py {all,quick} [OPTION_OF_PYTEST ...]`.

A test waits for disks, servers or Java more than it computes, so two parts side by side take little
longer than one. `all` runs the tests with Spark beside those without, and then those that kill
Spark's drivers: they need the machine for themselves. `quick` runs what needs no server and no
Spark, without the tests that are marked as exhaustive and with a quarter of the examples that
hypothesis tries. Options that name tests, or that need the
terminal, are given to a single pytest as they are.
"""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]
EXIT_OK, EXIT_INTERRUPTED, EXIT_NO_TESTS = 0, 130, 5  # the last one is pytest's

SPARK = ["tests/spark", "tests/notebooks"]
SPARK += [f"tests/docs/test_{name}.py" for name in ("documents", "first_query")]
SPARK_UNIT = "tests/unit/test_spark_*.py"
CONNECTOR = ["tests/tidy", "tests/property", *map(str, sorted(ROOT.glob(SPARK_UNIT)))]
DRIVERS = [f"tests/faults/test_{name}.py" for name in ("driver_kill", "sink_kill", "speculation")]
SOON_DONE = ["-m", "not exhaustive", "--hypothesis-profile=quick"]
ALONE = {"--pdb", "--trace", "-s", "-h", "--help", "--version", "--co", "--collect-only"}
LAST_FAILED = {"--lf", "--last-failed"}
STOPS_EARLY = ("-x", "--exitfirst", "--maxfail")


@dataclass(frozen=True)
class Part:
    """A run of pytest of its own."""

    name: str
    words: list[str]


PLANS = {
    "all": [
        [
            Part("without Spark", [f"--ignore={path}" for path in SPARK + DRIVERS]),
            Part("with Spark", SPARK),
        ],
        [Part("killing drivers of Spark", DRIVERS)],
    ],
    "quick": [
        [
            Part("for the core", ["tests/unit", f"--ignore-glob={SPARK_UNIT}", *SOON_DONE]),
            Part("for the connector, property, tidy", [*CONNECTOR, *SOON_DONE]),
        ]
    ],
}
"""The parts, in the order they run; those in one list run at the same time."""
DURATIONS = {"all": ["--durations=25", "--durations-min=1"], "quick": []}


def main(plan: str, options: Sequence[str]) -> int:
    """Run a plan; return pytest's exit code of the first part that failed."""
    if any(word in ALONE or names_tests(word) for word in options):
        return subprocess.run(pytest(options), cwd=ROOT, check=False).returncode
    interrupts: list[int] = []  # Ctrl-C reaches every part by itself, and ends it
    signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    is_stopping_early = any(word.startswith(STOPS_EARLY) for word in options)
    exit_codes: dict[str, int] = {}
    for parts in PLANS[plan]:
        exit_codes |= run_together(parts, [*DURATIONS[plan], *options], is_stopping_early)
        if interrupts or (is_stopping_early and first_failure(exit_codes)):
            break
    for name, exit_code in exit_codes.items():
        print(f"tests {name}: {verdict(exit_code)}")
    if interrupts:
        return EXIT_INTERRUPTED
    if set(exit_codes.values()) == {EXIT_NO_TESTS}:
        return EXIT_NO_TESTS
    return first_failure(exit_codes)


def names_tests(word: str) -> bool:
    """Whether an option of pytest is a file, a folder or a test."""
    return not word.startswith("-") and (ROOT / word.partition("::")[0]).exists()


def pytest(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "pytest", *words]


def run_together(parts: Sequence[Part], options: Sequence[str], stop_early: bool) -> dict[str, int]:
    """Run parts at the same time; return their exit codes. The first one has the terminal."""
    with tempfile.TemporaryFile() as kept, ThreadPoolExecutor() as threads:
        running: dict[Future[int], tuple[Part, subprocess.Popen[bytes]]] = {}
        for index, part in enumerate(parts):
            process = start(part, options, kept if index else None)
            running[threads.submit(process.wait)] = part, process
        pending = set(running)
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            if stop_early and any(each.result() not in (EXIT_OK, EXIT_NO_TESTS) for each in done):
                for each in pending:
                    running[each][1].send_signal(signal.SIGINT)
        kept.seek(0)
        sys.stdout.buffer.write(kept.read())
        sys.stdout.flush()
        return {part.name: each.result() for each, (part, _) in running.items()}


def start(part: Part, options: Sequence[str], output: IO[bytes] | None) -> subprocess.Popen[bytes]:
    """Start a part; its output goes to a file, or where ours goes."""
    folder = part.name.replace(",", "").replace(" ", "-")
    own = ["-o", f"cache_dir=.pytest_cache/{folder}"]  # each remembers its own failures for --lf
    if LAST_FAILED & {*options}:
        own.append("--last-failed-no-failures=none")
    print(f"tests {part.name}: started{', shown at the end' if output else ''}", flush=True)
    return subprocess.Popen(
        pytest([*own, *part.words, *options]),
        cwd=ROOT,
        stdin=subprocess.DEVNULL if output else None,
        stdout=output,
        stderr=subprocess.STDOUT if output else None,
    )


def first_failure(exit_codes: dict[str, int]) -> int:
    failed = [each for each in exit_codes.values() if each not in (EXIT_OK, EXIT_NO_TESTS)]
    return failed[0] if failed else EXIT_OK


def verdict(exit_code: int) -> str:
    words = {EXIT_OK: "passed", EXIT_NO_TESTS: "none selected"}
    return words.get(exit_code, f"FAILED (exit code {exit_code})")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
