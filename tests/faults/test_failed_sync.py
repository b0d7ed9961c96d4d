"""A sync that really fails, with the kernel's page cache around it. Needs root.

The file system is in a folder in memory that gets full, so that what the server wrote cannot be
written back: its sync fails once. A second one would succeed, and the cache still shows what never
got to the disk; a server that believed either would lose what it acknowledges next.
"""

import re

import pytest

from tests.support.faults.checker import assert_sound, chosen
from tests.support.faults.cluster import FaultCluster
from tests.support.faults.workload import Workload, list_streams, new_streams
from tests.support.real_disks import LARGE_BYTES


@pytest.mark.parametrize("is_remounted", [False, True], ids=["cache kept", "mounted again"])
def test_a_sync_that_fails(tmp_path, small_memory, full_disk, history, rng, is_remounted):
    with FaultCluster(tmp_path, data_dir=full_disk.folder / "data", alterations=[]) as cluster:
        stream_ids = new_streams(cluster.endpoint)
        with Workload(
            *(cluster.endpoint, history, rng, stream_ids),
            changes=False,
            record_bytes_max=200_000,
        ) as workload:
            assert cluster.wait_for_end() == 1
            history.fault("the sync failed")
            small_memory.resize(LARGE_BYTES)
            if is_remounted:
                full_disk.unmount()
                full_disk.mount()
            cluster.start()
            workload.wait_for_progress()
        cluster.stop()
        full_disk.unmount()
        full_disk.mount()  # drops pages that only the cache has
        cluster.start()
        list_streams(cluster.endpoint, history, stream_ids)
    operations = history.operations()
    assert_sound(operations)
    assert re.search(r"(writing|syncing) .*\.log failed: .*\((EIO|ENOSPC)\)", cluster.log)
    assert len(chosen(operations, "append", "unknown")) > 0
