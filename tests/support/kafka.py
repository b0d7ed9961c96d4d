"""`sbp kafka` as a process, and clients of Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from tests.support.clock import until
from tests.support.web import GatewayProcess


class KafkaProcess(GatewayProcess):
    """`sbp kafka`."""

    word = "kafka"

    @property
    def config(self) -> dict[str, Any]:
        """The settings with which a client of librdkafka connects."""
        return {"bootstrap.servers": self.address, "broker.address.family": "v4"}


@contextmanager
def librdkafka_consumer(config: dict[str, Any], *topics: str, **more: Any) -> Iterator[Consumer]:
    """A consumer of librdkafka that begins with the first records."""
    start = {"group.id": "g", "auto.offset.reset": "earliest", "enable.partition.eof": False}
    consumer = Consumer({**config, **start, **more})
    consumer.subscribe(list(topics))
    try:
        yield consumer
    finally:
        with suppress(KafkaException, RuntimeError):  # a member that is fenced, or closed
            consumer.poll(0)  # close() may wait for ever for an assignment that no poll has served
        consumer.close()


def poll(consumer: Consumer, count: int) -> list[Any]:
    """Return the next messages."""
    found: list[Any] = []

    def is_done() -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message)
        elif message is not None:  # a topic that is created just now is looked up again
            assert message.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART, message.error()
        return len(found) >= count

    until(is_done, 60)
    return found


def produce_all(config: dict[str, Any], topic: str, records: list[dict[str, Any]]) -> list[Any]:
    """Produce with librdkafka; return the messages with their offsets, in the order delivered.

    Raises the KafkaError of the first record that was refused.
    """
    done: list[Any] = []
    failed: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, message: Any) -> None:
        (done if error is None else failed).append(error or message)

    producer = Producer({**config, "linger.ms": 5})
    for each in records:
        producer.produce(topic, on_delivery=on_delivery, **each)
    assert producer.flush(60) == 0
    if failed:
        raise AssertionError(failed[0].str())
    assert len(done) == len(records)
    return done


@asynccontextmanager
async def aio_producer(address: str, **options: Any) -> AsyncIterator[AIOKafkaProducer]:
    """A producer of aiokafka."""
    producer = AIOKafkaProducer(bootstrap_servers=address, **options)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


@asynccontextmanager
async def aio_consumer(
    address: str, *topics: str, partitions: tuple[TopicPartition, ...] = (), **options: Any
) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer of aiokafka that begins with the first records."""
    consumer = AIOKafkaConsumer(
        *topics, bootstrap_servers=address, auto_offset_reset="earliest", **options
    )
    await consumer.start()
    if partitions:
        consumer.assign(list(partitions))
    try:
        yield consumer
    finally:
        await consumer.stop()


def run(body: Callable[[], Any], seconds: float = 60) -> Any:
    """Run a coroutine function to its end."""
    return asyncio.run(asyncio.wait_for(body(), seconds))
