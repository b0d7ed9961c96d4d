"""Try the features of Spark: `tests/try_spark_features.py [OPTION_OF_PYTEST ...]`.

It runs the tests that are marked with `spark_feature`, and writes what they find, and the versions
of Spark, Python and pyarrow, to `docs/spark_features.json`: `docs/generate.py` makes a page of it.
If files are among the options, only their tests run. The results of other features stay then, if
they are of the same versions. Nothing is written when a test fails or is skipped.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "spark_features.json"
MARKER = "spark_feature"


@dataclass
class Trial:
    """The result of one feature: its tests, and the errors by which it was refused."""

    works: bool
    tests: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def add(self, test: str, refusals: Sequence[str]) -> None:
        """Add what a test found; one with parameters is one test."""
        self.tests += [test] if test not in self.tests else []
        self.refusals = [*dict.fromkeys([*self.refusals, *refusals])]


class Recorder:
    """A plugin of pytest that gathers what the marked tests find."""

    def __init__(self) -> None:
        self.trials: dict[str, Trial] = {}
        self.has_skipped = False
        self._markers: dict[str, list[pytest.Mark]] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self._markers = {each.nodeid: [*each.iter_markers(MARKER)] for each in items}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.has_skipped = self.has_skipped or report.skipped
        if report.when != "call" or not report.passed:
            return
        test = report.nodeid.partition("[")[0].removeprefix("tests/")
        refusals = [str(text) for name, text in report.user_properties if name == "refusal"]
        for marker in self._markers[report.nodeid]:
            (feature,), works = marker.args, marker.kwargs.get("works", True)
            trial = self.trials.setdefault(feature, Trial(works))
            if trial.works != works:
                sys.exit(f"{feature}: {test} says works={works}, {trial.tests[0]} does not")
            trial.add(test, [] if works else refusals)


def main(options: Sequence[str]) -> int:
    """Run the tests; return pytest's exit code, or 1 when a test was skipped."""
    is_partial = any(each.startswith("tests/") for each in options)
    recorder = Recorder()
    words = ["-m", MARKER, *options, *([] if is_partial else marked_files())]
    code = pytest.main(words, plugins=[recorder])
    if code or recorder.has_skipped:
        print(f"{RESULTS.name} stays as it was: a test failed or was skipped")
        return int(code) or 1
    results = add_trials(known() if is_partial else {}, versions(), recorder.trials)
    RESULTS.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


def marked_files() -> list[str]:
    """Return the files with marked tests."""
    paths = sorted((ROOT / "tests").glob("*/test_*.py"))
    return [str(path) for path in paths if f"mark.{MARKER}(" in path.read_text(encoding="utf-8")]


def versions() -> dict[str, str]:
    """Return what the features are tried with."""
    return {
        "Spark": pyspark.__version__,
        "Python": platform.python_version(),
        "pyarrow": pa.__version__,
    }


def known() -> dict[str, Any]:
    """Return what the last runs wrote."""
    return dict(json.loads(RESULTS.read_text(encoding="utf-8"))) if RESULTS.exists() else {}


def add_trials(
    results: dict[str, Any], tried_with: dict[str, str], trials: dict[str, Trial]
) -> dict[str, Any]:
    """Return the results with new ones; old ones stay if they are of the same versions."""
    features = results["features"] if results.get("versions") == tried_with else {}
    features = {**features, **{name: vars(each) for name, each in trials.items()}}
    return {"versions": tried_with, "features": dict(sorted(features.items()))}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
