"""Networks that delay, cut and falsify: clients get through, or get an honest error.

An append without an answer has an unknown outcome: it is stored once, or not at all.

Calls have all the time that there is, but for those that will not be answered.
"""

import threading
import time
from collections import Counter
from functools import partial
from operator import le
from pathlib import Path

import pytest

from sbp_core.client import AppendItem, RetryPolicy, StreamSpec
from sbp_core.errors import Outcome, SbpError
from sbp_core.wire.opcodes import Opcode
from tests.support.client import BlockingDriver
from tests.support.cluster import proxied_cluster, rows_batch
from tests.support.faults.checker import assert_sound, chosen, final_contents
from tests.support.faults.proxy import Corrupt, Delay, Direction, Hold, Reset, Split, Swallow
from tests.support.faults.workload import (
    Workload,
    encode_record,
    fetch_once,
    list_streams,
    new_streams,
)

TO_SERVER, TO_CLIENT = Direction
NO_RETRIES = RetryPolicy(budget_ms=0)
SHORT_MS = 500
HARMED_MS = 1_000
DEADLINE_SECONDS = 60
HARMS = (Delay(20), Delay(200), Hold(), Swallow(), Reset(0), Reset(30), Split(1), Split(100))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with proxied_cluster(tmp_path_factory.mktemp("proxied")) as running:
        yield running


@pytest.fixture(autouse=True)
def healed(cluster):
    yield
    for proxy in cluster.proxies:
        proxy.heal()
        proxy.reset_all()
        proxy.injected.clear()


@pytest.fixture
def stream_id(cluster):
    return new_streams(cluster.endpoint, 1)[0]


class Appender:
    """Appends one record at a time, and journals it."""

    def __init__(self, driver, history, stream_id, writer=None):
        self.driver, self.history, self.stream_id = driver, history, stream_id
        self.writer = writer
        self.count = 0

    def append_in_vain(self):
        """An append that gets no answer, or gets it late."""
        with self.driver.waiting_at_most(SHORT_MS):
            return self.append()

    def append(self):
        """The name of the record, and what became of it."""
        self.count += 1
        name = f"record-{self.count:05d}"
        batch = rows_batch([encode_record(name, 40)], self.stream_id)
        number = self.history.invoke("writer", "append", stream=self.stream_id, records=[name])
        try:
            item = AppendItem(self.stream_id, batch)
            (outcome,) = self.driver.do("append", [item], writer=self.writer)
        except SbpError as error:
            if error.outcome is Outcome.NOT_APPLIED:
                raise
            self.history.unknown(number, error)
            return name, "unknown"
        self.history.ok(number, base_offset=outcome.base_offset)
        return name, "ok"


@pytest.fixture
def appender(cluster, history, stream_id):
    driver = BlockingDriver(cluster.endpoint, retry=NO_RETRIES)
    yield Appender(driver, history, stream_id)
    driver.close()


def names_found(cluster, history, stream_id):
    """The records of the stream at the end, after a check against the journal."""
    cluster.heal()
    list_streams(cluster.endpoint, history, [stream_id])
    operations = history.operations()
    assert_sound(operations)
    return set(final_contents(operations)[stream_id].records.values())


@pytest.mark.parametrize("direction", Direction)
def test_reset_inside_a_frame(cluster, history, rounds, stream_id, appender, direction):
    """At every byte of it, if ROUNDS are as many."""
    proxy = cluster.to_range_server
    assert [appender.append()[1] for _ in range(2)] == ["ok", "ok"]
    length = proxy.last_bytes[direction, Opcode.APPEND]
    places = range(0, length, -(-length // rounds(12)))
    cut = []
    for after_bytes in places:
        proxy.inject(Reset(after_bytes), direction, Opcode.APPEND, count=1)
        cut.append(appender.append())
    assert proxy.injected["Reset"] == len(places) > 5
    assert {end for _, end in cut} == {"unknown"}
    found = names_found(cluster, history, stream_id)
    are_there = {name in found for name, _ in cut}
    assert are_there == {direction is TO_CLIENT}, "the server gets a whole frame, or none"


@pytest.mark.parametrize("direction", Direction)
def test_half_open(cluster, history, stream_id, direction):
    """The call ends in time, the next one uses another connection, nothing is leaked."""
    break_connections(cluster)
    resources_before = open_resources()
    driver = BlockingDriver(cluster.endpoint, retry=NO_RETRIES)
    appender = Appender(driver, history, stream_id)
    assert appender.append()[1] == "ok"
    proxy = cluster.to_range_server
    proxy.inject(Swallow(), direction, Opcode.APPEND, count=1)
    name, end = appender.append_in_vain()
    assert end == "unknown"
    wait_until(lambda: proxy.injected["Swallow"])
    assert appender.append()[1] == "ok"
    driver.close()
    found = names_found(cluster, history, stream_id)
    assert (name in found) == (direction is TO_CLIENT)
    wait_until(lambda: has_no_more_than(resources_before, cluster))


def break_connections(cluster):
    """Reset all connections, until there is a moment without any.

    The placement driver keeps one to the range server, and may have made it just now.
    """

    def are_gone():
        for proxy in cluster.proxies:
            proxy.reset_all()
        return not any(proxy.link_count for proxy in cluster.proxies)

    wait_until(are_gone)


def has_no_more_than(resources_before, cluster):
    """Whether nothing is left but what there was, or less: garbage of earlier tests may be gone.

    The connection that the placement driver keeps to the range server does not count.
    """
    break_connections(cluster)
    return all(map(le, open_resources(), resources_before))


def wait_until(condition):
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def open_resources():
    """How many threads and descriptors this process has."""
    return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))


def test_flipped_bits_in_appends(cluster, history, rng, rounds, stream_id, appender):
    """Both ends agree on checksums of whole frames with the first answer of a connection."""
    proxy = cluster.to_range_server
    damaged = []
    for direction in [TO_SERVER, TO_CLIENT] * rounds(5):
        for _ in range(2):  # the first answer of a new connection may come before the agreement
            fetch_once(appender.driver, stream_id, 0)
        proxy.inject(Corrupt(rng.getrandbits(32)), direction, Opcode.APPEND, count=1)
        damaged.append((appender.append_in_vain(), direction))
        wait_until(lambda: proxy.injected["Corrupt"] == len(damaged))
    assert {end for (_, end), _ in damaged} == {"unknown"}
    found = names_found(cluster, history, stream_id)
    accepted = [name for (name, _), direction in damaged if direction is TO_SERVER if name in found]
    assert accepted == []


def test_flipped_bits_in_what_is_read(cluster, history, rng, rounds, stream_id):
    """A reader gets what was written, or an error."""
    proxy = cluster.to_range_server
    driver = BlockingDriver(cluster.endpoint, retry=NO_RETRIES)
    appender = Appender(driver, history, stream_id)
    for _ in range(10):
        assert appender.append()[1] == "ok"
    for _ in range(rounds(10)):
        assert len(fetch_once(driver, stream_id, 0).payload) > 0
        before = Counter(proxy.injected)
        proxy.inject(Corrupt(rng.getrandbits(32)), TO_CLIENT, Opcode.FETCH, count=1)
        with driver.waiting_at_most(SHORT_MS), pytest.raises(SbpError):
            fetch_once(driver, stream_id, 0)
        wait_until(partial(before.__lt__, proxy.injected))
    driver.close()
    assert len(names_found(cluster, history, stream_id)) == 10


def test_without_the_placement_driver(cluster, history, stream_id):
    """Appends to known ranges go on; calls to it time out, and succeed when it is back."""
    driver = BlockingDriver(cluster.endpoint, retry=NO_RETRIES)
    appender = Appender(driver, history, stream_id)
    assert appender.append()[1] == "ok"
    for direction in Direction:
        cluster.to_placement_driver.inject(Hold(), direction)
    assert {appender.append()[1] for _ in range(10)} == {"ok"}
    with driver.waiting_at_most(SHORT_MS), pytest.raises(SbpError) as caught:
        driver.do("create_streams", [StreamSpec(None)])
    assert caught.value.outcome is Outcome.UNKNOWN
    assert len(fetch_once(driver, stream_id, 0).payload) > 0
    assert cluster.to_placement_driver.injected["Hold"] > 0
    cluster.heal()
    assert len(driver.do("create_streams", [StreamSpec(None)])) == 1
    driver.close()
    assert len(names_found(cluster, history, stream_id)) == 11


def test_any_harm_at_any_time(cluster, history, rng, rounds):
    """Writers, a reader, and a client that seals and trims, over a network that often fails."""
    stream_ids = new_streams(cluster.endpoint)
    met = Counter()
    with Workload(*(cluster.endpoint, history, rng, stream_ids), timeout_ms=HARMED_MS) as workload:
        workload.wait_for_progress()
        cluster.to_range_server.inject(Reset(0), TO_CLIENT, Opcode.APPEND, count=1)
        wait_until(lambda: cluster.to_range_server.injected["Reset"])
        while met.total() < rounds(6):
            proxy = rng.choice(cluster.proxies)
            fault, direction = rng.choice(HARMS), rng.choice(list(Direction))
            opcode = rng.choice([None, Opcode.APPEND, Opcode.FETCH, Opcode.SEAL_RANGE])
            history.fault(f"{fault} {direction.value}, of {opcode or 'anything'}")
            before = proxy.injected_count
            proxy.inject(fault, direction, opcode, count=rng.choice([1, 5, None]))
            time.sleep(rng.uniform(0, 0.2))
            met[fault] += proxy.injected_count > before
            if rng.random() < 0.2:
                proxy.reset_all()
            cluster.heal()
            if rng.random() < 0.2:
                workload.wait_for_progress()
        workload.wait_for_progress()
    print(f"harms that met frames: {dict(met)}")
    for proxy in cluster.proxies:
        proxy.reset_all()
    list_streams(cluster.endpoint, history, stream_ids)
    operations = history.operations()
    assert_sound(operations)
    assert len(chosen(operations, "append", "unknown")) > 0
