"""Fixtures of pytest that test a pipeline against real SBP servers.

pytest loads this module at every start, by the entry point `pytest11` of the package. Therefore the
module imports nothing but pytest and the standard library, and each fixture imports its own needs.
Each worker of pytest-xdist is a session: it has a cluster and a Spark session of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sbp_core.cluster import LocalCluster

SPARK_CONF: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Short runs: a write and a read take 8 s of CPU in Java, instead of 14 s with its defaults.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""Settings of a Spark session for tests: a quick start, no UI, few tasks, UTC."""


@contextmanager
def spark_session(
    folder: Path, *, master: str = "local[2]", conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Start a Spark session with SPARK_CONF and `conf`, and stop it at the end.

    Tables are stored in `folder`. Spark's workers run the Python of this process. Raises
    ConfigurationError if no Java is found, and none can be installed.
    """
    from pyspark.sql import SparkSession

    from sbp_spark.operations.java_homes import use_java

    use_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("sbp-tests")
    builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    for key, value in {**SPARK_CONF, **(conf or {})}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


@pytest.fixture(scope="session")
def sbp_cluster() -> Iterator[LocalCluster]:
    """Give a running `sbp serve`: a process of its own, which stores on disk (scope: session).

    `sbp_cluster.endpoint` is the option `endpoint` of Spark, and the address to connect clients to.
    The data are in a temporary folder, which is deleted at the end. A test may call `kill`, `stop`
    and `restart`; the cluster must be running when the test ends.

        def test_a_client_connects(sbp_cluster):
            with sbp_core.connect(sbp_cluster.endpoint) as sbp:
                ...
    """
    from sbp_core.cluster import LocalCluster

    with LocalCluster() as cluster:
        yield cluster


@pytest.fixture
def sbp_stream(sbp_cluster: LocalCluster) -> str:
    """Give the name of a new, empty stream of `sbp_cluster` (scope: function).

    No other test uses the stream. The stream is not deleted before the cluster is.

        def test_a_new_stream_is_empty(spark_with_sbp, sbp_cluster, sbp_stream):
            reader = spark_with_sbp.read.format("sbp").option("endpoint", sbp_cluster.endpoint)
            assert reader.load(sbp_stream).count() == 0
    """
    from sbp_core.client import Client, StreamSpec

    name = f"test-{uuid4()}"
    with Client(sbp_cluster.endpoint) as client:
        client.create_streams([StreamSpec(name)])
    return name


@pytest.fixture(scope="session")
def spark_with_sbp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Give a Spark session with two cores, in which `format("sbp")` works (scope: session).

    If a session is active already, the fixture gives that session, as it is, and does not stop it.
    Otherwise it starts one with SPARK_CONF, on a Java of `sbp_spark.java`, and stops it at the end.

        def test_spark_counts(spark_with_sbp):
            assert spark_with_sbp.range(3).count() == 3
    """
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session
