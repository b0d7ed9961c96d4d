"""Metrics of queries for Prometheus, from their progress alone."""

from __future__ import annotations

import json
from types import SimpleNamespace
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from pyspark.sql.streaming.listener import StreamingQueryProgress

from sbp_spark.query_metrics import QueryMetrics

QUERY = UUID(int=7)
NAMED = {"query": "orders"}


def offset(**nexts):
    return json.dumps(
        {"streams": " ".join(f"{k[1:]}={v}@1" for k, v in nexts.items()), "version": 2}
    )


def event(*, rows=20, name="orders", end=None, latest=None):
    source = {
        "description": "sbp",
        "startOffset": None,
        "endOffset": end,
        "latestOffset": latest,
        "numInputRows": rows,
        "inputRowsPerSecond": 2.5,
        "processedRowsPerSecond": 40.0,
    }
    sink = {"description": "noop", "numOutputRows": rows}
    progress = StreamingQueryProgress.fromJson(
        {
            "id": str(QUERY),
            "runId": str(QUERY),
            "name": name,
            "timestamp": "",
            "batchId": 3,
            "batchDuration": 500,
            "stateOperators": [],
            "sources": [source],
            "sink": sink,
        }
    )
    return SimpleNamespace(progress=progress)


@pytest.fixture
def metrics():
    return QueryMetrics()


@pytest.fixture
def registry(metrics):
    made = CollectorRegistry(auto_describe=True)
    made.register(metrics)
    return made


def test_the_last_progress_and_the_sum_of_the_rows(metrics, registry):
    metrics.onQueryProgress(event(rows=20))
    metrics.onQueryProgress(event(rows=5))
    found = {
        each: registry.get_sample_value(f"sbp_query_{each}", NAMED)
        for each in (
            "input_rows_total",
            "batch_id",
            "batch_duration_seconds",
            "input_rows_per_second",
            "processed_rows_per_second",
        )
    }
    assert list(found.values()) == [25, 3, 0.5, 2.5, 40.0]


def test_the_lag_of_each_stream_as_far_as_it_is_known(metrics, registry):
    metrics.onQueryProgress(event(name=None, end=offset(s1=5, s2=9), latest=offset(s1=25, s2=9)))
    labels = {"query": str(QUERY), "stream": "1"}
    assert registry.get_sample_value("sbp_query_lag_records", labels) == 20
    assert registry.get_sample_value("sbp_query_lag_records", {**labels, "stream": "2"}) == 0
    assert registry.get_sample_value("sbp_query_stream_stalled", labels) == 0
    assert registry.get_sample_value("sbp_query_lag_seconds", labels) is None


def test_a_query_that_ended_has_no_metrics(metrics, registry):
    metrics.onQueryProgress(event(end=offset(s1=5), latest=offset(s1=6)))
    metrics.onQueryTerminated(SimpleNamespace(id=QUERY))
    assert "orders" not in generate_latest(registry).decode()
