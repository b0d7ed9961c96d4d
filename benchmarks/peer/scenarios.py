"""What Kafka does beside the connector: each function runs once and returns its seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.functions import col

from benchmarks import scenarios
from benchmarks.peer.topics import count_records, create_topic
from benchmarks.scenarios import Bench, BenchmarkError, Scenario, Side

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


@dataclass(frozen=True, slots=True)
class KafkaBench:
    """The work of a bench with a broker in the server's place.

    `settings` are those of new topics; `topic` has a partition for each stream of the bench.
    """

    bench: Bench
    address: str
    settings: Mapping[str, str] = field(default_factory=dict)
    topic: str = ""
    _numbers: Iterator[int] = field(default_factory=count)

    def new_topic(self) -> KafkaBench:
        """Create an empty topic and return the bench that uses it."""
        name = f"bench-{next(self._numbers)}"
        create_topic(self.bench.spark, self.address, name, self.partitions, self.settings)
        return replace(self, topic=name)

    def fill(self) -> KafkaBench:
        """Write the rows into a new topic and return the bench that reads them."""
        filled = self.new_topic()
        _save(filled)
        return filled

    def check_stored(self) -> None:
        """Raise BenchmarkError unless the topic holds exactly the rows of the shape."""
        stored = count_records(self.bench.spark, self.address, self.topic, self.partitions)
        if stored != self.bench.shape.rows:
            raise BenchmarkError(
                f"{self.bench.shape.rows} rows were written to Kafka, but {stored} are stored"
            )

    @property
    def partitions(self) -> int:
        """Partitions of a topic: each is written and read by one task, as a stream is."""
        return len(self.bench.shape.streams)

    def source_options(self) -> dict[str, str]:
        """Return the options that read all records of the topic."""
        start = {"subscribe": self.topic, "startingOffsets": "earliest"}
        return self._connection | start | CONSUMER

    def sink_options(self) -> dict[str, str]:
        """Return the options that write to the topic."""
        return self._connection | {"topic": self.topic} | PRODUCER

    @property
    def _connection(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.address}


@dataclass(frozen=True, slots=True)
class PeerScenario:
    """What Kafka does, and the scenario of the connector that does the same."""

    name: str
    ours: Scenario
    run: Callable[[KafkaBench], float]
    settings: Mapping[str, str] = field(default_factory=dict)


def batch_read(kafka: KafkaBench) -> float:
    """Read all rows, from planning to the end."""
    started = time.perf_counter()
    rows = kafka.bench.spark.read.format(FORMAT).options(**kafka.source_options()).load()
    rows.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def available_now_read(kafka: KafkaBench) -> float:
    """Read all rows with Trigger.AvailableNow."""
    rows = kafka.bench.spark.readStream.format(FORMAT).options(**kafka.source_options()).load()
    return scenarios.stream_seconds(kafka.bench, rows.writeStream.format("noop"))


def batch_write(kafka: KafkaBench) -> float:
    """Write all rows, acknowledged."""
    return _save(kafka.new_topic())


def streaming_write(kafka: KafkaBench) -> float:
    """Write all rows in one micro-batch, acknowledged."""
    target = kafka.new_topic()
    rows = _records(scenarios.streamed_rows(kafka.bench, Side.CEILING))
    writer = rows.writeStream.format(FORMAT).options(**target.sink_options())
    seconds = scenarios.stream_seconds(kafka.bench, writer)
    target.check_stored()
    return seconds


def _save(kafka: KafkaBench) -> float:
    started = time.perf_counter()
    rows = _records(scenarios.batch_rows(kafka.bench, Side.CEILING))
    rows.write.format(FORMAT).options(**kafka.sink_options()).save()
    seconds = time.perf_counter() - started
    kafka.check_stored()
    return seconds


def _records(rows: DataFrame) -> DataFrame:
    """Return the rows of a stream as the records of one partition."""
    return rows.select("key", "value", col("stream_id").cast("int").alias("partition"))


def _scenario(
    ours: str, run: Callable[[KafkaBench], float], settings: Mapping[str, str] | None = None
) -> PeerScenario:
    suffix = "-synced" if settings else ""
    return PeerScenario(f"kafka-{ours}{suffix}", scenarios.SCENARIOS[ours], run, settings or {})


SCENARIOS: Final = {
    scenario.name: scenario
    for scenario in (
        _scenario("batch-read", batch_read),
        _scenario("available-now-read", available_now_read),
        _scenario("batch-write", batch_write),
        _scenario("batch-write", batch_write, SYNCED),
        _scenario("streaming-write", streaming_write),
        _scenario("streaming-write", streaming_write, SYNCED),
    )
}
