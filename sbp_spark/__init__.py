"""The Streaming Batch Protocol as a source and sink of Spark Structured Streaming.

Read `datasource` first: it is what Spark calls. `options` has what users set, `reading` and
`streaming` the source, `writing` the sink, `operations` the commands and metrics of queries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `format("sbp")` known to a session, and to the calling thread if it has no session.

    Spark finds the source by itself in every session, unless another package named pyspark_* fails
    to import. A write looks for it only in the session that is active in the calling thread, and a
    thread that Python started has none: such a thread calls this before it writes.
    """
    from pyspark.sql import SparkSession

    from sbp_spark.datasource import SbpDataSource

    spark.dataSource.register(SbpDataSource)
    # Through Spark Connect, each request has its session active on the server.
    if isinstance(spark, SparkSession) and SparkSession.getActiveSession() is None:
        # This makes the session active; no public call of PySpark does only that.
        spark.createDataFrame([], "nothing int")
