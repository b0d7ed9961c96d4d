"""Speculation: if a task runs twice at a time, the late copy changes nothing."""

import random
import re

import pytest
from test_sink_kill import PATIENCE_SECONDS, Copy, find_anomalies

from tests.support.client import producing
from tests.support.clock import until
from tests.support.faults.cluster import FaultCluster
from tests.support.spark_clusters import STANDALONE_CONF, StandaloneSpark

SLEEP_MS = 5_000
"""Longer than the copy of a task takes, shorter than Spark lets the loser live."""
LATE_LOSER = re.compile(
    r"reason: another attempt succeeded.*^failpoint sink\.staged", re.DOTALL | re.MULTILINE
)


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_losers_that_end_after_the_commit(tmp_path, rng):
    """All tasks on one of two hosts sleep before they append; their copies on the other win."""
    failpoints = f"sink.before_stage=sleep({SLEEP_MS}),sink.staged=sleep(0):1+"
    with (
        FaultCluster(tmp_path, alterations=(), range_servers=2) as cluster,
        StandaloneSpark(tmp_path, failpoints=failpoints) as spark,
    ):
        copy = Copy(tmp_path, cluster)
        producer_rng = random.Random(rng.random())
        with producing(cluster.endpoint, producer_rng, ["numbers"], sealed=(), seal_share=0):
            life = copy.begin(rng, partitions=4, master=spark.master, conf=STANDALONE_CONF)
            until(lambda: is_over(life) or has_late_loser(spark), PATIENCE_SECONDS)
            assert not is_over(life), copy.log
            life.kill()
        copy.finish(rng)
        contents = copy.contents()
    assert contents["numbers"]
    assert find_anomalies(contents, is_ordered=False) == set()


def is_over(life):
    return not life.is_alive


def has_late_loser(spark):
    """Whether a task has appended and staged after Spark took the result of its copy."""
    return any(LATE_LOSER.search(log) for log in spark.executor_logs)
