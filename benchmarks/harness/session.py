"""Spark in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from sbp_spark.java import use_java

JAVA_OPTIONS: Final = (
    "-Darrow.enable_unsafe_memory_access=true",
    "-Darrow.enable_null_check_for_get=false",
)
"""Java does not check again what is in Arrow's columns. docs/how-to/tune.md has these settings."""


def start_spark(
    folder: Path,
    *,
    tasks: int,
    memory: str,
    java_options: Sequence[str] = (),
    jars: Sequence[Path] = (),
) -> SparkSession:
    """Start Spark with task slots, a Java heap of up to `memory`, and its files in `folder`."""
    use_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("SBP_TUNE_WORKERS", "1")
    inherited = os.environ.get("PYTHONPATH")
    here = str(Path(__file__).parents[2])
    os.environ["PYTHONPATH"] = f"{here}{os.pathsep}{inherited}" if inherited else here
    return (
        SparkSession.builder.master(f"local[{tasks}]")
        .appName("benchmarks")
        .config("spark.driver.memory", memory)
        .config("spark.driver.extraJavaOptions", " ".join((*JAVA_OPTIONS, *java_options)))
        .config("spark.sql.execution.arrow.maxBytesPerBatch", str(2**31 - 1))
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.jars", ",".join(map(str, jars)))
        .getOrCreate()
    )
