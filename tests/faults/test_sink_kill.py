"""kill -9 of a query that writes, of its tasks, and of the servers: each record is there once.

A query copies numbers, which a producer appends all the time, to two streams. In each life it has
other limits, and another partitioning of its rows; something kills it, or something that it
needs. In the end the copies must equal the source.
"""

import os
import random
import re
import signal
import time
from collections import Counter
from contextlib import suppress

import pytest
from test_driver_kill import read_log

from sbp_core.client import Client, StreamSpec
from tests.support.client import producing
from tests.support.clock import until
from tests.support.faults.cluster import FaultCluster
from tests.support.faults.nemesis import SERVERS, drawn, faulty_cluster
from tests.support.programs.sink import QUERY_FAILED
from tests.support.queries import TOO_SLOW, QueryProcess, is_batch_open, last_commit
from tests.support.spark import append_values, numbered

LIFE_SECONDS_MAX = 4.0
START_KILLED_EVERY = 4
"""Up to this number of lives may be killed before they have done anything."""
SLEEP_MS = 4_000
RECORDS_MAX_OF_LAST = 100_000
"""Limit of a micro-batch once nothing is killed any more: hours of appends may be left."""
STREAMS = ("numbers", "even", "odd")
ENDLESS = {"processingTime": "0 seconds"}
AVAILABLE_NOW = {"availableNow": True}
STEPS = ("sink.before_stage", "sink.staged", "sink.before_commit", "sink.committed")
PATIENCE_SECONDS = 300


class Copy:
    """A query with one checkpoint, its lives, and the streams that it copies from and to."""

    def __init__(self, folder, cluster, *, replica_count=1, **sink):
        self.folder = folder
        self.cluster = cluster
        self.life_count = 0
        self.is_ordered = True
        self._sink = {"endpoint": cluster.endpoint, **sink}
        with Client(cluster.endpoint) as client:
            client.create_streams([StreamSpec(name, replica_count) for name in STREAMS])

    @property
    def is_in_a_batch(self):
        return is_batch_open(self.folder / "checkpoint")

    @property
    def last_commit(self):
        return last_commit(self.folder / "checkpoint")

    def wait_until_it_works(self, life):
        """Wait until one more micro-batch is committed: the first of a JVM takes seconds."""
        before = self.last_commit
        until(lambda: self.last_commit > before or not life.is_alive, PATIENCE_SECONDS)

    def begin(
        self, rng, *, trigger=ENDLESS, partitions=None, failpoints="", records_max=1_000, **order
    ):
        self.life_count += 1
        partitions = rng.choice((0, 0, 1, 3, 5)) if partitions is None else partitions
        self.is_ordered = self.is_ordered and partitions == 0
        source = {
            "endpoint": self.cluster.endpoint,
            "streams": "numbers",
            "startingOffsets": "earliest",
            "maxRecordsPerTrigger": str(rng.randint(records_max // 10, records_max)),
            "minPartitions": str(rng.randint(1, 4)),
        }
        return QueryProcess(
            self.folder,
            self.life_count,
            main="sink",
            failpoints=failpoints,
            **{"master": "local[2,4]", "source": source, "sink": self._sink, **order},
            trigger=trigger,
            partitions=partitions,
        )

    def finish(self, rng, **order):
        """Copy what is left: a run that was cut short goes on to its own end, the next one on."""
        while True:
            life = self.begin(
                rng, trigger=AVAILABLE_NOW, runs=2, records_max=RECORDS_MAX_OF_LAST, **order
            )
            exit_code = life.wait_for_end()
            if exit_code == 0:
                return
            assert exit_code == TOO_SLOW, self.log

    @property
    def log(self):
        path = self.folder / "query.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def fired(self):
        """The failpoints of the sink that fired, by name."""
        return Counter(re.findall(r"^failpoint (sink\.\w+):", self.log, re.MULTILINE))

    def contents(self):
        """The numbers in each stream, in the order of their offsets."""
        with Client(self.cluster.endpoint) as client:
            until(lambda: not [t for t in client.describe_txns() if t.state == "publishing"])
            names = {each.stream_id: each.name for each in client.list_streams()}
            found = {name: [] for name in names.values()}
            for row in read_log(client):
                found[names[row.stream_id]].append(int(row.value))
        return found


def find_anomalies(contents, *, is_ordered):
    """The anomalies of the copies: lost, doubled, invented, or not in the order of the source."""
    found = set()
    for name, remainder in (("even", 0), ("odd", 1)):
        wanted = [number for number in contents["numbers"] if number % 2 == remainder]
        have = contents[name]
        kinds = {
            "lost": set(wanted) - set(have),
            "doubled": len(have) > len(set(have)),
            "invented": set(have) - set(wanted),
            "reordered": is_ordered and have != sorted(have),
        }
        found |= {kind for kind, is_there in kinds.items() if is_there}
    return found


def kill_worker(copy, life, rng):
    """A running task fails, and is retried; any other failure ends the query."""
    until(lambda: life.python_workers() or not life.is_alive, PATIENCE_SECONDS)
    life.live(rng.uniform(0, 1))
    victims = life.python_workers()
    if not victims:
        return []
    with suppress(ProcessLookupError):
        os.kill(rng.choice(victims), signal.SIGKILL)
    return ["worker"]


def kill_servers(copy, life, rng):
    life.live(rng.uniform(0, LIFE_SECONDS_MAX / 2))
    copy.cluster.kill()
    copy.cluster.start()
    return ["servers"]


def kill_driver(copy, life, rng):
    life.live(rng.uniform(0, LIFE_SECONDS_MAX))
    was_alive, was_in_a_batch = life.is_alive, copy.is_in_a_batch
    life.kill()
    return ["driver", *(["driver in a micro-batch"] if was_in_a_batch else [])] if was_alive else []


SURVIVED = (kill_worker, kill_servers)
"""Kills that a life goes on after. Each life ends with the kill of its driver."""
NAMES = ("driver", "worker", "servers")


@pytest.mark.timeout(1800)  # a life begins with a JVM
def test_killed_at_any_time(tmp_path, rng, rounds):
    kills = Counter()
    with FaultCluster(tmp_path, alterations=(), range_servers=2) as cluster:
        copy = Copy(tmp_path, cluster)
        producer_rng = random.Random(rng.random())
        with producing(
            cluster.endpoint, producer_rng, ["numbers"], sealed=STREAMS, seal_share=0.05
        ):
            while copy.life_count < rounds(1) or not all(kills[name] for name in NAMES):
                assert copy.life_count < 10 * rounds(1), f"not all kinds of kills: {kills}"
                chosen = rng.sample(SURVIVED, rng.randint(0, len(SURVIVED)))
                life = copy.begin(rng)
                life.wait_until_it("starts")
                if copy.life_count % START_KILLED_EVERY:
                    copy.wait_until_it_works(life)
                for kill in (*(chosen if copy.life_count > 1 else SURVIVED), kill_driver):
                    kills.update(kill(copy, life, rng))
        assert copy.last_commit > 0, "nothing was at work when it was killed"
        copy.finish(rng)
        contents = copy.contents()
    report(copy, kills, contents)
    assert find_anomalies(contents, is_ordered=copy.is_ordered) == set()


def report(copy, kills, contents):
    sizes = {name: len(numbers) for name, numbers in contents.items()}
    done = f"{copy.life_count} lives, {copy.last_commit + 1} micro-batches"
    print(f"{done}, kills {dict(kills)}, failpoints {dict(copy.fired())}; {sizes}")


@pytest.mark.timeout(1800)
@pytest.mark.faults
def test_killed_at_each_step(tmp_path, rng):
    """The process that takes a step dies; then the driver dies, while that process sleeps there.

    The process continues when the next life has committed its micro-batch: it must change nothing.
    """
    with FaultCluster(tmp_path, alterations=(), range_servers=2) as cluster:
        copy = Copy(tmp_path, cluster)
        count = 0
        for step in STEPS:
            for action in ("kill", f"sleep({SLEEP_MS})"):
                with Client(cluster.endpoint) as client:
                    append_values(client, "numbers", numbered(count, count + 200))
                count += 200
                die_at(step, action, copy, rng)
        slept_at = time.monotonic()
        copy.finish(rng)
        until(lambda: time.monotonic() > slept_at + SLEEP_MS / 1000 + 1)
        contents = copy.contents()
    report(copy, {}, contents)
    assert len(contents["numbers"]) == count
    assert find_anomalies(contents, is_ordered=copy.is_ordered) == set()


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_a_query_outlives_faults_where_streams_have_replicas(tmp_path, rng, rounds):
    """In each round one fault of those of test_rounds.py; a query that fails is started again."""
    lives, faults = [], Counter()

    def go_on():
        if not lives or not lives[-1].is_alive:
            lives.append(copy.begin(rng))
        copy.wait_until_it_works(lives[-1])

    with faulty_cluster(tmp_path) as cluster:
        copy = Copy(tmp_path, cluster, replica_count=SERVERS)
        cluster.go_on = go_on
        producer_rng = random.Random(rng.random())
        with producing(cluster.endpoint, producer_rng, ["numbers"], sealed=STREAMS, seal_share=0.0):
            go_on()
            for _, fault in zip(range(rounds(2)), drawn(rng), strict=False):
                faults[fault.__name__] += 1
                print(f"round {faults.total()}: {fault.__name__}", flush=True)
                fault(cluster, rng)
                go_on()
            lives[-1].kill()
        copy.finish(rng)
        contents = copy.contents()
    report(copy, faults, contents)
    assert find_anomalies(contents, is_ordered=copy.is_ordered) == set()


def die_at(step, action, copy, rng):
    """A life of the query whose processes do that at a step, until it is killed as a whole."""
    fired = copy.fired()[step]
    life = copy.begin(rng, failpoints=f"{step}={action}:1")
    until(lambda: copy.fired()[step] > fired or not life.is_alive, PATIENCE_SECONDS)
    if action == "kill":
        life.live(rng.uniform(0, LIFE_SECONDS_MAX))
    life.kill()
    assert copy.fired()[step] > fired, copy.log


@pytest.mark.faults
def test_a_sink_without_transactions_doubles(tmp_path, rng):
    """The same against appends at least once: the harness would see it."""
    with FaultCluster(tmp_path, alterations=(), range_servers=2) as cluster:
        copy = Copy(tmp_path, cluster, delivery="at-least-once")
        with Client(cluster.endpoint) as client:
            append_values(client, "numbers", numbered(0, 2_000))
        life = copy.begin(rng, partitions=0, failpoints="sink.appended=kill:1")  # in each attempt
        assert life.wait_for_end() in {QUERY_FAILED, TOO_SLOW}, copy.log
        copy.finish(rng, partitions=2)
        contents = copy.contents()
    assert copy.fired()["sink.appended"] > 0
    assert find_anomalies(contents, is_ordered=False) == {"doubled"}
