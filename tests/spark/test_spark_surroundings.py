"""One program in each of the surroundings that Spark runs Python in.

Each has a process of its own. It reads and writes batches and micro-batches, and a micro-batch that
is done twice is stored once.
"""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.support.programs import program
from tests.support.programs.surroundings import ROWS
from tests.support.spark_clusters import STANDALONE_CONF, StandaloneSpark

pytestmark = pytest.mark.deployments

SECONDS = 600


@pytest.fixture
def run(cluster, new_streams, tmp_path):
    """Runs the program with a master and settings; returns what its workers are."""
    origin, copy = new_streams(2)

    def start(master, conf):
        order = {"master": master, "conf": conf, "origin": origin, "copy": copy}
        order |= {"endpoint": cluster.endpoint, "folder": str(tmp_path)}
        done = subprocess.run(
            program("surroundings", json.dumps(order)),
            stdout=subprocess.PIPE,
            text=True,
            timeout=SECONDS,
            check=True,
        )
        found = json.loads(done.stdout.splitlines()[-1])
        expected = [str(number) for number in range(ROWS)]
        assert sorted(found["read"], key=int) == expected
        assert sorted(found["copied"], key=int) == expected
        return found["workers"]

    return start


@pytest.mark.spark_feature("`local-cluster[n,cores,memory]`")
@pytest.mark.spark_feature("`spark.python.worker.reuse=false`")
@pytest.mark.spark_feature("`spark.python.unix.domain.socket.enabled`, `true` and `false`")
@pytest.mark.timeout(SECONDS)
def test_a_cluster_of_processes_whose_workers_are_not_kept(run):
    conf = {"spark.python.worker.reuse": "false", "spark.python.unix.domain.socket.enabled": "true"}
    workers = run("local-cluster[2,1,1024]", conf)
    assert workers == {"program": "pyspark.daemon", "are kept": False, "by Unix sockets": True}


@pytest.mark.spark_feature(
    "a standalone master with several executors, dynamic allocation, speculation"
)
@pytest.mark.spark_feature("`spark.python.use.daemon=false`")
@pytest.mark.spark_feature("`spark.python.unix.domain.socket.enabled`, `true` and `false`")
@pytest.mark.timeout(SECONDS)
def test_a_standalone_master_that_speculates_allocates_executors_and_forks_no_workers(
    run, tmp_path
):
    conf = {
        **STANDALONE_CONF,
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.initialExecutors": "1",
        "spark.dynamicAllocation.maxExecutors": "2",
        "spark.python.use.daemon": "false",
        "spark.python.unix.domain.socket.enabled": "false",
    }
    with StandaloneSpark(tmp_path, failpoints="") as spark:
        workers = run(spark.master, conf)
    assert workers == {"program": "pyspark.worker", "are kept": False, "by Unix sockets": False}
