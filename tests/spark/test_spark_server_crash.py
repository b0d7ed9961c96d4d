"""`sbp serve` is killed and restarted, in the middle of queries that read and write."""

from __future__ import annotations

import os

import pytest

from tests.support.clock import until
from tests.support.spark import append_values, numbered
from tests.support.spark_clusters import COMMITTER, PLANNER, end_python_workers, python_workers


@pytest.fixture
def own_sbp(spark):
    """Spark on a cluster of this test's own, and that cluster."""
    from sbp_core.cluster import LocalCluster
    from tests.support.spark import Sbp

    with LocalCluster() as cluster:
        yield Sbp(spark, cluster.endpoint), cluster


def test_queries_outlive_the_server(own_sbp, tmp_path):
    from sbp_core.client import Client, StreamSpec

    sbp, cluster = own_sbp
    with Client(cluster.endpoint) as client:
        client.create_streams([StreamSpec(name) for name in ("origin", "middle", "end")])
        queries = [
            sbp.start_copy(
                sbp.load_stream(source, maxRecordsPerTrigger="500").select("value"),
                sink,
                tmp_path / source,
                processingTime="0 seconds",
            )
            for source, sink in (("origin", "middle"), ("middle", "end"))
        ]
        # A query that finds no server when it starts ends; only one that has worked waits.
        append_values(client, "origin", numbered(0, 100))
        for query in queries:
            query.processAllAvailable()
        for crash in range(3):
            for start in range(max(100, 1_000 * crash), 1_000 * (crash + 1), 100):
                append_values(client, "origin", numbered(start, start + 100))
            if crash < 2:
                cluster.kill()
                cluster.start()
        queries[0].processAllAvailable()
        queries[1].processAllAvailable()
        assert [query.exception() for query in queries] == [None, None]
        for query in queries:
            query.stop()
        # At least once: an append whose answer was lost with the server may be stored twice.
        assert sbp.values("origin") == numbered(0, 3_000)
        assert set(sbp.values("end")) == set(sbp.values("middle")) == set(numbered(0, 3_000))
        assert without_repeats(sbp.values("middle")) == numbered(0, 3_000)


def test_a_process_that_is_new_waits_for_the_server_too(own_sbp, tmp_path):
    """Spark ends idle workers after a minute, so a new worker plans and commits."""
    from sbp_core.client import Client, StreamSpec

    sbp, cluster = own_sbp
    spark = sbp.spark
    texts = tmp_path / "texts"
    texts.mkdir()
    with Client(cluster.endpoint) as client:
        client.create_streams([StreamSpec("end")])
    (texts / "first").write_text("1", encoding="utf-8")
    rows = spark.readStream.text(str(texts)).selectExpr("cast(value as binary) as value")
    query = sbp.start_copy(rows, "end", tmp_path / "checkpoint", processingTime="0 seconds")
    query.processAllAvailable()
    cluster.kill()
    assert end_python_workers(PLANNER)
    assert end_python_workers(COMMITTER)
    tracker = spark.sparkContext.statusTracker()
    until(lambda: not tracker.getActiveStageIds())  # Spark takes note of their ends a little later
    (texts / "second").write_text("2", encoding="utf-8")
    until(lambda: python_workers(os.getpid(), PLANNER) or query.exception())
    cluster.start()
    query.processAllAvailable()
    query.stop()
    assert sbp.values("end") == [b"1", b"2"]


def without_repeats(values):
    return list(dict.fromkeys(values))
