"""One program in each of the surroundings that Spark runs Python in.

Each has a process of its own. It reads and writes batches and micro-batches, and a micro-batch that
is done twice is stored once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from standalone_spark import CONF, StandaloneSpark
from surroundings_main import ROWS

MAIN = Path(__file__).parents[1] / "support" / "surroundings_main.py"
SECONDS = 600


@pytest.fixture
def run(cluster, new_streams, tmp_path):
    """Runs the program with a master and settings; returns the program of its workers."""
    origin, copy = new_streams(2)

    def start(master, conf):
        order = {"master": master, "conf": conf, "origin": origin, "copy": copy}
        order |= {"endpoint": cluster.endpoint, "folder": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, MAIN, json.dumps(order)],
            stdout=subprocess.PIPE,
            text=True,
            timeout=SECONDS,
            check=True,
        )
        found = json.loads(done.stdout.splitlines()[-1])
        expected = [str(number) for number in range(ROWS)]
        assert sorted(found["read"], key=int) == expected
        assert sorted(found["copied"], key=int) == expected
        return found["program"]

    return start


@pytest.mark.timeout(SECONDS)
def test_workers_that_no_daemon_forks(run):
    conf = {"spark.python.use.daemon": "false"}
    assert run("local[2]", conf) == "pyspark.worker"


@pytest.mark.timeout(SECONDS)
def test_a_standalone_master_that_speculates_and_allocates_executors(run, tmp_path):
    conf = {
        **CONF,
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.initialExecutors": "1",
        "spark.dynamicAllocation.maxExecutors": "2",
    }
    with StandaloneSpark(tmp_path, failpoints="") as spark:
        assert run(spark.master, conf) == "pyspark.daemon"
