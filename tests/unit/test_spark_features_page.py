"""The page of Spark's features: its rows, the tests that try them, and the results of their run."""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import spark_features

    yield spark_features
    for name in ("spark_features", "status_codes"):
        sys.modules.pop(name, None)


@pytest.fixture
def trying(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    import try_spark_features

    yield try_spark_features
    sys.modules.pop("try_spark_features")


def test_each_row_is_tried_by_a_marked_test(page):
    assert page.faults() == []


def test_what_is_not_in_all_three_places_is_a_fault(page):
    found = page.compare({"a", "b", "c"}, {"a", "c", "d"}, {"a", "b", "e"})
    expected = [
        "no test is marked with spark_feature('b')",
        "no row of docs/spark_features.py is 'd'",
        "'c' was not tried",
        "'e' is tried no longer",
    ]
    assert [line.partition(":")[0] for line in found] == expected


def test_markers_are_found_at_functions_and_parameters(page):
    text = """
@pytest.mark.spark_feature("one", works=False)
@pytest.mark.parametrize("word", [pytest.param("", marks=pytest.mark.spark_feature("two"))])
@pytest.mark.timeout("three")
def test(word): ...
"""
    assert sorted(page.marked(text)) == ["one", "two"]


def test_a_feature_that_is_impossible_has_its_reason(page):
    results = page.results()["features"]
    rows = [each for each in page.features() if not results[each.name]["works"]]
    assert [each.name for each in rows if not each.note] == []


def test_the_features_were_tried_with_the_release_of_spark_that_is_here(page):
    def release(version):
        return version.split(".")[:2]

    assert release(page.results()["versions"]["Spark"]) == release(pyspark.__version__)


def test_results_of_the_same_versions_stay_when_some_features_are_tried(trying):
    trial = trying.Trial(works=False)
    for refusals in (["x"], ["y", "x", "y"]):
        trial.add("spark/test_a.py::test_a", refusals)
    found = {"works": False, "tests": ["spark/test_a.py::test_a"], "refusals": ["x", "y"]}
    known = {"versions": {"Spark": "4"}, "features": {"b": {}, "a": {}}}
    same = trying.add_trials(known, {"Spark": "4"}, {"a": trial})
    assert same == {"versions": {"Spark": "4"}, "features": {"a": found, "b": {}}}
    newer = trying.add_trials(known, {"Spark": "5"}, {"a": trial})
    assert newer == {"versions": {"Spark": "5"}, "features": {"a": found}}
