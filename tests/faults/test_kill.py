"""kill -9 of `sbp serve` under load: acknowledged records are there once, at their offsets.

Writers, a reader, and a client that seals and trims go on through all deaths of the server. It
writes small segments and their indexes, and removes records by retention. Each death is at a random
time or at a failpoint. On the volatile disk it is a power cut to the log.
"""

import signal
import time
from collections import Counter

import pytest

from sbp_core.log.boundaries import read_start
from sbp_core.log.disk import OsDisk
from tests.support.appends import Committers, wait_until_published
from tests.support.faults.checker import assert_sound, chosen
from tests.support.faults.cluster import FaultCluster, failpoint_names
from tests.support.faults.workload import Workload, list_streams, new_short_stream, new_streams

LIFE_SECONDS_MAX = 0.3
EXTRA_KILLS_TO_DOUBLE = 8
EXTRA_KILLS_MAX = 64
"""While the server has not done all that it can yet, it lives longer and longer: a power cut takes
all indexes with it, which are written without a sync, and nothing is freed before they are back."""
KEPT_BYTES = 100_000
PATIENT_MS = 60_000
HITS = (1, 2, 3, 5, 10)
SELDOM = ("log.recovery.", "cleaner.", "start.")
"""Prefixes of failpoints that a server reaches once or rarely in its life."""

DISKS = pytest.mark.parametrize(
    "alterations",
    [
        pytest.param(["small-segments"], id="kernel's cache survives", marks=pytest.mark.faults),
        pytest.param(["small-segments", "volatile-disk"], id="nothing unsynced survives"),
    ],
)


@DISKS
def test_killed_at_any_time(tmp_path, history, rng, rounds, alterations):
    names = failpoint_names()
    kill_count = 0
    with FaultCluster(tmp_path, alterations=alterations) as cluster:
        stream_ids = some_streams(cluster, history)
        with Workload(
            *(cluster.endpoint, history, rng, stream_ids), writers=4, numbering=2
        ) as workload:
            while kill_count < rounds(3) or undone(cluster, history):
                extra_count = max(kill_count - rounds(3), 0)
                assert extra_count < EXTRA_KILLS_MAX, undone(cluster, history)
                longer = 2 ** (extra_count / EXTRA_KILLS_TO_DOUBLE)
                live(cluster, workload, longer * rng.uniform(0, LIFE_SECONDS_MAX))
                kill_count += 1
                armed = f"{rng.choice(names)}=kill:{rng.choice(HITS)}" if rng.random() < 0.5 else ""
                history.fault(f"kill {kill_count}, then {armed or 'nothing'}")
                if not cluster.start_armed(armed):
                    kill_count += 1
                    cluster.start()
            cluster.end()  # with a failpoint that is still armed it would end by itself
            assert cluster.run_armed(f"log.before_sync=kill:{rng.choice(HITS)}") == -signal.SIGKILL
            kill_count += 2
            cluster.start()
            workload.wait_for_progress()
        list_streams(cluster.endpoint, history, stream_ids)
    operations = history.operations()
    report(kill_count, cluster, operations)
    assert_sound(operations)
    assert cluster.fired_count > 0
    assert len(chosen(operations, "append", "unknown")) > 0, "no append was interrupted"


def some_streams(cluster, history):
    """Two endless streams; of one only the newest records are kept."""
    short = new_short_stream(cluster.endpoint, history, KEPT_BYTES)
    return [*new_streams(cluster.endpoint), short]


def undone(cluster, history):
    """The operations that the server has not completed yet."""
    operations = history.operations()
    is_done = {
        "segments removed": read_start(OsDisk(), cluster.log_folder) > 0,
        "indexes written": any(cluster.log_folder.glob("*.idx")),
        "ranges sealed": chosen(operations, "seal", "ok"),
        "streams trimmed": chosen(operations, "trim", "ok"),
    }
    return [what for what, is_seen in is_done.items() if not is_seen]


def report(kill_count, cluster, operations):
    """Print the figures of a run."""
    ends = Counter(each.end for each in chosen(operations, "append"))
    print(f"{kill_count} kills, {cluster.fired_count} of them by failpoints; appends: {dict(ends)}")


def live(cluster, workload, seconds):
    """Let the server work, and kill it unless a failpoint does."""
    workload.wait_for_progress(lambda: cluster.is_alive)
    deadline = time.monotonic() + seconds
    while cluster.is_alive and time.monotonic() < deadline:
        time.sleep(0.002)
    cluster.end()


def test_asked_to_end_under_load(tmp_path, history, rng, rounds):
    """It answers the accepted appends and refuses the rest: the outcome of each append is known."""
    with FaultCluster(tmp_path) as cluster:
        stream_ids = new_streams(cluster.endpoint)
        with Workload(
            *(cluster.endpoint, history, rng, stream_ids), timeout_ms=PATIENT_MS
        ) as workload:
            for number in range(rounds(2)):
                workload.wait_for_progress()
                history.fault(f"SIGTERM {number}")
                cluster.restart()
            workload.wait_for_progress()
        list_streams(cluster.endpoint, history, stream_ids)
    operations = history.operations()
    assert_sound(operations)
    assert chosen(operations, "append", "unknown") == []
    assert len(chosen(operations, "append", "fail")) > 0, "no append was refused"


@pytest.mark.faults
def test_killed_at_each_failpoint(tmp_path, history, rng):
    """Every failpoint of a single server is hit here, and is survived.

    Only a range with several replicas is fenced; test_rounds.py kills servers at any time then.
    """
    names = [name for name in failpoint_names() if not name.endswith("_fence")]
    of_commits = [name for name in names if name.startswith("txn.")]
    others = [name for name in names if name not in of_commits]
    assert others
    assert of_commits
    with FaultCluster(tmp_path) as cluster:
        stream_ids = some_streams(cluster, history)
        with Workload(cluster.endpoint, history, rng, stream_ids) as workload:
            cluster.kill()
            for name in others:
                kill_at(name, cluster, history, rng)
            cluster.start()
            # The committers' streams are never trimmed: the front of the log stays from here on.
            committed_to = new_streams(cluster.endpoint)
            with Committers(cluster.endpoint, history, rng, committed_to) as committers:
                cluster.kill()
                for name in of_commits:
                    kill_at(name, cluster, history, rng)
                cluster.start()
                committers.wait_for_progress()
            workload.wait_for_progress()
        wait_until_published(cluster.endpoint)
        list_streams(cluster.endpoint, history, [*stream_ids, *committed_to])
    assert_sound(history.operations())
    assert cluster.fired_names == [*others, *of_commits]


def kill_at(name, cluster, history, rng):
    """Start the server, and let it die at a failpoint."""
    history.fault(f"kill at {name}")
    cluster.leave_unfinished_writes()
    nth = 1 if name.startswith(SELDOM) else rng.randint(1, 3)
    assert cluster.run_armed(f"{name}=kill:{nth}") == -signal.SIGKILL
