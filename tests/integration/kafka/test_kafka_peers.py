"""librdkafka and the answers of the gateway: large batches, transactions, groups, settings."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from sbp_core import limits
from sbp_core.client import StreamSpec
from tests.support.clock import until
from tests.support.kafka import KafkaProcess, librdkafka_consumer
from tests.support.warm import WarmCluster

SECONDS = 30
SESSION = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_record_that_is_too_large_is_refused_as_that(gateway, topic, stream_id, codec):
    refused = []
    config = {"message.max.bytes": 3 * limits.BATCH_BYTES_MAX, "compression.type": codec}
    producer = Producer(gateway.config | config)
    value = bytes(limits.BATCH_BYTES_MAX + limits.MIB)
    producer.produce(topic, value, on_delivery=lambda error, _: refused.append(error))
    assert producer.flush(SECONDS) == 0
    assert [each.code() for each in refused] == [KafkaError.MSG_SIZE_TOO_LARGE]


def test_a_producer_with_transactions_fails_at_once(gateway):
    producer = Producer(gateway.config | {"transactional.id": "t"})
    with pytest.raises(KafkaException, match="the gateway has no transactions") as caught:
        producer.init_transactions(SECONDS)
    assert caught.value.args[0].fatal()


def test_partitions_move_one_by_one_with_cooperative_members(gateway, client, topic):
    client.create_streams([StreamSpec(f"{topic}-{index}") for index in range(4)])
    config = gateway.config | SESSION | {"partition.assignment.strategy": "cooperative-sticky"}
    with ExitStack() as stack:

        def join(name):
            more = {"group.id": topic, "client.id": name}
            return stack.enter_context(librdkafka_consumer(config, topic, **more))

        def shares():
            for each in members:
                each.poll(0.05)
            return [len(each.assignment()) for each in members]

        members = [join("first")]
        until(lambda: shares() == [4], SECONDS)
        kept = {each.partition for each in members[0].assignment()}
        members.append(join("second"))
        until(lambda: shares() == [2, 2], SECONDS)
        assert {each.partition for each in members[0].assignment()} < kept
        members.pop().close()
        until(lambda: shares() == [4], SECONDS)


def test_a_static_member_takes_its_partitions_back_and_fences_its_copy(gateway, client, topic):
    client.create_streams([StreamSpec(f"{topic}-{index}") for index in range(2)])
    config = gateway.config | SESSION | {"group.id": topic}
    revoked = []

    def member(name):
        return librdkafka_consumer(config, topic, **{"group.instance.id": name})

    with member("a") as stays:
        stays.subscribe([topic], on_revoke=lambda _, partitions: revoked.append(partitions))
        with member("b") as leaves:
            until(lambda: [leaves.poll(0.05), stays.poll(0.05), leaves.assignment()][-1], SECONDS)
            until(lambda: [stays.poll(0.05), len(stays.assignment())][-1] == 1, SECONDS)
            mine = leaves.assignment()
            revoked.clear()
        with member("b") as back:
            until(lambda: [back.poll(0.05), stays.poll(0.05), back.assignment()][-1], SECONDS)
            assert back.assignment() == mine
            assert not revoked
            with member("b") as copy:
                until(lambda: [copy.poll(0.05), stays.poll(0.05), _is_fenced(back)][-1], SECONDS)
                until(lambda: [stays.poll(0.05), copy.poll(0.05), copy.assignment()][-1], SECONDS)


def _is_fenced(consumer):
    try:
        message = consumer.poll(0.1)
    except KafkaException as error:
        return error.args[0].code() == KafkaError._FATAL
    return message is not None and message.error().code() == KafkaError._FATAL


def change_setting(admin, topic, operation, name, value=None):
    entry = ConfigEntry(name, value, incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(SECONDS)


@pytest.mark.filterwarnings("ignore:alter_configs has been deprecated")
def test_the_retention_of_a_topic_is_changed_and_nothing_else(gateway, client, topic):
    client.create_streams([StreamSpec(f"{topic}-{index}") for index in range(2)])
    admin = AdminClient(gateway.config)
    change = partial(change_setting, admin, topic)

    def retention():
        found = client.describe_streams([f"{topic}-{index}" for index in range(2)])
        return {(each.retention_period_ms, each.retention_bytes) for each in found}

    change(AlterConfigOpType.SET, "retention.ms", "3600000")
    change(AlterConfigOpType.SET, "retention.bytes", "1048576")
    assert retention() == {(3_600_000, 1_048_576)}
    change(AlterConfigOpType.DELETE, "retention.ms")
    assert retention() == {(0, 1_048_576)}
    for operation, name, value in (
        (AlterConfigOpType.SET, "max.message.bytes", "1"),
        (AlterConfigOpType.SET, "retention.ms", "soon"),
        (AlterConfigOpType.SET, "retention.ms", "0"),
        (AlterConfigOpType.APPEND, "retention.ms", "1"),
    ):
        with pytest.raises(KafkaException) as caught:
            change(operation, name, value)
        assert caught.value.args[0].code() == KafkaError.INVALID_CONFIG
    whole = ConfigResource(ResourceType.TOPIC, topic, set_config={"retention.ms": "7200000"})
    admin.alter_configs([whole])[whole].result(SECONDS)
    assert retention() == {(7_200_000, 0)}


def test_a_compacted_topic_keeps_all_records(gateway, client, topic):
    admin = AdminClient(gateway.config)
    created = NewTopic(topic, 1, 1, config={"cleanup.policy": "compact"})
    admin.create_topics([created])[topic].result(SECONDS)
    with pytest.raises(KafkaException, match="keeps all records"):
        change_setting(admin, topic, AlterConfigOpType.SET, "retention.ms", "1")


def test_settings_of_a_topic_are_told_from_defaults(gateway, client, topic):
    client.create_streams([StreamSpec(f"{topic}-0", retention_period_ms=3_600_000)])
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient(gateway.config)
    found = admin.describe_configs([resource])[resource].result(SECONDS)
    given = {name: each.value for name, each in found.items() if not each.is_default}
    assert given == {"retention.ms": "3600000"}


def test_a_cluster_keeps_its_id_when_its_servers_start_again(tmp_path):
    found = set()
    with WarmCluster(tmp_path / "data") as cluster:
        for _ in range(2):
            cluster.kill()
            cluster.start()
            with KafkaProcess.serving(tmp_path, cluster.endpoint) as gateway:
                found.add(AdminClient(gateway.config).list_topics(timeout=SECONDS).cluster_id)
    assert len(found) == 1
    assert found != {""}
