"""kill -9 of gateways and of the servers behind them, under an idempotent producer and a group.

Each record is stored once, in the order of its partition, and consumed at least once. The clients
are librdkafka's.
"""

import threading
from collections import defaultdict

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from sbp_core import connect
from sbp_core.client import Client, StreamSpec
from tests.support.clock import until
from tests.support.faults.cluster import FaultCluster
from tests.support.kafka import KafkaProcess

TOPIC, PARTITIONS, GATEWAYS, CONSUMERS = "numbers", 4, 2, 4
RECORDS_PER_ROUND = 4_000
PATIENT = {"message.timeout.ms": 600_000, "linger.ms": 2, "reconnect.backoff.max.ms": 500}


class Load(threading.Thread):
    """A producer: its records are numbered in each partition."""

    def __init__(self, config):
        super().__init__()
        self._producer = Producer(config | PATIENT | {"enable.idempotence": True})
        self._ending = threading.Event()
        self.sent = [0] * PARTITIONS
        self.acknowledged = 0
        self.errors = []

    def run(self):
        number = 0
        while not self._ending.is_set():
            partition, number = number % PARTITIONS, number + 1
            try:
                self._producer.produce(
                    TOPIC,
                    b"%d" % self.sent[partition],
                    partition=partition,
                    on_delivery=self._on_delivery,
                )
                self.sent[partition] += 1
            except BufferError:
                self._producer.poll(0.05)
            if number % 100 == 0:
                self._producer.poll(0.001)
        self._producer.flush(300)

    def _on_delivery(self, error, message):
        if error is None:
            self.acknowledged += 1
        else:
            self.errors.append(error.str())

    def finish(self):
        """Return when all records are acknowledged."""
        self._ending.set()
        self.join()
        assert self.errors == []
        assert self.acknowledged == sum(self.sent)


class Reader(threading.Thread):
    """A consumer of the group, which commits what it has noted."""

    def __init__(self, config, noted):
        super().__init__()
        self._consumer = Consumer(
            config
            | {
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6_000,
            }
        )
        self._noted = noted
        self._ending = threading.Event()
        self.read_count = 0

    def run(self):
        self._consumer.subscribe([TOPIC])
        while not self._ending.is_set():
            for message in self._consumer.consume(200, 0.2):
                if message.error() is None:
                    self._noted[message.partition()].add((message.offset(), message.value()))
                    self.read_count += 1
            try:
                self._consumer.commit(asynchronous=False)
            except Exception:
                continue  # the coordinator is dead, or the member has to join again
        self._consumer.close()

    def finish(self):
        """End the consumer."""
        self._ending.set()
        self.join()


def cluster_id_of(config):
    return AdminClient(config).list_topics(timeout=60).cluster_id


@pytest.mark.faults
def test_gateways_and_servers_are_killed(tmp_path, rng, rounds):
    gateways = []
    noted = defaultdict(set)
    kills = defaultdict(int)
    with FaultCluster(tmp_path) as cluster, Client(cluster.endpoint) as client:
        names = [f"{TOPIC}-{number}" for number in range(PARTITIONS)]
        stream_ids = [
            each.stream_id for each in client.create_streams([StreamSpec(each) for each in names])
        ]
        for number in range(GATEWAYS):
            folder = tmp_path / f"gateway{number}"
            folder.mkdir()
            log = ("--log-file", str(folder / "log"), "--log-level", "info")
            gateways.append(KafkaProcess(folder, cluster.endpoint, *log))
        config = gateways[0].config
        config["bootstrap.servers"] = ",".join(each.address for each in gateways)
        cluster_id = cluster_id_of(config)
        load = Load(config)
        readers = [Reader(config, noted) for _ in range(CONSUMERS)]
        threads = [load, *readers]
        for each in threads:
            each.start()
        try:
            for _ in range(rounds(4)):
                enough = load.acknowledged + rng.randrange(RECORDS_PER_ROUND)
                until(lambda enough=enough: load.acknowledged >= enough or load.errors)
                assert load.errors == []
                victim = rng.choice(["gateway", "gateway", "gateways", "server"])
                kills[victim] += 1
                if victim == "server":
                    cluster.kill()
                    cluster.start()
                else:
                    chosen = gateways if victim == "gateways" else [rng.choice(gateways)]
                    for each in chosen:
                        each.process.kill()
                        each.process.communicate()
                    for each in chosen:
                        each.start()
            load.finish()
            tails = [each.next_offset for each in client.stream_bounds(stream_ids)]
            assert tails == load.sent
            assert cluster_id_of(config) == cluster_id
            until(lambda: [len(noted[each]) for each in range(PARTITIONS)] == tails)
        finally:
            for each in threads:
                each._ending.set()
            for each in threads:
                each.join()
            for each in gateways:
                each.process.kill()
                each.process.communicate()
        with connect(cluster.endpoint) as sbp:
            for partition, name in enumerate(names):
                stored = [(each.offset, each.value) for each in sbp.consumer(name)]
                assert stored == [(at, b"%d" % at) for at in range(load.sent[partition])]
                assert noted[partition] == set(stored)
    twice = sum(each.read_count for each in readers) - sum(tails)
    print(f"{sum(tails)} records, kills {dict(kills)}: lost 0, doubled 0; read again {twice}")
