"""Reporting of `make test`: a line per file, and how much time is left.

Ctrl-C also kills every process that the tests have started, in whatever session or group it is.
"""

from __future__ import annotations

import ctypes
import time
from collections import Counter, defaultdict
from collections.abc import Generator
from typing import Any

import psutil
import pytest

CACHE_KEY = "sbp/seconds_per_test"
PR_SET_CHILD_SUBREAPER = 36


def pytest_configure(config: pytest.Config) -> None:
    """Report in the process that the user started, not in the workers of pytest-xdist."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FileReporter(config), "sbp-files")


class FileReporter:
    """Prints a line when the last test of a file is over."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._began = time.monotonic()
        self._waiting: Counter[str] = Counter()
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._seconds: Counter[str] = Counter()
        self._known: dict[str, float] = config.cache.get(CACHE_KEY, {}) if config.cache else {}
        # Processes whose parents are killed become children of this one, where Ctrl-C finds them.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Count the tests of each file; every worker collects the same ones."""
        self._waiting = Counter(map(_file, ids))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count the tests of each file in a run without workers."""
        if session.items:
            self._waiting = Counter(_file(item.nodeid) for item in session.items)

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self) -> Generator[None, Any, Any]:
        """Show no letter per test."""
        category, _, _ = yield
        return category, "", ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print the line of a file after the teardown of its last test."""
        file = _file(report.nodeid)
        self._seconds[file] += report.duration
        if report.when == "call" or report.outcome != "passed":
            self._counts[file][report.outcome] += 1
        if report.when != "teardown":
            return
        self._waiting[file] -= 1
        if not self._waiting[file]:
            self._print(file)

    def _print(self, file: str) -> None:
        counts = self._counts[file]
        count = counts.total()
        self._known[file] = self._seconds[file] / max(count, 1)
        passed = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
        line = f"[{self._time_left():>10}] {file}  {passed}  {self._seconds[file]:.1f} s"
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        assert reporter is not None
        reporter.write_line(line, red=bool(counts["failed"]), green=not counts["failed"])

    def _time_left(self) -> str:
        """Scale the time so far by the tests that wait, each as long as in the run before."""
        mean = sum(self._known.values()) / max(len(self._known), 1)
        seconds = {file: self._known.get(file, mean) for file in self._waiting}
        left = sum(seconds[file] * count for file, count in self._waiting.items())
        done = sum(self._seconds.values())
        minutes, rest = divmod(int((time.monotonic() - self._began) * left / max(done, 0.1)), 60)
        return f"{minutes}:{rest:02} left"

    def pytest_keyboard_interrupt(self) -> None:
        """Leave no server, query or Java running."""
        for process in psutil.Process().children(recursive=True):
            process.kill()

    def pytest_sessionfinish(self) -> None:
        """Remember how long the tests of each file take."""
        if self._config.cache:
            self._config.cache.set(CACHE_KEY, self._known)


def _file(test: str) -> str:
    return test.partition("::")[0]
