"""The suite is tested with servers and clients that break one promise each: it must notice."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from sbp_core.client import AppendItem, Client, RetryPolicy, StreamSpec
from sbp_core.errors import RangeSealedError, SbpError
from sbp_core.wire.headers import AppendInfo, AppendRequest, StreamRange
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import check_status
from tests.support.client import BlockingDriver
from tests.support.cluster import proxied_cluster, rows_batch
from tests.support.faults.checker import check
from tests.support.faults.cluster import FaultCluster
from tests.support.faults.proxy import Corrupt, Direction, Reset
from tests.support.faults.workload import (
    History,
    Workload,
    encode_record,
    list_streams,
    new_streams,
)
from tests.support.real_disks import (
    DROP_JOURNAL,
    LARGE_BYTES,
    SMALL_BYTES,
    full_disk,
    skipping_where_nothing_can_be_mounted,
)
from tests.support.wire import RawClient

pytestmark = pytest.mark.faults

TO_SERVER, TO_CLIENT = Direction
RECORD_BYTES = 200_000
LIFE_RECORD_BYTES = 10_000
FULL_DISKS_MAX = 5
CUT = "bytes that were never synced"
"""Part of the message of a server that finds the end of its log damaged or missing."""
READ_ONLY = "Read-only file system"
"""The error of a disk whose file system has stopped after errors, so that nothing is synced."""
NEW = StreamSpec(None)


def found(history):
    """The kinds of anomalies in a history."""
    return {anomaly.kind for anomaly in check(history.operations())}


def survive_kills(tmp_path, history, rng, alterations, kills=2):
    with FaultCluster(tmp_path, alterations=alterations) as cluster:
        stream_ids = new_streams(cluster.endpoint)
        with Workload(
            *(cluster.endpoint, history, rng, stream_ids),
            changes=False,
            record_bytes_max=LIFE_RECORD_BYTES,
        ) as workload:
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
    assert "lost" in found(history)


def test_names_of_segments_are_not_synced(tmp_path, history, rng):
    """The server misses its log by itself, and does not begin another one in its place."""
    alterations = ["small-segments", "volatile-disk", "no-directory-sync"]
    with pytest.raises(SbpError, match="the log of range server 1 is missing"):
        survive_kills(tmp_path, history, rng, alterations)


def test_a_client_repeats_appends_of_unknown_outcome(tmp_path, history, rng):
    with proxied_cluster(tmp_path) as proxied:
        stream_ids = new_streams(proxied.endpoint)
        proxy = proxied.to_range_server
        with Workload(
            *(proxied.endpoint, history, rng, stream_ids), changes=False, retry_unknown=True
        ) as workload:
            for _ in range(5):
                before = proxy.injected["Reset"]
                proxy.inject(Reset(0), TO_CLIENT, Opcode.APPEND, count=1)
                while proxy.injected["Reset"] == before:
                    workload.wait_for_progress()
        list_streams(proxied.endpoint, history, stream_ids)
    assert "duplicated" in found(history)


@pytest.mark.parametrize("alterations", [[], ["no-dedupe"]], ids=["unbroken", "broken"])
def test_numbered_appends_are_appended_as_often_as_they_come(tmp_path, history, rng, alterations):
    with proxied_cluster(tmp_path, alterations) as proxied:
        stream_ids = new_streams(proxied.endpoint)
        proxy = proxied.to_range_server
        with Workload(
            *(proxied.endpoint, history, rng, stream_ids), changes=False, writers=2, numbering=2
        ) as workload:
            for _ in range(5):
                before = proxy.injected["Reset"]
                proxy.inject(Reset(0), TO_CLIENT, Opcode.APPEND, count=1)
                while proxy.injected["Reset"] == before:
                    workload.wait_for_progress()
            workload.wait_for_progress()
        list_streams(proxied.endpoint, history, stream_ids)
    assert found(history) == ({"duplicated"} if alterations else set())


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


def test_unsynced_records_are_read(tmp_path, history):
    """The server stands still before it syncs an append; a reader sees the record; the kill."""
    alterations = ["volatile-disk", "early-reads"]
    with FaultCluster(tmp_path, alterations=alterations) as cluster:
        stream_ids = new_streams(cluster.endpoint, 1)
        driver = BlockingDriver(cluster.endpoint, retry=RetryPolicy(budget_ms=0))
        with ThreadPoolExecutor() as threads:
            appended = threads.submit(send_one, driver, history, stream_ids[0])
            while not any(each.answer.get("records") for each in history.operations()):
                list_streams(cluster.endpoint, history, stream_ids)
            cluster.kill()
            assert isinstance(appended.exception(), SbpError)
        driver.close()
        cluster.start()
        list_streams(cluster.endpoint, history, stream_ids)
    assert found(history) == {"vanished"}


def append_one(endpoint, history, stream_id, name="record", size=4_000):
    """One journalled append."""
    driver = BlockingDriver(endpoint)
    send_one(driver, history, stream_id, name, size)
    driver.close()


def send_one(driver, history, stream_id, name="record", size=4_000):
    number = history.invoke("writer", "append", stream=stream_id, records=[name])
    batch = rows_batch([encode_record(name, size)], stream_id)
    (outcome,) = driver.do("append", [AppendItem(stream_id, batch)])
    history.ok(number, base_offset=outcome.base_offset)


@pytest.mark.parametrize(
    ("alterations", "kind"),
    [([], "unreadable"), (["unverified-reads"], "invented")],
    ids=["unbroken", "broken"],
)
def test_damage_is_served(tmp_path, history, alterations, kind):
    with FaultCluster(tmp_path, alterations=alterations) as cluster:
        (stream_id,) = new_streams(cluster.endpoint, 1)
        append_one(cluster.endpoint, history, stream_id)
        cluster.stop()
        (segment,) = cluster.log_folder.glob("*.log")
        data = bytearray(segment.read_bytes())
        data[data.index(encode_record("record", 4_000)) + 2_000] ^= 1
        segment.write_bytes(data)
        cluster.start()
        list_streams(cluster.endpoint, history, [stream_id])
    assert kind in found(history)
    assert ("invented" in found(history)) == bool(alterations)


@pytest.mark.parametrize("alterations", [[], ["uncut-tail"]], ids=["unbroken", "broken"])
def test_a_torn_tail_stays(tmp_path, history, alterations):
    with FaultCluster(tmp_path, alterations=alterations) as cluster:
        (stream_id,) = new_streams(cluster.endpoint, 1)
        append_one(cluster.endpoint, history, stream_id, "before")
        cluster.kill()
        with max(cluster.log_folder.glob("*.log")).open("ab") as segment:
            segment.write(b"torn")
        cluster.start()
        append_one(cluster.endpoint, history, stream_id, "after")
        cluster.kill()
        assert is_noticed(cluster, history, [stream_id]) == bool(alterations)


@pytest.mark.parametrize("alterations", [[], ["forgotten-seals"]], ids=["unbroken", "broken"])
def test_a_seal_is_forgotten(tmp_path, history, alterations):
    """A writer that does not know of the seal asks the server of the sealed range again."""
    with FaultCluster(tmp_path, alterations=alterations, range_servers=2) as cluster:
        with Client(cluster.endpoint) as client:
            stream_id, other, _ = (each.stream_id for each in client.create_streams(3 * [NEW]))
            append_one(cluster.endpoint, history, stream_id, "before")
            client.delete_streams([other])  # the only one of its server, which gets the next range
            client.seal_streams([stream_id])
            sealed, opened = client.list_ranges([stream_id])[stream_id]
            assert sealed.servers != opened.servers
        cluster.kill()
        cluster.start()
        late = history.invoke("stale writer", "append", stream=stream_id, records=["late"])
        try:
            base_offset = asyncio.run(append_to_range(sealed, "late"))
        except RangeSealedError as error:
            history.fail(late, error)
        else:
            history.ok(late, base_offset=base_offset)
        append_one(cluster.endpoint, history, stream_id, "after")
        list_streams(cluster.endpoint, history, [stream_id])
    assert found(history) == ({"lost"} if alterations else set())


async def append_to_range(placed, name):
    """Append a record to this range without asking the placement driver; return its offset."""
    batch = rows_batch([encode_record(name, 40)], placed.stream_id)
    where = StreamRange(stream_id=placed.stream_id, range_index=placed.range_index)
    info = AppendInfo(where, 0, len(batch), placed.stream_id)
    async with RawClient.at(placed.servers[0]) as client:
        (answer,) = await client.ask(Opcode.APPEND, AppendRequest(0, (info,)), [batch])
    (result,) = answer.append_responses
    check_status(result.status)
    return result.base_offset


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
            cluster.freeze()
            loop_disk.cut_power(DROP_JOURNAL)
            cluster.kill()
        loop_disk.unmount()
        loop_disk.mount()
        assert is_noticed(cluster, history, stream_ids)


def log_bytes(cluster):
    return sum(segment.stat().st_size for segment in cluster.log_folder.glob("*.log"))


@pytest.mark.parametrize("alteration", ["repeated-sync", "trusted-cache"])
def test_a_failed_sync_that_changes_nothing(tmp_path, rng, alteration):
    """The first goes on where the server should end, the second when it is started again.

    Now and then the system forgets what it could not write, or stops writing to the disk at all:
    then there is nothing to trust, and another disk is filled.
    """
    for number in range(FULL_DISKS_MAX):
        folder = tmp_path / str(number)
        with ExitStack() as mounted:
            with skipping_where_nothing_can_be_mounted():
                memory, disk = mounted.enter_context(full_disk(folder))
            data_dir = disk.folder / "data"
            with FaultCluster(folder, data_dir=data_dir, alterations=[alteration]) as cluster:
                stream_ids = new_streams(cluster.endpoint)
                history = History(folder / "history.jsonl")
                with Workload(
                    *(cluster.endpoint, history, rng, stream_ids),
                    changes=False,
                    record_bytes_max=RECORD_BYTES,
                ) as workload:
                    fill(cluster, workload)
                    memory.resize(LARGE_BYTES)
                    if alteration == "trusted-cache":
                        cluster.start()
                        workload.wait_for_progress()
                        cluster.kill()
                disk.unmount()
                disk.mount()
                if is_noticed(cluster, history, stream_ids):
                    return
                assert CUT in cluster.log or READ_ONLY in cluster.log
    raise AssertionError(f"{FULL_DISKS_MAX} disks failed, and nothing was to be trusted")


def fill(cluster, workload):
    """Append more than there is memory for, and less than the file system seems to have."""
    while cluster.is_alive and log_bytes(cluster) < 3 * SMALL_BYTES // 2:
        workload.wait_for_progress(lambda: cluster.is_alive)
    cluster.end()
