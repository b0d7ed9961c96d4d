"""Reporting of `make test`: a line per file, and how much time is left.

Ctrl-C also kills every process that the tests have started, in whatever session or group it is.
"""

from __future__ import annotations

import ctypes
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
        self._waiting: Counter[str] = Counter()
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._seconds: Counter[str] = Counter()
        self._known: dict[str, float] = config.cache.get(CACHE_KEY, {}) if config.cache else {}
        self._new: dict[str, float] = {}
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
        self._new[file] = self._seconds[file] / max(count, 1)
        passed = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
        line = f"[{self._progress():>10}] {file}  {passed}  {self._seconds[file]:.1f} s"
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        assert reporter is not None
        reporter.write_line(line, red=bool(counts["failed"]), green=not counts["failed"])

    def _progress(self) -> str:
        """Return the time left if each test takes as long as in the run before.

        A first run knows no times, and shows how many of the tests are over.
        """
        waiting = {file: count for file, count in self._waiting.items() if count}
        if waiting.keys() - self._known.keys():
            over = sum(counts.total() for counts in self._counts.values())
            return f"{100 * over // (over + sum(waiting.values()))} %"
        seconds = sum(self._known[file] * count for file, count in waiting.items())
        workers = self._config.getoption("numprocesses", None) or 1
        return "{}:{:02} left".format(*divmod(int(seconds / workers), 60))

    def pytest_keyboard_interrupt(self) -> None:
        """Leave no server, query or Java running."""
        for process in psutil.Process().children(recursive=True):
            process.kill()

    def pytest_sessionfinish(self) -> None:
        """Remember how long the tests of each file take."""
        if self._config.cache:
            self._config.cache.set(CACHE_KEY, self._known | self._new)


def _file(test: str) -> str:
    return test.partition("::")[0]
