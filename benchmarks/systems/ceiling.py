"""Spark's own ceiling for Python sources and sinks: rows out of memory, and into nothing."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.functions import array, col, element_at, lit
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.harness.model import Shape
from benchmarks.systems.base import WRITTEN
from benchmarks.systems.sources import IDLE_FORMAT, MEMORY_FORMAT, NULL_FORMAT, shape_options


@dataclass(frozen=True, slots=True)
class MemoryStore:
    """Rows that are made when they are read; what is written is counted and forgotten."""

    spark: SparkSession
    shape: Shape

    def rows(self) -> DataFrame:
        reader = self.spark.read.format(MEMORY_FORMAT)
        return reader.options(**shape_options(self.shape)).load()

    def streamed_rows(self) -> DataFrame:
        reader = self.spark.readStream.format(MEMORY_FORMAT)
        return reader.options(**shape_options(self.shape)).load()

    def kept_rows(self) -> DataFrame:
        """Return what is to be written of all rows, which Spark keeps in its memory from now on.

        So what a write takes is not what it takes to get rows out of a source in Python.
        """
        rows = self.rows().select("stream_id", *WRITTEN).cache()
        rows.write.format("noop").mode("overwrite").save()
        return rows

    def idle_rows(self) -> DataFrame:
        """Return a few rows for each micro-batch, without end."""
        reader = self.spark.readStream.format(IDLE_FORMAT)
        return reader.options(**shape_options(self.shape)).load()

    def batch_writer(self, rows: DataFrame) -> DataFrameWriter:
        return rows.select(*WRITTEN).write.format(NULL_FORMAT).mode("append")

    def stream_writer(self, rows: DataFrame) -> DataStreamWriter:
        return rows.select(*WRITTEN).writeStream.format(NULL_FORMAT)

    def stored_rows(self) -> int:
        return self.shape.rows


def renamed(rows: DataFrame, shape: Shape) -> DataFrame:
    """Return rows with the names that the streams of a shape have."""
    names = array(*map(lit, shape.streams))
    return rows.withColumn("stream", element_at(names, (col("stream_id") + 1).cast("int")))


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The least that a source and a sink in Python can do."""

    spark: SparkSession

    def new_store(self, shape: Shape) -> MemoryStore:
        return MemoryStore(self.spark, shape)
