"""Topics and partitions as clients of Kafka see them, and the streams that they are."""

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from confluent_kafka.admin import AdminClient

from sbp_core.client import StreamSpec
from tests.support.clock import until
from tests.support.kafka import KafkaProcess, aio_consumer, poll, produce_all, run
from tests.support.kafka import librdkafka_consumer as reading
from tests.support.kafka_wire import RawKafka

METADATA = 3


def names(client, topic):
    return sorted(each.name for each in client.list_streams() if each.name.startswith(topic))


@pytest.fixture
def admin(gateway):
    return AdminClient(gateway.config)


def test_a_topic_that_is_written_to_is_created(gateway, client, topic):
    produce_all(gateway.config, topic, [{"value": b"a"}])
    assert names(client, topic) == [f"{topic}-0"]


def test_partitions_of_a_topic_are_streams_with_numbers(gateway, client, topic):
    async def body():
        admin = AIOKafkaAdminClient(bootstrap_servers=gateway.address)
        await admin.start()
        await admin.create_topics([NewTopic(topic, 3, 1, topic_configs={"retention.ms": "1000"})])
        await admin.create_partitions({topic: NewPartitions(4)})
        await admin.close()

    run(body)
    assert names(client, topic) == [f"{topic}-{number}" for number in range(4)]
    assert {each.retention_period_ms for each in client.describe_streams(names(client, topic))} == {
        1000
    }
    sent = [{"value": b"%d" % number, "partition": number} for number in range(4)]
    produce_all(gateway.config, topic, sent)
    bounds = client.stream_bounds(
        [each.stream_id for each in client.describe_streams(names(client, topic))]
    )
    assert [each.next_offset for each in bounds] == [1] * 4
    with reading(gateway.config, topic) as consumer:
        found = {(each.partition(), each.value()) for each in poll(consumer, 4)}
    assert found == {(number, b"%d" % number) for number in range(4)}


def test_any_other_stream_is_a_topic_with_one_partition(gateway, client, topic, admin):
    client.create_streams([StreamSpec(f"{topic}.single"), StreamSpec(f"{topic}-5")])
    names = {f"{topic}.single", f"{topic}-5"}
    until(lambda: admin.list_topics(timeout=30).topics.keys() >= names)
    found = admin.list_topics(timeout=30).topics
    assert [len(found[each].partitions) for each in names] == [1, 1]
    produce_all(gateway.config, f"{topic}.single", [{"value": b"a"}])
    with reading(gateway.config, f"{topic}.single") as consumer:
        assert [each.value() for each in poll(consumer, 1)] == [b"a"]


def test_a_consumer_gets_streams_that_are_created_later_by_a_pattern(gateway, client, topic):
    config = gateway.config | {"topic.metadata.refresh.interval.ms": 200}
    with reading(config, f"^{topic}\\..*") as consumer:
        consumer.poll(0.1)
        produce_all(gateway.config, f"{topic}.late", [{"value": b"a"}])
        assert [each.topic() for each in poll(consumer, 1)] == [f"{topic}.late"]


def test_deleted_topics_are_gone(gateway, client, topic, admin):
    produce_all(gateway.config, topic, [{"value": b"a"}])
    admin.delete_topics([topic])[topic].result(30)
    assert names(client, topic) == []


def test_offsets_by_time_and_both_ends(gateway, topic):
    done = produce_all(gateway.config, topic, [{"value": b"%d" % at} for at in range(5)])
    partition = TopicPartition(topic, 0)

    async def body():
        async with aio_consumer(gateway.address, partitions=(partition,)) as consumer:
            assert await consumer.beginning_offsets([partition]) == {partition: 0}
            assert await consumer.end_offsets([partition]) == {partition: 5}
            found = await consumer.offsets_for_times({partition: done[0].timestamp()[1] - 60_000})
            assert found[partition].offset == 0
            later = {partition: done[0].timestamp()[1] + 3_600_000}
            assert await consumer.offsets_for_times(later) == {partition: None}
            consumer.seek(partition, 3)
            assert (await consumer.getone()).value == b"3"

    run(body)


def asked(gateway, *names):
    """Topics as this gateway names them, which other gateways of the cluster may not."""

    async def body():
        topics = tuple({"name": each} for each in names) or None
        async with RawKafka.at(gateway.address) as connection:
            found = await connection.ask(METADATA, 4, topics=topics, allow_auto_topic_creation=True)
        return {each.name: (each.error_code.name, len(each.partitions)) for each in found.topics}

    return run(body)


def test_a_gateway_serves_the_topics_that_match_its_patterns(tmp_path, cluster, client, topic):
    client.create_streams([StreamSpec(f"{topic}.{each}") for each in ("a-0", "a-1", "b", "c")])
    options = ("--topic", f"{topic}.a", "--topic", f"{topic}.b*")
    with KafkaProcess.serving(tmp_path, cluster.endpoint, *options) as gateway:
        assert asked(gateway) == {f"{topic}.a": ("none", 2), f"{topic}.b": ("none", 1)}
        refused = "topic_authorization_failed", 0
        assert asked(gateway, f"{topic}.c", f"{topic}.d") == {
            f"{topic}.c": refused,
            f"{topic}.d": refused,
        }
    assert names(client, topic) == [f"{topic}.{each}" for each in ("a-0", "a-1", "b", "c")]


def test_no_topic_is_created_where_that_is_not_wanted(tmp_path, cluster, client, topic):
    with KafkaProcess.serving(tmp_path, cluster.endpoint, "--no-auto-create") as gateway:
        assert asked(gateway, topic) == {topic: ("unknown_topic_or_partition", 0)}
    assert names(client, topic) == []
