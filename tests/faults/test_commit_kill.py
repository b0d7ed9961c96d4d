"""kill -9 while batches are staged and committed: committed ones are there once, others never.

Some batches are staged more than once, some streams are sealed between staging and commit, and some
batches are committed a second time.
"""

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from tests.support.appends import Committers, wait_until_published
from tests.support.faults.checker import assert_sound, chosen
from tests.support.faults.cluster import FaultCluster, failpoint_names
from tests.support.faults.workload import list_streams, new_streams
from tests.support.machines import PlacementDriverProcess, RangeServerProcess

LIFE_SECONDS_MAX = 0.3
STREAMS = 3
HITS = (1, 2, 3, 5)
DISKS = pytest.mark.parametrize(
    "alterations",
    [
        pytest.param(["small-segments"], id="kernel's cache survives", marks=pytest.mark.faults),
        pytest.param(["small-segments", "volatile-disk"], id="nothing unsynced survives"),
    ],
)


@DISKS
def test_all_killed_at_any_time(tmp_path, history, rng, rounds, alterations):
    """At a random time, or at a failpoint of what the servers do for transactions."""
    names = [name for name in failpoint_names() if name.startswith(("txn.", "log.before_"))]
    assert any(name.startswith("txn.") for name in names)
    with FaultCluster(tmp_path, alterations=alterations, range_servers=2) as cluster:
        stream_ids = new_streams(cluster.endpoint, STREAMS)
        with Committers(cluster.endpoint, history, rng, stream_ids) as committers:
            for kill_count in range(1, rounds(3) + 1):
                committers.wait_for_progress(lambda: cluster.is_alive)
                wait_for_death(cluster, rng.uniform(0, LIFE_SECONDS_MAX))
                armed = f"{rng.choice(names)}=kill:{rng.choice(HITS)}" if rng.random() < 0.5 else ""
                history.fault(f"kill {kill_count}, then {armed or 'nothing'}")
                if not cluster.start_armed(armed):
                    cluster.start()
            wait_for_death(cluster, 0)
            # It kills one range server, a process of its own, and `sbp serve` ends with an error.
            assert cluster.run_armed("txn.before_end=kill") == 1
            assert "ended with SIGKILL" in cluster.log
            cluster.start()
            committers.wait_for_progress()
        judge(cluster.endpoint, history, stream_ids, committers)
    assert cluster.fired_count > 0


def wait_for_death(cluster, seconds):
    """Let it live for so long, unless a failpoint ends it before."""
    deadline = time.monotonic() + seconds
    while cluster.is_alive and time.monotonic() < deadline:
        time.sleep(0.002)
    cluster.end()


def judge(endpoint, history, stream_ids, committers):
    """The promises hold, and all that was to happen did happen."""
    wait_until_published(endpoint)
    list_streams(endpoint, history, stream_ids)
    operations = history.operations()
    commits = Counter(each.end for each in chosen(operations, "commit"))
    print(
        f"commits: {dict(commits)}; {committers.loser_count} losers, {committers.replay_count}"
        f" replays, {committers.seal_count} seals between staging and commit"
    )
    assert_sound(operations)
    assert commits["ok"] > 0
    assert committers.loser_count > 0


def test_each_server_killed_by_itself(tmp_path, history, rng, rounds):
    """The placement driver dies between a decision and its publication, range servers around it."""
    asyncio.run(kill_by_turns(tmp_path, history, rng, rounds(3)))


async def kill_by_turns(folder, history, rng, kill_count):
    async with AsyncExitStack() as stack:
        driver = await stack.enter_async_context(PlacementDriverProcess(folder / "pd"))
        servers = [
            await stack.enter_async_context(
                RangeServerProcess(
                    folder / f"range-server-{number}", driver.endpoint, heartbeat_interval_ms=50
                )
            )
            for number in range(2)
        ]
        stream_ids = await asyncio.to_thread(new_streams, driver.endpoint, STREAMS)
        victims = {"placement driver": driver, "first": servers[0], "second": servers[1]}
        committers = Committers(driver.endpoint, history, rng, stream_ids)
        await asyncio.to_thread(committers.__enter__)
        try:
            for _ in range(kill_count):
                await asyncio.to_thread(committers.wait_for_progress)
                await asyncio.sleep(rng.uniform(0, LIFE_SECONDS_MAX))
                name = rng.choice([*victims])
                history.fault(f"kill the {name}")
                await victims[name].kill()
                await asyncio.sleep(rng.uniform(0, LIFE_SECONDS_MAX))
                await victims[name].start()
            await asyncio.to_thread(committers.wait_for_progress)
        finally:
            await asyncio.to_thread(committers.__exit__)
        await asyncio.to_thread(judge, driver.endpoint, history, stream_ids, committers)
