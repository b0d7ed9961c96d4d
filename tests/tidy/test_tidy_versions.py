"""The versions in the documents and the metadata are those that `make versions` tests."""

import re
import tomllib

import pytest
import run_versions
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from tidy_sources import ROOT


def read(path: str) -> str:
    """Return the text of a file of the project."""
    return (ROOT / path).read_text(encoding="utf-8")


PROJECT = tomllib.loads(read("pyproject.toml"))["project"]
PAGE = run_versions.PAGE.read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (\w+) \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.MULTILINE)
RANGES = {
    "python": SpecifierSet(PROJECT["requires-python"]),
    **{
        requirement.name: requirement.specifier
        for requirement in map(Requirement, [*PROJECT["dependencies"], run_versions.PANDAS])
    },
}


def lower_bound(name: str) -> Version:
    """Return the version after >= in the range of a package."""
    (bound,) = (each.version for each in RANGES[name] if each.operator == ">=")
    return Version(bound)


def test_the_page_has_each_package_that_is_shown():
    assert [name for name, *_ in ROWS] == ["python", *run_versions.SHOWN]


@pytest.mark.parametrize(("name", "oldest", "newest"), ROWS, ids=[name for name, *_ in ROWS])
def test_the_oldest_is_the_bound_and_the_newest_is_allowed(name, oldest, newest):
    todo = "python tools/run_versions.py oldest newest --write"
    bound = lower_bound(name)
    assert Version(oldest).release[: len(bound.release)] == bound.release, todo
    assert RANGES[name].contains(newest), todo
    assert Version(oldest) < Version(newest), todo


def test_the_pythons_of_the_page_are_the_ends_of_the_classifiers():
    (_, oldest, newest), *_ = ROWS
    ends = [run_versions.PYTHONS[0], run_versions.PYTHONS[-1]]
    assert [".".join(each.split(".")[:2]) for each in (oldest, newest)] == ends


@pytest.mark.parametrize("path", ["README.md", "docs/get-started/install.md"])
def test_the_documents_name_each_python(path):
    text = read(path)
    (row,) = re.findall(r"^\| Python \| .*$", text, re.MULTILINE)
    assert re.findall(r"3\.\d+", row) == run_versions.PYTHONS


def test_the_newest_release_is_everywhere():
    newest, *_ = re.findall(r"^## \[([\d.]+)\]", read("CHANGELOG.md"), re.MULTILINE)
    chart = re.findall(r"^version: (.*)$", read("conf/helm/sbp/Chart.yaml"), re.MULTILINE)
    images = [
        tag
        for path in ("conf/helm/sbp/values.yaml", "docs/how-to/run-on-kubernetes.md")
        for tag in re.findall(r"/sbp:([\d.]+)", read(path))
    ]
    rows = re.findall(r"^\| ([\d.]+) \| \d", read("docs/reference/file-format.md"), re.MULTILINE)
    assert len(images) > 1
    assert {PROJECT["version"], *chart, *images, rows[-1]} == {newest}


@pytest.mark.parametrize("test", run_versions.TESTS)
def test_the_tests_of_the_versions_are_there(test):
    path, _, name = test.partition("::")
    assert f"def {name}" in read(path)
