"""Test the ends of the ranges of pyproject.toml: `tools/run_versions.py {oldest,newest} ...`.

`oldest` has the oldest release of each dependency, in the oldest Python; `newest` the newest that
the package index has, in the newest Python. Each has an environment of its own in .cache/versions.
--write puts what was tested into docs/reference/compatibility.md. Other options are for pytest.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs/reference/compatibility.md"
ENVIRONMENTS: Final = ROOT / ".cache/versions"
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS: Final = [
    each.rpartition(" ")[2]
    for each in PROJECT["classifiers"]
    if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", each)
]
PANDAS: Final = "pandas>=2.2"
"""Producers accept its data frames. The oldest release is the one that PySpark requires."""
SHOWN: Final = ("pyspark", "pyarrow", "pandas", "numpy")
"""The packages of the page, in its order."""
TEST_TOOLS: Final = (
    "chispa",
    "flatbuffers",
    "hypothesis",
    "install-jdk",
    "polars",
    "pytest",
    "pytest-timeout",
)
TESTS: Final = (
    "tests/unit/test_spark_internals.py",
    *(str(each.relative_to(ROOT)) for each in sorted(ROOT.glob("tests/unit/test_records_*.py"))),
    "tests/integration/app/test_app_producer.py",
    "tests/spark/test_spark_round_trip.py::test_every_column_survives",
    "tests/spark/test_spark_streaming.py::test_streams_that_are_created_while_a_pattern_is_read",
    "tests/spark/test_spark_insides.py",
)


@dataclass(frozen=True, slots=True)
class End:
    """An end of the ranges. `python` is a version or a path, `resolution` as `uv pip` names it."""

    name: str
    python: str
    resolution: str

    @property
    def environment(self) -> Path:
        """The folder of its environment."""
        return ENVIRONMENTS / self.name

    @property
    def executable(self) -> Path:
        """The Python of its environment."""
        return self.environment / "bin/python"


def main() -> int:
    """Test the ends that the arguments name; return the exit code of pytest, or of uv."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ends", nargs="+", choices=["oldest", "newest"])
    parser.add_argument(
        "--newest-python",
        default=PYTHONS[-1],
        metavar="VERSION_OR_PATH",
        help="the Python of `newest`; the newest one that pyproject.toml names by default",
    )
    parser.add_argument("--write", action="store_true", help="write the versions into the page")
    arguments, options = parser.parse_known_args()
    ends = {
        "oldest": End("oldest", PYTHONS[0], "lowest-direct"),
        "newest": End("newest", arguments.newest_python, "highest"),
    }
    for name in arguments.ends:
        try:
            make_environment(ends[name])
            print(f"{name}: {versions(ends[name])}", flush=True)
            run_tests(ends[name], options)
        except subprocess.CalledProcessError as error:
            command = " ".join(error.cmd[:5])
            print(f"{name}: {command} ... failed, exit code {error.returncode}", file=sys.stderr)
            return error.returncode
        if arguments.write:
            write_column(ends[name])
    return 0


def make_environment(end: End) -> None:
    """Make the environment again, with the releases of now. uv finds or downloads the Python."""
    uv("venv", "--clear", "--python", end.python, str(end.environment))
    install = ["pip", "install", "--python", str(end.executable)]
    uv(*install, "--resolution", end.resolution, "--editable", ".[postgresql]", PANDAS)
    uv(*install, *TEST_TOOLS)  # the newest ones, which change nothing that is installed


def uv(*words: str) -> None:
    """Run uv. Raises CalledProcessError; uv has then said what is wrong."""
    subprocess.run([sys.executable, "-m", "uv", "--quiet", *words], cwd=ROOT, check=True)


def run_tests(end: End, options: Sequence[str]) -> None:
    """Run the tests. Raises CalledProcessError if one fails."""
    python = str(end.executable)
    java = subprocess.run(
        [python, "-m", "sbp_spark.java"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    words = ["-m", "not exhaustive", "--hypothesis-profile=quick", *TESTS, *options]
    environment = {**os.environ, "JAVA_HOME": java.stdout.strip(), "PYSPARK_PYTHON": python}
    subprocess.run([python, "-m", "pytest", *words], cwd=ROOT, env=environment, check=True)


def versions(end: End) -> dict[str, str]:
    """Return the version of Python and of the packages of the page, by name."""
    program = (
        "import platform, sys; from importlib.metadata import version;"
        "print(platform.python_version(), *map(version, sys.argv[1:]))"
    )
    found = subprocess.run(
        [str(end.executable), "-c", program, *SHOWN], check=True, stdout=subprocess.PIPE, text=True
    )
    return dict(zip(("python", *SHOWN), found.stdout.split(), strict=True))


def write_column(end: End) -> None:
    """Write the versions of an end into its column of the page."""
    column = {"oldest": 1, "newest": 2}[end.name]
    found = versions(end)
    lines = PAGE.read_text(encoding="utf-8").splitlines(keepends=True)
    for index, line in enumerate(lines):
        cells = [each.strip() for each in line.strip().strip("|").split("|")]
        if cells[0] in found:
            cells[column] = found[cells[0]]
            lines[index] = f"| {' | '.join(cells)} |\n"
    PAGE.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
