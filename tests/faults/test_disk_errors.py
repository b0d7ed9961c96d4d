"""Writes and syncs that fail: the server acknowledges nothing more, logs the reason, and ends.

After a failed sync the content of the disk is unknown, so it never goes on; restarted it serves
all that was acknowledged. Only a write that finds the disk full waits for space.
"""

import contextlib
import os
import shutil
import subprocess
import time

import pytest

from sbp_core.client import AppendItem, Client, RetryPolicy, StreamSpec
from sbp_core.errors import DiskFullError
from tests.support.cluster import rows_batch
from tests.support.faults.checker import assert_sound, chosen
from tests.support.faults.cluster import END_SECONDS, FaultCluster
from tests.support.faults.workload import Workload, list_streams, new_streams
from tests.support.real_disks import LARGE_BYTES

FILE_BYTES_MAX = 300_000
RECORD_BYTES = 200_000
FLOOR_BYTES = 4 << 20
SMALL_FLOOR = {"range_server": {"disk_free_floor_bytes": FLOOR_BYTES}}


@pytest.fixture
def strace():
    """The words that put strace before a command; skips where it is missing or not allowed."""
    path = shutil.which("strace")
    if path is None:
        pytest.skip("strace is not installed")
    done = subprocess.run([path, "-o", os.devnull, "true"], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"strace cannot trace here: {done.stderr.decode().strip()}")
    return (path, "-f", "--seccomp-bpf", "-qq", "-o", os.devnull)


def run_until_it_fails(cluster, history, rng, wrapper):
    """Serve under `wrapper` until the disk fails; then again without it."""
    with cluster:
        stream_ids = new_streams(cluster.endpoint)
        with Workload(cluster.endpoint, history, rng, stream_ids) as workload:
            workload.wait_for_progress()
            cluster.stop()
            cluster.wrapper = wrapper
            assert cluster.run_to_end() == 1
            cluster.wrapper = ()
            cluster.start()
            workload.wait_for_progress()
        list_streams(cluster.endpoint, history, stream_ids)
    assert_sound(history.operations())


@pytest.mark.parametrize(
    ("calls", "code", "then"),
    [
        ("fdatasync", "EIO", ""),
        ("fdatasync", "EIO", "+"),
    ],
    ids=["one sync", "all syncs from one on"],
)
def test_system_calls_that_fail(tmp_path, history, rng, strace, calls, code, then):
    """The calls are counted by thread, so it is always one of the log's."""
    cluster = FaultCluster(tmp_path)
    fault = f"inject={calls}:error={code}:when={rng.randint(10, 30)}{then}"
    wrapper = (*strace, "-e", f"trace={calls}", "-e", fault)
    run_until_it_fails(cluster, history, rng, wrapper)
    assert code in cluster.log


@pytest.mark.parametrize("calls", ["fdatasync", "pwrite64"])
def test_metadata_that_cannot_be_written(tmp_path, history, rng, strace, calls):
    """Seals and trims go through the placement driver, whose log is this file."""
    cluster = FaultCluster(tmp_path)
    metadata_log = cluster.data_dir / "placement-driver" / "metadata.sqlite-wal"
    fault = f"inject={calls}:error=EIO:when={rng.randint(1, 5)}+"
    wrapper = (*strace, "-P", str(metadata_log), "-e", f"trace={calls}", "-e", fault)
    run_until_it_fails(cluster, history, rng, wrapper)
    assert "metadata store failed: disk I/O error" in cluster.log


def test_a_file_that_must_not_grow(tmp_path, history, rng):
    """RLIMIT_FSIZE: the write that crosses the limit is short, the next one fails."""
    if shutil.which("prlimit") is None:
        pytest.skip("prlimit is not installed")
    wrapper = ("prlimit", f"--fsize={FILE_BYTES_MAX}")
    cluster = FaultCluster(tmp_path, alterations=[])
    run_until_it_fails(cluster, history, rng, wrapper)
    assert "EFBIG" in cluster.log


def refusals(history):
    """The appends that were refused because the disk was full."""
    failed = chosen(history.operations(), "append", "fail")
    return [each for each in failed if "RS_DISK_FULL" in each.answer["error"]]


def wait_until(is_so):
    deadline = time.monotonic() + END_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_disk_that_gets_full(tmp_path, small_memory, history, rng):
    """Appends are refused and reads go on; once space is free, appends work without a restart."""
    with FaultCluster(
        tmp_path, data_dir=small_memory.folder / "data", alterations=[], settings=SMALL_FLOOR
    ) as cluster:
        stream_ids = new_streams(cluster.endpoint)
        with Workload(
            *(cluster.endpoint, history, rng, stream_ids), record_bytes_max=RECORD_BYTES
        ) as workload:
            wait_until(lambda: refusals(history))
            read_count = len(chosen(history.operations(), "read", "ok"))
            wait_until(lambda: len(chosen(history.operations(), "read", "ok")) > read_count)
            assert cluster.is_alive
            small_memory.resize(LARGE_BYTES)
            workload.wait_for_progress()
        list_streams(cluster.endpoint, history, stream_ids)
    assert_sound(history.operations())


def test_a_disk_that_others_fill_to_the_last_byte(tmp_path, small_memory, history, rng):
    """The log waits; killed and started on the full disk, the server serves; nothing is lost."""
    folder = small_memory.folder
    with FaultCluster(
        tmp_path, data_dir=folder / "data", alterations=[], settings=SMALL_FLOOR
    ) as cluster:
        stream_ids = new_streams(cluster.endpoint)
        with Workload(
            *(cluster.endpoint, history, rng, stream_ids), record_bytes_max=RECORD_BYTES
        ) as workload:
            workload.wait_for_progress()
            with (folder / "others").open("wb") as others, contextlib.suppress(OSError):
                while True:
                    others.write(bytes(1 << 20))
            wait_until(lambda: "log waits" in cluster.log or refusals(history))
            cluster.kill()
            history.fault("killed while the disk was full")
            cluster.start()
            read_count = len(chosen(history.operations(), "read", "ok"))
            wait_until(lambda: len(chosen(history.operations(), "read", "ok")) > read_count)
            (folder / "others").unlink()
            small_memory.resize(LARGE_BYTES)
            workload.wait_for_progress()
        list_streams(cluster.endpoint, history, stream_ids)
    assert_sound(history.operations())


def append_for_ever(client, stream_id):
    while True:
        client.append([AppendItem(stream_id, rows_batch([bytes(RECORD_BYTES)], stream_id))])


@pytest.mark.parametrize("action", ["delete", "trim"])
def test_the_advice_for_a_full_disk_works(tmp_path, small_memory, action):
    """Others fill the disk to the last byte; a stream is removed, and appends go on."""
    day_ms = 86_400_000
    settings = {
        "range_server": {
            "disk_free_floor_bytes": FLOOR_BYTES,
            "retention_check_interval_ms": day_ms,
        }
    }
    folder = small_memory.folder
    with FaultCluster(
        tmp_path, data_dir=folder / "data", alterations=[], settings=settings
    ) as cluster:
        with Client(cluster.endpoint, retry=RetryPolicy(budget_ms=0)) as client:
            kept, big = (
                each.stream_id for each in client.create_streams([StreamSpec("k"), StreamSpec("b")])
            )
            client.append([AppendItem(kept, rows_batch([b"first"], kept))])
            with pytest.raises(DiskFullError, match="trim and delete streams"):
                append_for_ever(client, big)
            (bounds,) = client.stream_bounds([big])
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError), (folder / f"others.{size}").open("wb", 0) as file:
                while True:
                    file.write(os.urandom(size))
        assert shutil.disk_usage(folder).free == 0
        with Client(cluster.endpoint) as client:
            if action == "delete":
                client.delete_streams(["b"])
            else:
                client.trim_streams({big: bounds.next_offset})
            client.append([AppendItem(kept, rows_batch([b"last"], kept))])
            (bounds,) = client.stream_bounds([kept])
            assert bounds.next_offset == 2
        assert cluster.is_alive
