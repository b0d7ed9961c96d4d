"""Power cuts of a real file system: acknowledged records are on the disk. Needs root.

The file system is shut down under the server as a power cut would: unsynced data are lost.
The server is stopped before that: else a sync that is under way could report success though
nothing of it is on the disk, which cannot happen in a power cut.
"""

import time
from contextlib import closing

import pytest

from tests.support.faults.checker import assert_sound, chosen
from tests.support.faults.cluster import END_SECONDS, FaultCluster
from tests.support.faults.workload import Workload, list_streams, new_streams
from tests.support.lake import catalog_in, has_landed, land_until
from tests.support.real_disks import DROP_JOURNAL, KEEP_JOURNAL
from tests.support.spark import append_values, numbered

LIFE_SECONDS_MAX = 0.3
JOURNALS = pytest.mark.parametrize(
    "journal", [DROP_JOURNAL, KEEP_JOURNAL], ids=["all is lost", "data is"]
)


@JOURNALS
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


@JOURNALS
def test_a_table_has_what_its_catalog_says(loop_disk, cluster, client, new_streams, journal):
    (name,) = new_streams(1)
    for landed in (100, 200):
        append_values(client, name, numbered(landed - 100, landed))
        with closing(catalog_in(loop_disk.folder)) as catalog:
            land_until(cluster, catalog, name, has_landed(landed))
        loop_disk.cut_power(journal)
        loop_disk.unmount()
        loop_disk.mount()
        with closing(catalog_in(loop_disk.folder)) as catalog:
            rows = catalog.load_table(f"lake.{name}").scan().to_arrow()
            assert rows.sort_by("_offset")["value"].to_pylist() == numbered(0, landed)


def wait_for_an_unanswered_append(history):
    """Wait until a client has sent a request to the stopped server."""
    deadline = time.monotonic() + END_SECONDS
    while not any(not each.answer for each in chosen(history.operations(), "append", "unknown")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
