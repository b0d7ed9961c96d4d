"""Fixtures of the Spark tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from spark_streams import Sbp


@pytest.fixture(scope="session")
def sbp(spark, cluster) -> Sbp:
    """Spark, reading from and writing to the cluster."""
    return Sbp(spark, cluster.endpoint)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Where a query keeps its checkpoint."""
    return tmp_path / "checkpoint"
