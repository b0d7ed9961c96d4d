"""Power cuts of a real file system: acknowledged records are on the disk. Needs root.

The file system is shut down under the server as a power cut would: unsynced data are lost.
The server is stopped before that: else a sync that is under way could report success though
nothing of it is on the disk, which cannot happen in a power cut.
"""

import time

import pytest

from tests.support.faults.checker import assert_sound, chosen
from tests.support.faults.cluster import END_SECONDS, FaultCluster
from tests.support.faults.workload import Workload, list_streams, new_streams
from tests.support.real_disks import DROP_JOURNAL, KEEP_JOURNAL

LIFE_SECONDS_MAX = 0.3


@pytest.mark.parametrize("journal", [DROP_JOURNAL, KEEP_JOURNAL], ids=["all is lost", "data is"])
def test_power_cuts(tmp_path, loop_disk, history, rng, rounds, journal):
    cuts = rounds(2)
    with FaultCluster(tmp_path, data_dir=loop_disk.folder / "data") as cluster:
        stream_ids = new_streams(cluster.endpoint)
        with Workload(cluster.endpoint, history, rng, stream_ids) as workload:
            for number in range(cuts):
                workload.wait_for_progress()
                time.sleep(rng.uniform(0, LIFE_SECONDS_MAX))
                history.fault(f"power cut {number}")
                cluster.freeze()
                loop_disk.cut_power(journal)
                wait_for_an_unanswered_append(history)
                cluster.kill()
                loop_disk.unmount()
                loop_disk.mount()
                cluster.start()
            workload.wait_for_progress()
        list_streams(cluster.endpoint, history, stream_ids)
    operations = history.operations()
    assert_sound(operations)
    assert len(chosen(operations, "fault")) == cuts
    assert len(chosen(operations, "append", "unknown")) > 0, "no append was interrupted"


def wait_for_an_unanswered_append(history):
    """Wait until a client has sent a request to the stopped server."""
    deadline = time.monotonic() + END_SECONDS
    while not any(not each.answer for each in chosen(history.operations(), "append", "unknown")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
