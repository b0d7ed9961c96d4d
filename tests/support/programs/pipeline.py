"""The process of pipeline runs in one session.

`pipeline ENDPOINT ORIGIN SPECIFICATION CONF RUN ...`. CONF is a JSON object of Spark
settings. RUN is one, too: `append` (the numbers that are appended to ORIGIN before), `refresh` and
`full_refresh` (names of tables; all are refreshed if none is given). After each run a line of JSON
has the offsets in the table `orders`, and the rows of LATEST (id, offset) if there is such a table.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.pipelines.cli import load_pipeline_spec, register_definitions
from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
from pyspark.pipelines.spark_connect_pipeline import (
    create_dataflow_graph,
    handle_pipeline_events,
    start_run,
)
from pyspark.sql import SparkSession

from sbp_core.client import Client
from sbp_spark.java import use_java
from tests.support.spark import append_values, numbered
from tests.support.spark_clusters import CATALOG, LATEST


def main(endpoint, origin, path, conf, *runs) -> None:
    use_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_TESTING"] = "1"  # the server takes a free port
    settings = json.loads(conf)
    builder = SparkSession.builder.remote("local[2]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    has_latest = f"spark.sql.catalog.{CATALOG}" in settings
    try:
        if has_latest:
            spark.sql(f"CREATE NAMESPACE {CATALOG}.db")
        for text in runs:
            wanted = json.loads(text)
            with Client(endpoint) as client:
                append_values(client, origin, numbered(*wanted.pop("append")))
            run(spark, Path(path), **wanted)
            found = {"orders": values(spark, "SELECT offset FROM orders ORDER BY offset")}
            if has_latest:
                found["latest"] = values(spark, f"SELECT id, offset FROM {LATEST} ORDER BY id")
            print(json.dumps(found), flush=True)
    finally:
        spark.stop()


def values(spark, query) -> list[list[int]]:
    return [list(row) for row in spark.sql(query).collect()]


def run(spark, path, refresh=(), full_refresh=()) -> None:
    """Run the project once, as `spark-pipelines run` does in a session of its own."""
    project = load_pipeline_spec(path)
    graph = create_dataflow_graph(spark, project.catalog, project.database, project.configuration)
    registry = SparkConnectGraphElementRegistry(spark, graph)
    register_definitions(path, registry, project, spark, graph)
    events = start_run(
        spark,
        graph,
        full_refresh=full_refresh,
        full_refresh_all=False,
        refresh=refresh,
        dry=False,
        storage=project.storage,
    )
    handle_pipeline_events(events)


if __name__ == "__main__":
    main(*sys.argv[1:])
