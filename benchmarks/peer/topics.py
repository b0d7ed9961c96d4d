"""Topics of a broker, by Kafka's admin client in the Java that Spark runs on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from pyspark.sql import SparkSession

TIMEOUT_MS: Final = 30_000
REPLICAS: Final = 1


def create_topic(
    spark: SparkSession, address: str, name: str, partitions: int, settings: Mapping[str, str]
) -> None:
    """Create a topic and wait until it is there. Raises Py4JJavaError when it cannot be."""
    java = java_of(spark)
    topic = java.org.apache.kafka.clients.admin.NewTopic(
        name, partitions, java.java.lang.Short.valueOf(str(REPLICAS))
    )
    with _admin(java, address) as admin:
        admin.createTopics(java.java.util.List.of(topic.configs(dict(settings)))).all().get()


def count_records(spark: SparkSession, address: str, name: str, partitions: int) -> int:
    """Return how many records a topic holds, which is the sum of its partitions' ends."""
    java = java_of(spark)
    latest = java.org.apache.kafka.clients.admin.OffsetSpec.latest()
    asked = {
        java.org.apache.kafka.common.TopicPartition(name, index): latest
        for index in range(partitions)
    }
    with _admin(java, address) as admin:
        found = admin.listOffsets(asked).all().get()
        return sum(each.offset() for each in found.values())


def java_of(spark: SparkSession) -> Any:
    """Return the packages of the Java that Spark runs on."""
    return spark.sparkContext._jvm  # noqa: SLF001 - there is no other door


@contextmanager
def _admin(java: Any, address: str) -> Iterator[Any]:
    settings = {"bootstrap.servers": address, "default.api.timeout.ms": str(TIMEOUT_MS)}
    admin = java.org.apache.kafka.clients.admin.AdminClient.create(settings)
    try:
        yield admin
    finally:
        admin.close()
