"""The suite is tested with servers and clients that break one promise each: it must notice."""

import pytest
from checker import check
from client_drivers import BlockingDriver
from core_cluster import rows_batch
from fault_cluster import FaultCluster
from fault_proxy import Corrupt, Direction, Reset
from proxied_cluster import proxied_cluster
from real_disks import DROP_JOURNAL, LARGE_BYTES, SMALL_BYTES
from workload import Workload, encode_record, list_streams, new_streams

from sbp_core.client import AppendItem
from sbp_core.errors import SbpError
from sbp_core.wire.opcodes import Opcode

TO_SERVER, TO_CLIENT = Direction
RECORD_BYTES = 200_000


def found(history):
    """The kinds of anomalies in a history."""
    return {anomaly.kind for anomaly in check(history.operations())}


def survive_kills(tmp_path, history, rng, alterations, kills=3):
    with FaultCluster(tmp_path, alterations=alterations) as cluster:
        stream_ids = new_streams(cluster.endpoint)
        with Workload(cluster.endpoint, history, rng, stream_ids, changes=False) as workload:
            for _ in range(kills):
                for _ in range(5):
                    workload.wait_for_progress()
                cluster.kill()
                cluster.start()
            workload.wait_for_progress()
        list_streams(cluster.endpoint, history, stream_ids)


def test_the_unbroken_build(tmp_path, history, rng):
    survive_kills(tmp_path, history, rng, ["small-segments", "volatile-disk"])
    assert found(history) == set()


def test_acknowledged_before_it_is_synced(tmp_path, history, rng):
    survive_kills(tmp_path, history, rng, ["volatile-disk", "no-sync"])
    assert {"lost", "vanished"} <= found(history)


def test_names_of_segments_are_not_synced(tmp_path, history, rng):
    alterations = ["small-segments", "volatile-disk", "no-directory-sync"]
    survive_kills(tmp_path, history, rng, alterations)
    assert "lost" in found(history)


def test_a_client_repeats_appends_of_unknown_outcome(tmp_path, history, rng):
    with proxied_cluster(tmp_path) as proxied:
        stream_ids = new_streams(proxied.endpoint)
        proxy = proxied.to_range_server
        with Workload(
            *(proxied.endpoint, history, rng, stream_ids), changes=False, retry_unknown=True
        ) as workload:
            for _ in range(5):
                proxy.inject(Reset(0), TO_CLIENT, Opcode.APPEND, count=1)
                workload.wait_for_progress()
        list_streams(proxied.endpoint, history, stream_ids)
        assert proxy.injected["Reset"] > 0
    assert "duplicated" in found(history)


def test_frames_are_not_checked(tmp_path, history):
    with proxied_cluster(tmp_path, ["no-checksums"]) as proxied:
        (stream_id,) = new_streams(proxied.endpoint, 1)
        driver = BlockingDriver(proxied.endpoint)
        batch = rows_batch([encode_record("record", 4_000)], stream_id)
        middle = -8 * (len(batch) // 2)
        proxied.to_range_server.inject(Corrupt(middle), TO_SERVER, Opcode.APPEND)
        number = history.invoke("writer", "append", stream=stream_id, records=["record"])
        (outcome,) = driver.do("append", [AppendItem(stream_id, batch)])
        history.ok(number, base_offset=outcome.base_offset)
        driver.close()
        list_streams(proxied.endpoint, history, [stream_id])
        assert proxied.to_range_server.injected["Corrupt"] == 1
    assert {"lost", "invented"} <= found(history)


def is_noticed(cluster, history, stream_ids):
    """Whether the server that is started again, or else the checker, finds that data is gone."""
    try:
        cluster.start()
    except SbpError as error:
        return any(word in str(error) for word in ("damaged", "malformed"))
    list_streams(cluster.endpoint, history, stream_ids)
    return "lost" in found(history)


def test_acknowledged_before_it_is_synced_by_a_real_disk(tmp_path, loop_disk, history, rng):
    folder = loop_disk.folder / "data"
    with FaultCluster(tmp_path, data_dir=folder, alterations=["no-sync"]) as cluster:
        stream_ids = new_streams(cluster.endpoint)
        with Workload(cluster.endpoint, history, rng, stream_ids, changes=False) as workload:
            for _ in range(5):
                workload.wait_for_progress()
            loop_disk.cut_power(DROP_JOURNAL)
            cluster.end()
        loop_disk.unmount()
        loop_disk.mount()
        assert is_noticed(cluster, history, stream_ids)


@pytest.mark.parametrize("alteration", ["repeated-sync", "trusted-cache"])
def test_a_failed_sync_that_changes_nothing(
    tmp_path, small_memory, full_disk, history, rng, alteration
):
    """The first goes on where the server should end, the second when it is started again."""
    folder = full_disk.folder / "data"
    with FaultCluster(tmp_path, data_dir=folder, alterations=[alteration]) as cluster:
        stream_ids = new_streams(cluster.endpoint)
        with Workload(
            *(cluster.endpoint, history, rng, stream_ids),
            changes=False,
            record_bytes_max=RECORD_BYTES,
        ) as workload:
            for _ in range(2 * SMALL_BYTES // RECORD_BYTES):
                workload.wait_for_progress(lambda: cluster.is_alive)
            cluster.end()
            small_memory.resize(LARGE_BYTES)
            if alteration == "trusted-cache":
                cluster.start()
                workload.wait_for_progress()
                cluster.kill()
        full_disk.unmount()
        full_disk.mount()
        assert is_noticed(cluster, history, stream_ids)
