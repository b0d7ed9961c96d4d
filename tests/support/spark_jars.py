"""Jars that Spark needs for some of its own functions, and that PySpark does not bring."""

from __future__ import annotations

import re

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

AVRO = "org.apache.spark:spark-avro_2.13:4.1.1"
"""The newest that Maven Central had. It runs in Spark 4.3, which has the rest of Avro itself."""
PROTOBUF = "org.apache.spark:spark-protobuf_2.13:4.1.1"


def add_jar(spark: SparkSession, coordinates: str) -> None:
    """Give a session a jar of Maven Central, for the rest of the run; skip where there is none."""
    try:
        spark.sql(f"ADD JAR 'ivy://{coordinates}?transitive=false'")
    except Py4JJavaError as error:
        found = re.search(r"\[(unresolved dependency: .*)\]", str(error.java_exception))
        if found is None:
            raise
        pytest.skip(found[1])
