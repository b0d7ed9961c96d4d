"""Declarative Pipelines: a table of a stream, and a sink into one, over several runs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from test_spark_connect import read_values

from sbp_spark.java import use_java
from tests.support.programs import program
from tests.support.spark import append_values, numbered
from tests.support.spark_clusters import (
    LATEST,
    add_auto_cdc,
    maybe_catalog_jar,
    merging_conf,
    pipeline_conf,
    write_project,
)

SPARK_HOME = Path(pyspark.__file__).parent
SECONDS = 600
NEEDS = ("grpc_status", "zstandard", "yaml")

pytestmark = [
    pytest.mark.deployments,
    pytest.mark.timeout(SECONDS),
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in NEEDS),
        reason="pyspark[pipelines] is not installed",
    ),
]


def run_command(specification: Path) -> None:
    """Run a project by `spark-pipelines run`, which starts a session of its own."""
    use_java()
    conf = pipeline_conf(specification.parent)
    words = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    subprocess.run(
        [SPARK_HOME / "bin" / "spark-pipelines", "run", "--spec", specification, *words],
        cwd=specification.parent,
        env={**os.environ, "SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": sys.executable},
        timeout=SECONDS,
        check=True,
    )


@pytest.fixture(scope="module")
def copies(cluster, client, new_streams, tmp_path_factory):
    """Run a project by the command, then twice in a session: the tables after each, the sink.

    The origin has the numbers from 0, at the offsets from 0.
    """
    folder = tmp_path_factory.mktemp("pipeline")
    origin, copy = new_streams(2)
    specification = write_project(folder, cluster.endpoint, origin, copy)
    append_values(client, origin, numbered(0, 10))
    run_command(specification)
    assert read_values(client, copy) == [str(number) for number in range(10)]
    conf = pipeline_conf(folder)
    jar = maybe_catalog_jar(folder)
    if jar is not None:
        add_auto_cdc(folder, cluster.endpoint, origin)
        conf |= merging_conf(jar)
    again = {"full_refresh": ["orders"], "refresh": [LATEST] if jar is not None else []}
    runs = [{"append": [10, 15]}, {"append": [15, 18], **again}]
    done = subprocess.run(
        program("pipeline", cluster.endpoint, origin, specification)
        + [json.dumps(each) for each in (conf, *runs)],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(found) == len(runs)
    return found, read_values(client, copy)


@pytest.mark.spark_feature("Declarative Pipelines")
def test_a_run_appends_what_is_new(copies):
    """Also in another process, and when the table is refreshed, which leaves the sink alone."""
    tables, copy = copies
    assert [each["orders"] for each in tables] == [[[n] for n in range(end)] for end in (15, 18)]
    assert copy == [str(number) for number in range(15)]


def test_auto_cdc_keeps_the_change_with_the_highest_offset(copies):
    tables, _ = copies
    if "latest" not in tables[0]:
        pytest.skip("no catalog with MERGE: Maven Central cannot be reached")
    first, last = ([[each, start + each] for each in range(3)] for start in (12, 15))
    assert [each["latest"] for each in tables] == [first, last]
