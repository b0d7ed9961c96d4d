"""kill -9 of Spark's driver and of `sbp lake` while a query reads table and log: each offset once.

The lake lands and compacts every second, keeps what it has replaced for two, and trims the log up
to where it has landed. The query goes on from its checkpoint with other limits in each life; a
batch reads everything in each round.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

import pytest
from test_driver_kill import AVAILABLE_NOW, ENDLESS, LIFE_SECONDS_MAX, Queries
from test_lake_kills import DAY_US, Lake

import sbp_core
from sbp_core.client import Client, StreamSpec, StreamUpdate
from tests.support.clock import until
from tests.support.lake import catalog_in, environment_of
from tests.support.queries import TOO_SLOW, Written, find_anomalies
from tests.support.warm import WarmCluster

NAME = "numbers"
PROPERTIES = {"lake.table": "lake.numbers", "lake.trim-after-ms": "0"}


@pytest.mark.faults
@pytest.mark.timeout(900)  # a life begins with a JVM
def test_each_offset_is_read_once_while_the_log_is_trimmed(
    tmp_path, spark, rng, rounds, monkeypatch
):
    warehouse = tmp_path / "lake"
    for name, at in environment_of(catalog_in(warehouse)).items():
        monkeypatch.setenv(name, at)
    monkeypatch.setenv("PYICEBERG_DEFAULT_CATALOG", "sbp")
    kills, batch_rows, sent = Counter(), 0, 0
    with ExitStack() as stack:
        cluster = stack.enter_context(WarmCluster())
        client = stack.enter_context(Client(cluster.endpoint))
        (info,) = client.create_streams([StreamSpec(NAME)])
        client.update_streams([StreamUpdate(NAME, properties=PROPERTIES)])
        producer = stack.enter_context(sbp_core.connect(cluster.endpoint).producer(NAME))
        lake = Lake(tmp_path, None, ["--warehouse", str(warehouse)], None)
        stack.callback(lambda: lake.end(rng))
        lake.start(cluster.endpoint, 1)
        query = Queries(
            tmp_path, cluster.endpoint, streams=NAME, history="auto", startingOffsets="earliest"
        )
        for number in range(rounds(2)):
            limits = {"maxRecordsPerTrigger": str(rng.randint(20, 300))}
            limits["minPartitions"] = str(rng.randint(1, 4))
            life = query.begin((ENDLESS, AVAILABLE_NOW)[number % 2], limits)
            if rng.random() < 0.3:
                lake.end(rng)
                kills["lake"] += 1
                lake.start(cluster.endpoint, 1)
            for _ in range(rng.randint(1, 6)):
                sent = send(producer, sent, rng)
                life.live(rng.uniform(0, 0.5))
            reader = spark.read.format("sbp").options(endpoint=cluster.endpoint, streams=NAME)
            batch_rows += check(reader.option("history", str(warehouse)).load(), sent)
            kills.update(end(life, query, rng))
            (bounds,) = client.stream_bounds([info.stream_id])
            print(f"round {number}: sent={sent} log start={bounds.start_offset}", flush=True)
        query.finish()
    batches = query.batches()
    replay_count = sum(len(lives) - 1 for lives in batches.values())
    print(f"{sent} records, {batch_rows} in batches; {query.life_count} lives, kills {dict(kills)}")
    print(f"{len(batches)} micro-batches, {replay_count} written again")
    expected = [Written(info.stream_id, each, str(each)) for each in range(sent)]
    assert find_anomalies(batches, expected) == set()
    assert bounds.start_offset > 0
    assert "Traceback" not in lake.log


def send(producer, sent, rng):
    """Send some records, of three days in any order; return how many there are."""
    count = rng.randint(1, 100)
    for number in range(sent, sent + count):
        producer.send(b"%d" % number, timestamp_us=rng.randrange(3 * DAY_US))
    producer.flush()
    return sent + count


def check(frame, sent):
    """Read all records in a batch: each once, those that were sent before and perhaps later ones.

    Return their number.
    """
    rows = frame.select("offset", frame.value.cast("string")).collect()
    assert sorted((row.offset, row.value) for row in rows) == [
        (each, str(each)) for each in range(len(rows))
    ]
    assert len(rows) >= sent
    return len(rows)


def end(life, query, rng):
    """Kill a life of the query, in most cases after it has committed a micro-batch."""
    before = query.last_commit
    if rng.random() < 0.8:
        until(lambda: query.last_commit > before or not life.is_alive)
    else:
        life.wait_until_it(rng.choice(("starts", "writes", "has written")))
    exit_code = life.live(rng.uniform(0, LIFE_SECONDS_MAX))
    if exit_code is not None:
        assert exit_code in {0, TOO_SLOW}
        return []
    life.kill()
    return ["driver in a micro-batch" if query.is_batch_open() else "driver"]
