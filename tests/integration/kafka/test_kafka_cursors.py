"""Groups of Kafka's consumers, whose offsets are cursors of the cluster."""

import json
from contextlib import ExitStack

import pytest
from aiokafka import TopicPartition
from confluent_kafka import TopicPartition as Partition

from sbp_core import connect
from sbp_core.cli.main import main
from sbp_core.client import StreamSpec
from tests.support.clock import until
from tests.support.kafka import aio_consumer, librdkafka_consumer, poll, produce_all, run


@pytest.fixture
def group(topic):
    return f"group-of-{topic}"


@pytest.fixture
def ten(gateway, topic):
    """Ten records."""
    return produce_all(gateway.config, topic, [{"value": b"%d" % at} for at in range(10)])


@pytest.fixture
def sbp(cluster):
    with connect(cluster.endpoint) as connected:
        yield connected


def values(records):
    return [int(each.value) for each in records]


def read_some(gateway, topic, group, count):
    """Read and commit with librdkafka."""
    manual = {"group.id": group, "enable.auto.commit": False}
    with librdkafka_consumer(gateway.config, topic, **manual) as consumer:
        found = poll(consumer, count)[:count]
        offsets = [Partition(topic, 0, found[-1].offset() + 1)]
        consumer.commit(offsets=offsets, asynchronous=False)
        return [int(each.value()) for each in found]


def test_a_group_goes_from_kafkas_consumers_to_ours_and_back(
    gateway, cluster, sbp, topic, group, ten, capfd
):
    assert read_some(gateway, topic, group, 3) == [0, 1, 2]
    assert main(["lag", group, "--json", "--endpoint", cluster.endpoint]) == 0
    (found,) = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert (found["stream"], found["next_offset"], found["lag_records"]) == (f"{topic}-0", 3, 7)
    with sbp.consumer(f"{topic}-0", group=group, commit_interval_ms=None) as consumer:
        records = iter(consumer)
        assert [int(next(records).value) for _ in range(4)] == [3, 4, 5, 6]
        consumer.commit()
    assert read_some(gateway, topic, group, 2) == [7, 8]
    assert values(sbp.consumer(f"{topic}-0", group=group)) == [9]


def test_a_group_goes_on_where_it_was_with_aiokafka(gateway, topic, group, ten):
    async def read(count):
        async with aio_consumer(
            gateway.address, topic, group_id=group, enable_auto_commit=False
        ) as consumer:
            found = [await consumer.getone() for _ in range(count)]
            await consumer.commit({TopicPartition(topic, 0): found[-1].offset + 1})
            return values(found)

    assert run(lambda: read(4)) == [0, 1, 2, 3]
    assert run(lambda: read(6)) == [4, 5, 6, 7, 8, 9]


def test_members_share_the_partitions_and_take_over_from_one_another(gateway, client, topic, group):
    partitions = range(4)
    client.create_streams([StreamSpec(f"{topic}-{each}") for each in partitions])
    quick = {"group.id": group, "session.timeout.ms": 6_000, "heartbeat.interval.ms": 200}
    with librdkafka_consumer(gateway.config, topic, **quick) as first:
        with librdkafka_consumer(gateway.config, topic, **quick) as second:

            def held():
                for each in (first, second):
                    each.poll(0.1)
                return [
                    {found.partition for found in each.assignment()} for each in (first, second)
                ]

            until(lambda: all(len(each) == 2 for each in held()), 60)
            assert set.union(*held()) == set(partitions)
        until(lambda: first.poll(0.1) is None and len(first.assignment()) == 4, 60)


def test_the_group_of_our_own_members_is_not_theirs(gateway, cluster, topic, group, ten):
    with connect(cluster.endpoint) as sbp, ExitStack() as held:
        sharing = {"group": group, "shared": True, "follow": True}
        consumer = held.enter_context(sbp.consumer(f"{topic}-0", **sharing))
        assert int(next(iter(consumer)).value) == 0
        config = gateway.config | {"group.id": group, "auto.offset.reset": "earliest"}
        with librdkafka_consumer(config, topic, **{"group.id": group}) as consumer:
            errors = []

            def is_refused():
                message = consumer.poll(0.2)
                if message is not None:
                    errors.append(message.error())
                return errors

            until(is_refused, 60)
            assert errors[0] is not None, "it reads beside the members"
