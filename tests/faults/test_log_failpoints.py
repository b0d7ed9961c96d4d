"""Errors and delays at the failpoints of the log."""

import time

from sbp_core.client import Client
from tests.support.faults.checker import assert_sound, chosen
from tests.support.faults.cluster import END_SECONDS, FaultCluster, failpoint_names
from tests.support.faults.workload import Workload, list_streams, new_streams

SLOW_MS = 300


def last_line(cluster):
    return cluster.log.splitlines()[-1]


def test_an_error_at_each_place_of_the_log(tmp_path, history, rng):
    places = [(name, "EIO") for name in failpoint_names() if name.startswith("log.")]
    places += [(name, "ENOSPC") for name, _ in places if name == "log.before_write"]
    assert len(places) > 2
    with FaultCluster(tmp_path) as cluster:
        stream_ids = new_streams(cluster.endpoint)
        with Workload(cluster.endpoint, history, rng, stream_ids) as workload:
            cluster.kill()
            for name, code in places:
                history.fault(f"{code} at {name}")
                cluster.leave_unfinished_writes()
                nth = 1 if name.startswith("log.recovery.") else rng.randint(2, 4)
                assert cluster.run_armed(f"{name}=error({code}):{nth}") == 1
                assert last_line(cluster).startswith("sbp: ")
                assert code in last_line(cluster)
            cluster.start()
            workload.wait_for_progress()
        list_streams(cluster.endpoint, history, stream_ids)
    assert_sound(history.operations())
    assert cluster.fired_names == [name for name, _ in places]


def test_errors_of_what_can_be_done_later(tmp_path, history, rng):
    """An index that is not written, a segment that is not cleaned: the server goes on."""
    prefixes = ("cleaner.before", "file.before", "index.before", "start.before")
    places = [name for name in failpoint_names() if name.startswith(prefixes)]
    assert {name.partition(".before")[0] + ".before" for name in places} == set(prefixes)
    with FaultCluster(tmp_path) as cluster:
        stream_ids = new_streams(cluster.endpoint)
        cluster.stop()
        cluster.start_armed(",".join(f"{name}=error" for name in places))
        with Workload(cluster.endpoint, history, rng, stream_ids) as workload:
            deadline = time.monotonic() + END_SECONDS
            while set(cluster.fired_names) < set(places):
                assert time.monotonic() < deadline, set(places) - set(cluster.fired_names)
                workload.wait_for_progress()
        assert cluster.is_alive
        cluster.restart()
        list_streams(cluster.endpoint, history, stream_ids)
    assert_sound(history.operations())


def test_a_slow_disk_delays_appends_and_nothing_else(tmp_path, history, rng):
    """Calls with a shorter deadline end in time, with an outcome that is unknown."""
    with FaultCluster(tmp_path) as cluster:
        stream_ids = new_streams(cluster.endpoint)
        cluster.stop()
        cluster.start_armed(f"log.before_sync=sleep({SLOW_MS}):1+")
        with (
            Workload(cluster.endpoint, history, rng, stream_ids, changes=False) as workload,
            Workload(
                *(cluster.endpoint, history, rng, stream_ids),
                timeout_ms=SLOW_MS // 3,
                changes=False,
            ),
            Client(cluster.endpoint, timeout_ms=5_000) as client,
        ):
            for _ in range(2):
                client.ping()
                workload.wait_for_progress()
        list_streams(cluster.endpoint, history, stream_ids)
    operations = history.operations()
    assert_sound(operations)
    assert cluster.fired_count > 0
    assert len(chosen(operations, "append", "unknown")) > 0
