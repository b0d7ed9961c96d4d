"""How long a record takes from before its append until a function of foreachBatch has it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Event
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from benchmarks.peer.scenarios import FORMAT, KafkaBench
from benchmarks.peer.topics import java_of
from benchmarks.scenarios import Bench, BenchmarkError, sbp_options
from sbp_core.client import AppendItem, Client
from sbp_core.records import ROWS_SCHEMA, encode_rows

RECORDS: Final = 100
RECORDS_IGNORED: Final = 20
INTERVAL_S: Final = 0.05
VALUE_BYTES: Final = 100
QUERY_TIMEOUT_S: Final = 60

Append = Callable[[bytes], None]


class Arrivals:
    """When records came to a query; their values begin with their numbers."""

    def __init__(self, count: int) -> None:
        self.seconds: list[float | None] = [None] * count
        self.are_complete = Event()

    def take(self, batch: DataFrame, _number: int) -> None:
        """Note the records of a micro-batch, once they are here."""
        values = [bytes(row.value) for row in batch.select("value").collect()]
        now = time.perf_counter()
        for value in values:
            self.seconds[int(value.split()[0])] = now
        if None not in self.seconds:
            self.are_complete.set()


def sbp_latencies(bench: Bench) -> list[float]:
    """Return the seconds that records took through the connector."""
    filled = replace(bench, shape=bench.new_streams())
    options = sbp_options(filled) | {"startingOffsets": "earliest"}
    rows = bench.spark.readStream.format("sbp").options(**options).load()
    with _sbp_append(filled) as append:
        return _latencies(bench, rows, append)


def kafka_latencies(kafka: KafkaBench) -> list[float]:
    """Return the seconds that records took through Kafka."""
    target = kafka.new_topic()
    rows = kafka.bench.spark.readStream.format(FORMAT).options(**target.source_options()).load()
    with _kafka_append(target) as append:
        return _latencies(kafka.bench, rows, append)


def _latencies(bench: Bench, rows: DataFrame, append: Append) -> list[float]:
    """Append one record after the other while a query runs that starts as soon as it can."""
    arrivals = Arrivals(RECORDS_IGNORED + RECORDS)
    sent = []
    query = (
        rows.writeStream.foreachBatch(arrivals.take)
        .option("checkpointLocation", bench.new_checkpoint())
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        for number in range(len(arrivals.seconds)):
            sent.append(time.perf_counter())
            append(f"{number} ".encode().ljust(VALUE_BYTES, b"."))
            time.sleep(INTERVAL_S)
        if not arrivals.are_complete.wait(QUERY_TIMEOUT_S):
            raise BenchmarkError(f"records did not come within {QUERY_TIMEOUT_S} s")
    finally:
        query.stop()
    pairs = zip(sent, arrivals.seconds, strict=True)
    return [arrived - begun for begun, arrived in pairs if arrived is not None][RECORDS_IGNORED:]


@contextmanager
def _sbp_append(bench: Bench) -> Iterator[Append]:
    with Client(bench.endpoint) as client:
        stream_id = client.describe_streams(bench.shape.streams)[0].stream_id

        def append(value: bytes) -> None:
            columns = {field.name: pa.nulls(1, field.type) for field in ROWS_SCHEMA}
            columns["value"] = pa.array([value], pa.binary())
            rows = pa.record_batch(list(columns.values()), schema=ROWS_SCHEMA)
            content = encode_rows(rows, stream_id=stream_id, timestamp_ms=0)
            client.append([AppendItem(stream_id, content)])

        yield append


@contextmanager
def _kafka_append(kafka: KafkaBench) -> Iterator[Append]:
    java: Any = java_of(kafka.bench.spark)
    serializer = "org.apache.kafka.common.serialization.ByteArraySerializer"
    settings = {
        "bootstrap.servers": kafka.address,
        "key.serializer": serializer,
        "value.serializer": serializer,
    }
    producer = java.org.apache.kafka.clients.producer.KafkaProducer(settings)

    def append(value: bytes) -> None:
        record = java.org.apache.kafka.clients.producer.ProducerRecord(kafka.topic, value)
        producer.send(record).get()

    try:
        yield append
    finally:
        producer.close()
