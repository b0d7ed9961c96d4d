"""A sync that really fails, with the kernel's page cache around it. Needs root.

The file system lies in a folder in memory that gets full, so that what the server wrote cannot be
written back: its sync fails once. A second one would succeed, and the cache still shows what never
got to the disk; a server that believed either would lose what it acknowledges next.
"""

import re

import pytest
from checker import assert_sound, chosen
from fault_cluster import FaultCluster
from real_disks import LoopDisk, SmallMemory, skip_unless_mounting
from workload import Workload, list_streams, new_streams

SMALL_BYTES = 24 << 20
LARGE_BYTES = 256 << 20


@pytest.fixture
def memory(tmp_path):
    skip_unless_mounting(tmp_path)
    mounted = SmallMemory(tmp_path / "memory", SMALL_BYTES)
    yield mounted
    mounted.unmount()


@pytest.fixture
def disk(memory, tmp_path):
    mounted = LoopDisk(tmp_path / "disk", memory.folder / "disk.img", LARGE_BYTES)
    yield mounted
    mounted.unmount()


@pytest.mark.parametrize("is_mounted_anew", [False, True], ids=["cache kept", "mounted anew"])
def test_a_sync_that_fails(tmp_path, memory, disk, history, rng, is_mounted_anew):
    with FaultCluster(tmp_path, data_dir=disk.folder / "data", alterations=[]) as cluster:
        stream_ids = new_streams(cluster.endpoint)
        with Workload(
            *(cluster.endpoint, history, rng, stream_ids),
            changes=False,
            record_bytes_max=200_000,
        ) as workload:
            assert cluster.wait_for_end() == 1
            history.fault("the sync failed")
            memory.resize(LARGE_BYTES)
            if is_mounted_anew:
                disk.unmount()
                disk.mount()
            cluster.start()
            workload.wait_for_progress()
        cluster.stop()
        disk.unmount()
        disk.mount()  # what only the cache shows is gone now
        cluster.start()
        list_streams(cluster.endpoint, history, stream_ids)
    operations = history.operations()
    assert_sound(operations)
    assert re.search(r"writing .*\.log failed: .*\((EIO|ENOSPC)\)", cluster.log)
    assert len(chosen(operations, "append", "unknown")) > 0
