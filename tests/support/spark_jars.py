"""Jars that Spark needs for some of its own functions, and that PySpark does not bring."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlretrieve

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

AVRO = "org.apache.spark:spark-avro_2.13:4.1.1"
"""The newest that Maven Central had. It runs in Spark 4.3, which has the rest of Avro itself."""
PROTOBUF = "org.apache.spark:spark-protobuf_2.13:4.1.1"
CATALOG_URL = (
    "https://repo1.maven.org/maven2/org/apache/spark/spark-catalyst_2.13/4.2.0"
    "/spark-catalyst_2.13-4.2.0-tests.jar"
)
"""Spark's own tests of 4.2, whose catalogs in memory run in Spark 4.3. Spark itself brings no table
that supports MERGE, and Iceberg and Delta had no release for 4.3."""


def maybe_catalog_jar(folder: Path) -> Path | None:
    """Fetch the jar with a catalog whose tables support MERGE, None where there is none."""
    path = folder / CATALOG_URL.rpartition("/")[2]
    try:
        urlretrieve(CATALOG_URL, path)
    except URLError:
        return None
    return path


def add_jar(spark: SparkSession, coordinates: str) -> None:
    """Give a session a jar of Maven Central, for the rest of the run; skip where there is none."""
    try:
        spark.sql(f"ADD JAR 'ivy://{coordinates}?transitive=false'")
    except Py4JJavaError as error:
        found = re.search(r"\[(unresolved dependency: .*)\]", str(error.java_exception))
        if found is None:
            raise
        pytest.skip(found[1])
