"""kill -9 of gateways, servers and Kafka Connect, while Debezium streams the changes of a table.

The rows that follow from the stream equal the table. CONNECT in the environment names a folder with
Kafka in `kafka` and Debezium in `plugins`, as docs/how-to/stream-postgresql-changes.md has it.
"""

import json
import os
import subprocess
import threading
from collections import Counter
from contextlib import ExitStack, suppress

import httpx
import psycopg
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from sqlalchemy import make_url

from sbp_core.processes import reserved_ports
from tests.support.clock import until
from tests.support.kafka import KafkaProcess
from tests.support.machines import Machines
from tests.support.metadata import pooler

FOLDER = os.environ.get("CONNECT")
KEYS = 200
VICTIMS = ("gateway", "gateways", "server", "driver", "connect")
WRITE = "INSERT INTO orders VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET amount = excluded.amount"
DELETE = "DELETE FROM orders WHERE id = %s"
WORKER = {
    "plugin.path": f"{FOLDER}/plugins",
    "group.id": "connect",
    "offset.flush.interval.ms": 1000,
    **{f"{kind}.storage.topic": f"connect-{kind}" for kind in ("config", "offset", "status")},
    **{f"{kind}.storage.replication.factor": -1 for kind in ("config", "offset", "status")},
    **{f"{kind}.converter.schemas.enable": "false" for kind in ("key", "value")},
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
}
CONNECTOR = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "plugin.name": "pgoutput",
    "driver.options": "-c geqo=off",  # the pooler drops options: there have to be some
    "table.include.list": "public.orders",
    "topic.prefix": "shop",
}


class Connect:
    """A worker, which begins with the configuration that is in the cluster."""

    def __init__(self, folder, **settings):
        self._folder = folder
        lines = [f"{name}={value}\n" for name, value in (WORKER | settings).items()]
        (folder / "connect.properties").write_text("".join(lines))
        self.start()

    def start(self):
        command = f"{FOLDER}/kafka/bin/connect-distributed.sh"
        environ = {**os.environ, "LOG_DIR": str(self._folder), "KAFKA_HEAP_OPTS": "-Xmx512m"}
        with (self._folder / "connect.log").open("ab") as log:
            words = [command, self._folder / "connect.properties"]
            self.process = subprocess.Popen(words, stdout=log, stderr=log, env=environ)

    def register(self, address, database):
        """Register the connector, as soon as the worker answers."""
        config = CONNECTOR | {
            "database.hostname": database.host,
            "database.port": str(database.port),
            "database.user": database.username,
            "database.password": "none",
            "database.dbname": database.database,
        }

        def is_done():
            assert self.process.poll() is None, (self._folder / "connect.log").read_text()
            with suppress(httpx.HTTPError):
                url = f"{address}/connectors/orders/config"
                return httpx.put(url, json=config, timeout=30).is_success
            return False

        until(is_done)


def change(url, rng, ending, counts):
    """Insert, update and delete rows, no faster than Debezium reads."""
    with psycopg.connect(url, autocommit=True) as connection:
        while not ending.wait(0.001):
            key, counts["changes"] = rng.randrange(KEYS), counts["changes"] + 1
            if rng.random() < 1 / 3:
                connection.execute(DELETE, (key,))
            else:
                connection.execute(WRITE, (key, counts["changes"]))


def fold(consumer, rows):
    """Apply the next changes to rows; return these."""
    for message in consumer.consume(1000, 0.2):
        if message.error() is None and message.value() is not None:
            row = json.loads(message.value())["after"]
            rows.pop(json.loads(message.key())["id"], None)
            if row is not None:
                rows[row["id"]] = row["amount"]
    return rows


@pytest.mark.faults
@pytest.mark.skipif(FOLDER is None, reason="needs CONNECT=FOLDER, with Kafka and Debezium")
def test_gateways_servers_and_connect_are_killed(tmp_path, postgresql, rng, rounds):
    postgresql.execute("ALTER SYSTEM SET wal_level = logical")
    postgresql.kill()
    postgresql.start()
    url, rows, counts, ending = postgresql.new_database(), {}, Counter(), threading.Event()
    with ExitStack() as ends, psycopg.connect(url, autocommit=True) as database:
        database.execute("CREATE TABLE orders (id int PRIMARY KEY, amount int)")
        cluster = ends.enter_context(Machines(tmp_path, 2))
        gateways = []
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            log = ("--log-file", str(tmp_path / name / "log"))
            gateways.append(KafkaProcess(tmp_path / name, cluster.endpoint, *log))
        config = gateways[0].config | {"group.id": "g", "enable.auto.commit": False}
        config["bootstrap.servers"] = ",".join(each.address for each in gateways)
        pooled = make_url(ends.enter_context(pooler(url, drops=True)))
        address = f"http://127.0.0.1:{ends.enter_context(reserved_ports(1))}"
        connect = Connect(
            tmp_path, listeners=address, **{"bootstrap.servers": config["bootstrap.servers"]}
        )
        for each in (*gateways, connect):
            ends.callback(lambda each=each: each.process.kill())
        connect.register(address, pooled)
        consumer = Consumer(config)
        ends.callback(consumer.close)
        consumer.assign([TopicPartition("shop.public.orders", 0, OFFSET_BEGINNING)])
        writer = threading.Thread(target=change, args=(url, rng, ending, counts))
        ends.callback(writer.join)
        ends.callback(ending.set)
        writer.start()
        for number in range(1, rounds(4) + 1):
            database.execute(WRITE, (-number, number))
            until(lambda number=number: -number in fold(consumer, rows))  # all works again
            victim = rng.choice(VICTIMS)
            counts[victim] += 1
            if victim in {"server", "driver"}:
                machine = cluster.driver if victim == "driver" else rng.choice(cluster.servers)
                machine.kill()
                machine.start()
                continue
            chosen = {"gateways": gateways, "connect": [connect]}.get(victim)
            chosen = chosen or [rng.choice(gateways)]
            for each in chosen:
                each.process.kill()
                each.process.communicate()
            for each in chosen:
                each.start()
        ending.set()
        writer.join()
        table = dict(database.execute("SELECT id, amount FROM orders").fetchall())
        until(lambda: fold(consumer, rows) == table)
    print(f"{len(table)} rows are equal after {dict(counts)}")
