"""Apache Kafka with Spark's own connector for it, and a broker in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final

from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.harness.model import Shape
from benchmarks.peer.topics import count_records, create_topic, java_of
from benchmarks.systems.base import Append

FORMAT: Final = "kafka"
PRODUCER: Final = {"kafka.batch.size": "1000000", "kafka.linger.ms": "5"}
"""Record batches as large as the connector's and as a broker takes them; by default 16 KiB."""
CONSUMER: Final = {
    "kafka.max.partition.fetch.bytes": "8388608",
    "kafka.max.poll.records": "10000",
    "kafka.fetch.max.wait.ms": "10",
}
"""As much in an answer as the connector asks for, as many rows at a time as it gives, and no half
second (the default) of waiting for more where a batch has none."""
SYNCED: Final = {"flush.messages": "1"}
"""A topic whose records are acknowledged after fsync, as the connector's are."""

_SERIALIZER: Final = "org.apache.kafka.common.serialization.ByteArraySerializer"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic with a partition for each stream of the shape, which `tasks` read."""

    spark: SparkSession
    address: str
    name: str
    shape: Shape
    tasks: int
    sink_options: Mapping[str, str]

    def rows(self) -> DataFrame:
        return self.spark.read.format(FORMAT).options(**self._source_options()).load()

    def values(self) -> DataFrame:
        return self.rows().select("value")

    def streamed_rows(self) -> DataFrame:
        return self.spark.readStream.format(FORMAT).options(**self._source_options()).load()

    def _source_options(self) -> dict[str, str]:
        start = {"subscribe": self.name, "startingOffsets": "earliest"}
        return self._connection | start | {"minPartitions": str(self.tasks)} | CONSUMER

    def batch_writer(self, rows: DataFrame) -> DataFrameWriter:
        return self.values_writer(_records(rows))

    def stream_writer(self, rows: DataFrame) -> DataStreamWriter:
        return _records(rows).writeStream.format(FORMAT).options(**self._sink_options())

    def values_writer(self, values: DataFrame) -> DataFrameWriter:
        return values.write.format(FORMAT).options(**self._sink_options())

    def _sink_options(self) -> dict[str, str]:
        return self._connection | {"topic": self.name} | PRODUCER | dict(self.sink_options)

    def stored_rows(self) -> int:
        return count_records(self.spark, self.address, self.name, len(self.shape.streams))

    @contextmanager
    def appending(self) -> Iterator[Append]:
        java: Any = java_of(self.spark)
        settings = {
            "bootstrap.servers": self.address,
            "key.serializer": _SERIALIZER,
            "value.serializer": _SERIALIZER,
        }
        producer = java.org.apache.kafka.clients.producer.KafkaProducer(settings)

        def append(value: bytes) -> None:
            record = java.org.apache.kafka.clients.producer.ProducerRecord(self.name, value)
            producer.send(record).get()

        try:
            yield append
        finally:
            producer.close()

    @property
    def _connection(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.address}


def _records(rows: DataFrame) -> DataFrame:
    """Return the rows of a stream as the records of one partition."""
    return rows.select("key", "value", col("stream_id").cast("int").alias("partition"))


@dataclass(frozen=True, slots=True)
class Kafka:
    """The broker, read by at least `tasks` tasks.

    New topics have `settings`, writers have `sink_options` beside the usual ones.
    """

    spark: SparkSession
    address: str
    server_pid: int
    tasks: int
    settings: Mapping[str, str] = field(default_factory=dict)
    sink_options: Mapping[str, str] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)

    def new_store(self, shape: Shape) -> Topic:
        name = f"{shape.streams[0]}-{next(self._numbers)}"
        create_topic(self.spark, self.address, name, len(shape.streams), self.settings)
        return Topic(self.spark, self.address, name, shape, self.tasks, self.sink_options)

    def with_tasks(self, tasks: int) -> Kafka:
        """Return the same broker with another number of tasks that read, at least."""
        return replace(self, tasks=tasks)

    def with_settings(self, settings: Mapping[str, str]) -> Kafka:
        """Return the same broker with other settings of new topics."""
        return replace(self, settings=settings)

    def with_options(self, options: Mapping[str, str]) -> Kafka:
        """Return the same broker with more options of writers."""
        return replace(self, sink_options=options)
