"""Errors and delays at the failpoints of the log."""

from checker import assert_sound, chosen
from fault_cluster import FaultCluster, failpoint_names
from workload import Workload, list_streams, new_streams

from sbp_core.client import Client

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
                assert cluster.run_armed(f"{name}=error({code}):{rng.randint(2, 4)}") == 1
                assert last_line(cluster).startswith("sbp: ")
                assert code in last_line(cluster)
            cluster.start()
            workload.wait_for_progress()
        list_streams(cluster.endpoint, history, stream_ids)
    assert_sound(history.operations())
    assert cluster.fired_names == [name for name, _ in places]


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
