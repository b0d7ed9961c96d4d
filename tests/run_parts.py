"""Run the tests in parts, two at a time: `tests/run_parts.py {all,quick} [OPTION_OF_PYTEST ...]`.

A test waits for disks, servers or Java more than it computes, so two parts side by side take little
longer than one. `all` runs all tests, and at the end those that kill Spark's processes, which start
one Java after the other. `quick` runs what needs no server and no Spark, without the tests that are
marked as exhaustive and with a quarter of the examples that hypothesis tries. Options that name
tests, or that need the terminal, are given to a single pytest as they are.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]
EXIT_OK, EXIT_INTERRUPTED, EXIT_NO_TESTS = 0, 130, 5  # the last one is pytest's
PARTS_AT_ONCE = 2
SHOW_SECONDS = 0.2
FAILURES = ("FAILED ", "ERROR ", "INTERNALERROR>", "E   ")
LINES_MAX, LINE_CHARS_MAX = 30, 200

SPARK = ["tests/spark", "tests/notebooks"]
SPARK += [f"tests/docs/test_{name}.py" for name in ("documents", "first_query")]
SPARK_UNIT = "tests/unit/test_spark_*.py"
CONNECTOR = ["tests/tidy", "tests/property", *map(str, sorted(ROOT.glob(SPARK_UNIT)))]
SINKS = ["tests/faults/test_sink_kill.py"]
DRIVERS = [f"tests/faults/test_{name}.py" for name in ("driver_kill", "speculation")]
ALONE_IN_PARTS = ["tests/faults", "tests/integration", *SPARK]
SOON_DONE = ["-m", "not exhaustive", "--hypothesis-profile=quick"]
ALONE = {"--pdb", "--trace", "-s", "-h", "--help", "--version", "--co", "--collect-only"}
LAST_FAILED = {"--lf", "--last-failed"}
STOPS_EARLY = ("-x", "--exitfirst", "--maxfail")


@dataclass(frozen=True)
class Part:
    """A run of pytest of its own."""

    name: str
    words: list[str]


@dataclass(frozen=True)
class Outcome:
    """How a part ended, and the lines that say what failed."""

    name: str
    exit_code: int
    failures: list[str]

    @property
    def has_failed(self) -> bool:
        return self.exit_code not in (EXIT_OK, EXIT_NO_TESTS)


PLANS = {
    "all": [
        [
            Part("with Spark", SPARK),
            Part("of faults", ["tests/faults", *(f"--ignore={path}" for path in SINKS + DRIVERS)]),
            Part("of servers", ["tests/integration"]),
            Part("of the rest", [f"--ignore={path}" for path in ALONE_IN_PARTS]),
        ],
        [Part("killing sinks of Spark", SINKS), Part("killing drivers of Spark", DRIVERS)],
    ],
    "quick": [
        [
            Part("for the core", ["tests/unit", f"--ignore-glob={SPARK_UNIT}", *SOON_DONE]),
            Part("for the connector, property, tidy", [*CONNECTOR, *SOON_DONE]),
        ]
    ],
}
"""The parts of each step, in the order they start; a step ends before the next one begins."""
DURATIONS = {"all": ["--durations=25", "--durations-min=1"], "quick": []}


def main(plan: str, options: Sequence[str]) -> int:
    """Run a plan; return pytest's exit code of the first part that failed."""
    if any(word in ALONE or names_tests(word) for word in options):
        return subprocess.run(pytest(options), cwd=ROOT, check=False).returncode
    if plan == "all":
        from class_archive import use_archive  # not in the others: it imports PySpark

        use_archive()
    interrupts: list[int] = []  # Ctrl-C reaches every part by itself, and ends it
    signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    is_stopping_early = any(word.startswith(STOPS_EARLY) for word in options)
    outcomes: list[Outcome] = []
    for parts in PLANS[plan]:
        outcomes += run_parts(parts, [*DURATIONS[plan], *options], is_stopping_early, interrupts)
        if interrupts or (is_stopping_early and first_failure(outcomes)):
            break
    for outcome in outcomes:
        print(f"tests {outcome.name}: {verdict(outcome.exit_code)}")
        for line in outcome.failures if outcome.has_failed else ():
            print(line)
    if interrupts:
        return EXIT_INTERRUPTED
    if {outcome.exit_code for outcome in outcomes} == {EXIT_NO_TESTS}:
        return EXIT_NO_TESTS
    return first_failure(outcomes)


def names_tests(word: str) -> bool:
    """Whether an option of pytest is a file, a folder or a test."""
    return not word.startswith("-") and (ROOT / word.partition("::")[0]).exists()


def pytest(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "pytest", *words]


def run_parts(
    parts: Sequence[Part], options: Sequence[str], stop_early: bool, interrupts: Sequence[int]
) -> list[Outcome]:
    """Run parts, some at the same time. Outputs are shown in the order of the starts."""
    with ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile()) for _ in parts]
        running: list[subprocess.Popen[bytes]] = []
        shown_part = shown = 0
        is_stopping = False
        while shown_part < len(running) or (len(running) < len(parts) and not is_stopping):
            ended = [process.poll() for process in running]
            if stop_early and not is_stopping and {*ended} - {None, EXIT_OK, EXIT_NO_TESTS}:
                is_stopping = True
                for process in running:
                    if process.poll() is None:
                        process.send_signal(signal.SIGINT)
            is_stopping = is_stopping or bool(interrupts)
            if not is_stopping and ended.count(None) < PARTS_AT_ONCE and len(running) < len(parts):
                running.append(start(parts[len(running)], options, outputs[len(running)]))
                continue
            shown = show(outputs[shown_part], shown)
            if ended[shown_part] is None:
                time.sleep(SHOW_SECONDS)
            else:
                shown_part, shown = shown_part + 1, 0
        return [
            Outcome(part.name, process.wait(), summary(output))
            for part, process, output in zip(parts, running, outputs, strict=False)
        ]


def start(part: Part, options: Sequence[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a part. It writes to a file: a program that it starts cannot harm the terminal."""
    folder = part.name.replace(",", "").replace(" ", "-")
    own = ["-o", f"cache_dir=.pytest_cache/{folder}"]  # each remembers its own failures for --lf
    own.append("--tb=native")  # other forms parse sources: in Python 3.11 a SystemError at times
    if LAST_FAILED & {*options}:
        own.append("--last-failed-no-failures=none")
    if sys.stdout.isatty():
        own.append("--color=yes")
    print(f"tests {part.name}: started", flush=True)
    return subprocess.Popen(
        pytest([*own, *part.words, *options]),
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
    )


def environment() -> dict[str, str]:
    """Return variables with which modules are compiled once, not in each of hundreds of processes.

    Where a machine wants no bytecode beside its sources, it goes to a folder of its own.
    """
    variables = dict(os.environ)
    if variables.pop("PYTHONDONTWRITEBYTECODE", ""):
        variables["PYTHONPYCACHEPREFIX"] = str(ROOT / ".cache" / "bytecode")
    return variables


def show(output: IO[bytes], start: int) -> int:
    """Print a file from a position on, and return where it ends."""
    content = os.pread(output.fileno(), sys.maxsize >> 32, start)
    sys.stdout.buffer.write(content)
    sys.stdout.flush()
    return start + len(content)


def summary(output: IO[bytes]) -> list[str]:
    """Return the lines that say what failed."""
    text = os.pread(output.fileno(), sys.maxsize >> 32, 0).decode(errors="replace")
    lines = [line[:LINE_CHARS_MAX] for line in text.splitlines() if line.startswith(FAILURES)]
    return lines[-LINES_MAX:]


def first_failure(outcomes: Sequence[Outcome]) -> int:
    return next((each.exit_code for each in outcomes if each.has_failed), EXIT_OK)


def verdict(exit_code: int) -> str:
    words = {EXIT_OK: "passed", EXIT_NO_TESTS: "none selected"}
    return words.get(exit_code, f"FAILED (exit code {exit_code})")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
