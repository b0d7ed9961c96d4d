"""The page of Spark's features: each row names a test that exists."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import spark_features

    yield spark_features
    for name in ("spark_features", "status_codes"):
        sys.modules.pop(name, None)


def functions_of(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}


def test_the_test_of_each_feature_exists(page):
    for feature in page.features():
        path, _, name = feature.test.partition("::")
        assert name in functions_of(ROOT / "tests" / path), feature


def test_a_feature_that_does_not_work_has_its_reason(page):
    assert [each.name for each in page.features() if not (each.works or each.note)] == []


def test_the_committed_page_is_that_of_the_table(page):
    committed = ROOT / "docs" / "reference" / "spark-features.md"
    assert committed.read_text(encoding="utf-8") == page.features_document()
