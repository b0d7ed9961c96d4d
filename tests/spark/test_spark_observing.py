"""Observing running queries: their lag, and the task of a log line."""

from __future__ import annotations

import json

import pytest
from prometheus_client import CollectorRegistry

from sbp_spark.lag import LagListener, lag
from sbp_spark.query_metrics import QueryMetrics
from tests.support.clock import until
from tests.support.spark import append_values, numbered


@pytest.fixture
def listen(spark):
    """Adds listeners to the session, and removes them at the end."""
    added = []

    def add(listener):
        spark.streams.addListener(listener)
        added.append(listener)

    yield add
    for listener in added:
        spark.streams.removeListener(listener)


def test_a_listener_reports_the_lag_of_each_micro_batch(
    sbp, new_streams, client, checkpoint, listen
):
    stream, copy = new_streams(2)
    append_values(client, stream, numbered(0, 25))
    by_progress, by_servers = [], []
    listen(LagListener(on_lag=lambda shown, found: by_progress.append((shown["id"], found))))
    listen(
        LagListener(sbp.endpoint, on_lag=lambda shown, found: by_servers.append((shown.id, found)))
    )
    frame = sbp.load_stream(stream, maxRecordsPerTrigger="10").select("value")
    query = sbp.copy(frame, copy, checkpoint)
    until(lambda: {len(each) for each in reports(query, by_progress, by_servers)} == {3})
    progress, servers = reports(query, by_progress, by_servers)
    for found in (progress, servers):
        assert [(each.next_offset, each.record_count) for (each,) in found] == [
            (10, 15),
            (20, 5),
            (25, 0),
        ]
    ((first,), *_, (last,)) = servers
    assert (first.stream, first.age_ms >= 0, first.size_bytes > 0) == (stream, True, True)
    assert (last.age_ms, last.size_bytes) == (0, 0)
    assert lag(query.lastProgress) == progress[-1]
    assert lag(json.loads(query.lastProgress.json), sbp.endpoint) == servers[-1]


def reports(query, *lists):
    return [[found for query_id, found in each if str(query_id) == str(query.id)] for each in lists]


@pytest.mark.spark_feature("listeners")
def test_a_registry_shows_running_queries(sbp, new_streams, client, checkpoint, listen):
    (stream,) = new_streams(1)
    append_values(client, stream, numbered(0, 25))
    metrics, registry = QueryMetrics(sbp.endpoint), CollectorRegistry()
    listen(metrics)
    registry.register(metrics)
    writer = sbp.load_stream(stream).writeStream.format("noop").queryName(f"of-{stream}")
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    labels = {"query": query.name}

    def value(name, **more):
        return registry.get_sample_value(f"sbp_query_{name}", {**labels, **more})

    try:
        until(lambda: value("input_rows_total") == 25)
        until(lambda: value("lag_records", stream=stream) == 0)
        assert value("batch_duration_seconds") > 0
        assert value("processed_rows_per_second") >= 0
        assert value("lag_seconds", stream=stream) == 0
    finally:
        query.stop()
    until(lambda: value("batch_id") is None)


def test_log_lines_of_a_task_name_it(spark, sbp, new_streams, client):
    (stream,) = new_streams(1)
    append_values(client, stream, numbered(0, 10))
    (info,) = client.describe_streams([stream])
    # Spark sets these for the tasks of a micro-batch. It collects no log lines of streaming reads.
    properties = {"sql.streaming.queryId": "q-1", "streaming.sql.batchId": "7"}
    for key, value in properties.items():
        spark.sparkContext.setLocalProperty(key, value)
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    try:
        rows = sbp.load(stream, failOnDataLoss="false")
        assert rows.count() == 10
        client.trim_streams({info.stream_id: 4})
        assert rows.count() == 6
        logs = spark.tvf.python_worker_logs().where("logger = 'sbp_spark'").collect()
    finally:
        spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")
        for key in properties:
            spark.sparkContext.setLocalProperty(key, None)
    (line,) = [each for each in logs if f"({stream})" in each.msg]
    assert line.msg.startswith("[query q-1 batch 7 partition 0] data loss: 4 offsets")
    ids = ("query_id", "batch_id", "partition_id")
    assert [line.context[each] for each in ids] == ["q-1", "7", "0"]
