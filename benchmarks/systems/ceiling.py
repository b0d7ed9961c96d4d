"""Spark's own ceiling for Python sources and sinks: rows out of memory, and into nothing."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.harness.model import Shape
from benchmarks.systems.base import WRITTEN
from benchmarks.systems.sources import (
    IDLE_FORMAT,
    MEMORY_FORMAT,
    NULL_FORMAT,
    shape_options,
)


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


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The least that a source and a sink in Python can do."""

    spark: SparkSession

    def new_store(self, shape: Shape) -> MemoryStore:
        return MemoryStore(self.spark, shape)
