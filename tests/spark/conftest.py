"""Fixtures of the Spark tests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from tests.support.spark import Sbp


@pytest.fixture(scope="session")
def sbp(spark, cluster) -> Sbp:
    """Spark, reading from and writing to the cluster."""
    return Sbp(spark, cluster.endpoint)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Where a query keeps its checkpoint."""
    return tmp_path / "checkpoint"


@pytest.fixture
def refused(
    record_property: Callable[[str, object], None],
) -> Callable[[str], AbstractContextManager[pytest.ExceptionInfo[PySparkException]]]:
    """Expects an error with these words, which the page of Spark's features shows."""

    @contextmanager
    def expect(words: str) -> Iterator[pytest.ExceptionInfo[PySparkException]]:
        with pytest.raises(PySparkException, match=re.escape(words)) as raised:
            yield raised
        record_property("refusal", words)

    return expect
