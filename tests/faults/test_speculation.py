"""Speculation: of a task that runs twice at a time, one copy loses, late, and changes nothing."""

import re

import pytest
from fault_cluster import FaultCluster
from spark_streams import append_values, numbered
from standalone_spark import CONF, StandaloneSpark
from test_sink_kill import AVAILABLE_NOW, Copy, find_anomalies

from sbp_core.client import Client

SLEEP_MS = 2_500
"""Longer than the copy of a task takes, shorter than Spark lets the loser live."""
COUNT = 2_000


@pytest.mark.timeout(600)
def test_losers_that_end_after_the_commit(tmp_path, rng):
    """All tasks on one of two hosts sleep before they append; their copies on the other win."""
    failpoints = f"sink.before_stage=sleep({SLEEP_MS})"
    with (
        FaultCluster(tmp_path, alterations=(), range_servers=2) as cluster,
        StandaloneSpark(tmp_path, failpoints=failpoints) as spark,
    ):
        copy = Copy(tmp_path, cluster)
        with Client(cluster.endpoint) as client:
            append_values(client, "numbers", numbered(0, COUNT))
        order = {"master": spark.master, "conf": CONF, "trigger": AVAILABLE_NOW}
        exit_code = copy.begin(rng, partitions=4, **order).wait_for_end()
        assert exit_code == 0, copy.log
        contents = copy.contents()
        assert sleepers(spark) > 0, spark.executor_logs
    assert len(contents["numbers"]) == COUNT
    assert find_anomalies(contents, is_ordered=False) == set()


def sleepers(spark):
    return len(
        re.findall(r"^failpoint sink.before_stage: sleep", spark.executor_logs, re.MULTILINE)
    )
