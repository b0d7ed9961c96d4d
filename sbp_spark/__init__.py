"""The Streaming Batch Protocol as a source and sink of Spark Structured Streaming."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `format("sbp")` known to a session, where Spark has not found it by itself.

    Spark finds it in every session, unless another package named pyspark_* fails to import.
    """
    from sbp_spark.datasource import SbpDataSource

    spark.dataSource.register(SbpDataSource)
