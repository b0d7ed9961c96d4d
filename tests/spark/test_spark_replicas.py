"""Streams with three replicas under Spark, while range servers are killed with SIGKILL.

Each range server is a process. A task stops between its source and its sink while a server dies.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.clock import until
from tests.support.machines import Machine, Machines
from tests.support.spark import Sbp, append_values, numbered

COPY_MS_MAX = 4_000
"""How much earlier or later than the primary a secondary may write a record."""
RECORDS = 200
"""In a micro-batch: more than one Arrow batch of a task."""
ROWS_PER_ARROW_BATCH = "50"
COPIED = "copied"


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    with Machines(tmp_path_factory.mktemp("machines"), 3) as started:
        yield started


@pytest.fixture(scope="module")
def replicated(spark, machines) -> Sbp:
    """Spark on these servers."""
    return Sbp(spark, machines.endpoint)


@pytest.fixture(scope="module")
def own_client(machines):
    from sbp_core.client import Client

    with Client(machines.endpoint) as connected:
        yield connected


@pytest.fixture
def small_arrow_batches(spark):
    """A task hands rows over before it has all of them."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, ROWS_PER_ARROW_BATCH)
    yield
    spark.conf.set(name, before)


class Gate:
    """Holds a task in the middle of its rows, from `close` to `open`."""

    def __init__(self, folder: Path) -> None:
        self._closed, self._held = folder / "closed", folder / "held"

    def close(self) -> None:
        self._held.unlink(missing_ok=True)
        self._closed.touch()

    def open(self) -> None:
        self._closed.unlink()

    @property
    def holds(self) -> bool:
        """Whether a task waits; it has handed over one Arrow batch at least."""
        return self._held.exists()

    def through(self):
        """A function for mapInArrow."""
        closed, held = self._closed, self._held

        def hold(batches):  # local, so that workers, which have no module of tests, can load it
            for number, batch in enumerate(batches):
                while number and closed.exists():
                    held.touch()
                    time.sleep(0.01)
                yield batch

        return hold


def primary(client, name) -> str:
    """The endpoint of the primary of the open range."""
    (info,) = client.describe_streams([name])
    (ranges,) = client.list_ranges([info.stream_id]).values()
    return ranges[-1].servers[0]


def values_of(sbp, name) -> list[bytes]:
    rows = sbp.load(name).orderBy("offset").select("offset", "value").collect()
    assert [row.offset for row in rows] == list(range(len(rows)))
    return [bytes(row.value) for row in rows]


@pytest.mark.timeout(300)
def test_a_query_goes_on_while_primaries_are_killed(
    replicated, machines, own_client, checkpoint, tmp_path, small_arrow_batches
):
    from sbp_core.client import StreamSpec, Writer

    own_client.create_streams([StreamSpec("origin", 3)])
    writer, count = Writer(), 0
    gate = Gate(tmp_path)
    rows = (
        replicated.load_stream("origin").select("value").mapInArrow(gate.through(), "value binary")
    )
    sink = rows.writeStream.format("sbp").options(
        endpoint=machines.endpoint,
        stream=COPIED,
        createStreams="true",
        createReplicas="3",
        checkpointLocation=str(checkpoint),
    )
    query = sink.trigger(processingTime="0 seconds").start()

    def append():
        nonlocal count
        values = numbered(count, count + RECORDS)
        append_values(own_client, "origin", values, writer=writer)
        count += RECORDS

    append()
    query.processAllAvailable()
    (copied,) = own_client.describe_streams([COPIED])
    assert copied.replica_count == 3
    for name in (COPIED, "origin"):
        gate.close()
        append()
        until(lambda: gate.holds or query.exception())
        victim = machines.at(primary(own_client, name))
        victim.kill()
        gate.open()
        append()
        query.processAllAvailable()
        assert primary(own_client, name) != victim.endpoint
        assert values_of(replicated, COPIED) == numbered(0, count)
        victim.start()
    assert query.exception() is None
    query.stop()
    assert values_of(replicated, "origin") == numbered(0, count)


@pytest.mark.timeout(300)
def test_a_task_logs_which_primary_it_gave_up(
    spark, replicated, machines, own_client, tmp_path, small_arrow_batches
):
    from sbp_core.client import StreamSpec

    own_client.create_streams([StreamSpec("from", 3), StreamSpec("to", 3)])
    append_values(own_client, "from", numbered(0, RECORDS))
    gate = Gate(tmp_path)
    gate.close()
    rows = replicated.load("from").select("value").mapInArrow(gate.through(), "value binary")

    def kill_in_the_middle() -> Machine:
        until(lambda: gate.holds)
        victim = machines.at(primary(own_client, "to"))
        victim.kill()
        gate.open()
        return victim

    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    try:
        with ThreadPoolExecutor(1) as threads:
            killing = threads.submit(kill_in_the_middle)
            replicated.save(rows, stream="to")
            victim = killing.result()
        logs = spark.tvf.python_worker_logs().where("logger = 'sbp_core.client'").collect()
    finally:
        spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")
    victim.start()
    assert values_of(replicated, "to") == numbered(0, RECORDS)
    said = [each for each in logs if f"old_server={victim.endpoint} " in each.msg]
    assert [each.level for each in said] == ["WARNING"]
    assert said[0].msg.startswith("[partition 0] fail-over followed: ")


def test_a_placement_driver_that_is_down_is_passed_over(spark, machines, own_client):
    """At the first contact, which has little patience, and by the tasks."""
    from sbp_core.client import StreamSpec
    from sbp_core.processes import reserved_ports

    own_client.create_streams([StreamSpec("known", 3)])
    append_values(own_client, "known", numbered(0, 5))
    with reserved_ports(1) as port:
        sbp = Sbp(spark, f"127.0.0.1:{port},{machines.endpoint}")
        assert values_of(sbp, "known") == numbered(0, 5)
        sbp.save(sbp.load("known").select("value"), stream="known")
        assert sorted(values_of(sbp, "known")) == sorted(2 * numbered(0, 5))


def iso(time_ms):
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_sealed", [True, False], ids=["sealed", "open"])
def test_a_batch_is_read_while_a_server_is_down(replicated, machines, own_client, is_sealed):
    """By offsets and by times, of a range that is sealed, and of one whose primary is down."""
    from sbp_core.client import StreamSpec

    name = f"read-{is_sealed}"
    (info,) = own_client.create_streams([StreamSpec(name, 3)])
    append_values(own_client, name, numbered(0, 5))
    first_ms = own_client.append_times({info.stream_id: 0})[info.stream_id]
    # Each server knows a record by the time when it wrote it, so copies differ a little.
    between_ms = first_ms + COPY_MS_MAX
    until(lambda: time.time_ns() // 1_000_000 > between_ms + COPY_MS_MAX)
    append_values(own_client, name, numbered(5, 9))
    if is_sealed:
        own_client.seal_streams([info.stream_id])
        append_values(own_client, name, numbered(9, 12))
    tail = machines.at(primary(own_client, name))
    victim = next(each for each in machines.servers if (each is tail) != is_sealed)
    victim.kill()
    try:
        stop = 12 if is_sealed else 9
        assert values_of(replicated, name) == numbered(0, stop)

        def read(**options):
            rows = replicated.load(name, **options).orderBy("offset").select("offset").collect()
            return [row.offset for row in rows]

        assert read(startingTimestamp=iso(between_ms)) == list(range(5, stop))
        assert read(endingTimestamp=iso(between_ms)) == list(range(5))
    finally:
        victim.start()


def test_a_copy_keeps_the_order_of_ranges_that_several_servers_have(
    replicated, machines, own_client, checkpoint
):
    """Input partitions are numbered by offsets, not by servers, and a sink follows the numbers."""
    from sbp_core.client import StreamSpec

    own_client.create_streams([StreamSpec("moved", 3)])
    count, primaries = 0, []
    while primaries == sorted(primaries):
        append_values(own_client, "moved", numbered(count, count + 30))
        count += 30
        primaries.append(primary(own_client, "moved"))
        machines.at(primaries[-1]).kill()
        until(lambda: primary(own_client, "moved") != primaries[-1])
        machines.at(primaries[-1]).start()
    own_client.create_streams([StreamSpec("batch"), StreamSpec("streamed")])
    for tasks in ("1", "5"):
        replicated.save(
            replicated.load("moved", minPartitions=tasks).select("value"), stream="batch"
        )
    assert values_of(replicated, "batch") == 2 * numbered(0, count)
    query = replicated.copy(replicated.load_stream("moved"), "streamed", checkpoint)
    query.processAllAvailable()
    query.stop()
    assert values_of(replicated, "streamed") == numbered(0, count)
