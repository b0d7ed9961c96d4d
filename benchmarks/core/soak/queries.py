"""Two streaming queries in one Spark session: a copy, exactly once, and counts of foreachBatch."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.core.soak import board
from benchmarks.core.soak.crew import Post
from benchmarks.core.soak.records import CLICKS, COPIES, ORDERS
from benchmarks.harness.session import start_spark

_MEMORY: Final = "1g"
_JAVA_OPTIONS: Final = (f"-Xms{_MEMORY}", "-XX:+AlwaysPreTouch")
"""The whole heap is resident from the start: what grows afterwards is outside of it."""
_TASKS: Final = 2
_TRIGGER: Final = "1 second"
_LOOK_SECONDS: Final = 1.0


def run_queries(post: Post, folder: Path) -> None:
    """Start both queries, and let them run. Raises StreamingQueryException if one fails."""
    spark = start_spark(folder, tasks=_TASKS, memory=_MEMORY, java_options=_JAVA_OPTIONS)
    spark.conf.set("spark.sql.shuffle.partitions", _TASKS)
    queries = []
    for stream, start in ((ORDERS, _copy), (CLICKS, _count)):
        queries.append(start(_rows(spark, post, stream), post, folder))
        queries[-1].processAllAvailable()  # of an empty stream: it has started then
        post.board.add(board.QUERIES)
    while post.goes_on(_LOOK_SECONDS):
        for query in queries:
            if (error := query.exception()) is not None:
                raise error
    for query in queries:
        query.stop()
    spark.stop()


def _rows(spark: SparkSession, post: Post, stream: str) -> DataFrame:
    options = {"endpoint": post.endpoint, "streams": stream, "startingOffsets": "earliest"}
    return spark.readStream.format("sbp").options(**options).load()


def _copy(rows: DataFrame, post: Post, folder: Path) -> StreamingQuery:
    writer = rows.select("key", "value", "timestamp").writeStream.format("sbp")
    return (
        writer.options(endpoint=post.endpoint, stream=COPIES)
        .option("checkpointLocation", str(folder / "copy"))
        .trigger(processingTime=_TRIGGER)
        .start()
    )


def _count(rows: DataFrame, post: Post, folder: Path) -> StreamingQuery:
    return (
        rows.writeStream.foreachBatch(partial(_add, post))
        .option("checkpointLocation", str(folder / "count"))
        .trigger(processingTime=_TRIGGER)
        .start()
    )


def _add(post: Post, rows: DataFrame, batch_id: int) -> None:
    del batch_id
    counts = rows.groupBy("writer").agg(sf.count("number").alias("records")).collect()
    post.board.add(board.AGGREGATED, sum(row["records"] for row in counts))
