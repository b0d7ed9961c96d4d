"""Micro-batches that the driver reads with their plan, and those that it leaves to tasks."""

from __future__ import annotations

import json
import os
import signal
from contextlib import contextmanager

import pytest
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming.datasource import ReadAllAvailable

from sbp_core.client import AppendItem, Client, RetryPolicy, StreamSpec
from sbp_core.records import encode_rows
from sbp_spark import client_pool
from sbp_spark.logical_types import logical_arrow_schema
from sbp_spark.row_schema import source_schema
from sbp_spark.spark_internals import rows_with_plan
from sbp_spark.streaming.stream_reader import SbpStreamReader
from tests.support.spark import append_values, numbered, rows_of
from tests.support.warm import WarmCluster

COLUMNS = source_schema(include_headers=False)
SCHEMA = logical_arrow_schema(COLUMNS)


class Query:
    """A reader driven as by Spark's planner, in one process."""

    def __init__(self, endpoint, *streams, **options):
        given = {"endpoint": endpoint, "streams": ",".join(streams)} | options
        given = {"startingOffsets": "earliest"} | given
        self.reader = SbpStreamReader(given, COLUMNS)
        self.offset = self.reader.initialOffset()

    def plan(self):
        """The rows that come with the plan of the next micro-batch, None if none do."""
        end = self.reader.latestOffset(self.offset, ReadAllAvailable())
        self.partitions = self.reader.partitions(self.offset, end)
        start, self.offset = self.offset, json.loads(json.dumps(end))
        if not isinstance(self.reader, _SimpleStreamReaderWrapper):
            return None
        rows = values(self.reader.getCache(start, end))
        assert not isinstance(self.reader, _SimpleStreamReaderWrapper)
        return rows

    def read(self):
        """The rows that tasks would read."""
        return values(rows for each in self.partitions for rows in self.reader.read(each))


def values(batches):
    columns = ["stream", "offset", "value"]
    rows = [row for each in batches for row in each.select(columns).to_pylist()]
    return sorted((row["stream"], row["offset"], row["value"]) for row in rows)


def wanted(stream, first, stop):
    return sorted((stream, n, value) for n, value in enumerate(numbered(first, stop), first))


@pytest.fixture
def query(cluster, new_streams):
    names = new_streams(2)
    return Query(cluster.endpoint, *names), names


def test_rows_of_all_streams_come_with_the_plan(query, client):
    query, (first, second) = query
    append_values(client, first, numbered(0, 5))
    append_values(client, second, numbered(0, 3))
    assert query.plan() == sorted(wanted(first, 0, 5) + wanted(second, 0, 3)) == query.read()
    append_values(client, first, numbered(5, 9))
    append_values(client, first, numbered(9, 10))
    assert query.plan() == wanted(first, 5, 10) == query.read()


def test_a_release_of_spark_that_takes_no_rows_has_tasks_read_them(query, client):
    query, (name, _) = query
    append_values(client, name, numbered(0, 5))
    query.reader.own_reader = None
    assert query.plan() is None
    assert query.reader._rows is None
    assert query.read() == wanted(name, 0, 5)


def test_nothing_new_brings_nothing(query):
    query, _ = query
    assert query.plan() is None
    assert query.partitions == []


def test_several_tasks_read_for_themselves(cluster, client, new_streams):
    (stream,) = new_streams(1)
    append_values(client, stream, numbered(0, 10))
    query = Query(cluster.endpoint, stream, minPartitions="2")
    assert query.plan() is None
    assert len(query.partitions) == 2
    assert query.read() == wanted(stream, 0, 10)


def test_many_records_are_left_to_a_task(query, client):
    query, (stream, _) = query
    append_values(client, stream, numbered(0, rows_with_plan.RECORDS_MAX + 1))
    assert query.plan() is None
    append_values(client, stream, numbered(0, rows_with_plan.RECORDS_MAX))
    assert len(query.plan()) == rows_with_plan.RECORDS_MAX


def test_large_records_are_left_to_a_task_and_not_fetched_twice(query, client, monkeypatch):
    query, (stream, _) = query
    fetched = []
    fetch = rows_with_plan.SmallBatches._fetch
    monkeypatch.setattr(
        rows_with_plan.SmallBatches,
        "_fetch",
        lambda *given: fetched.append(given) or fetch(*given),
    )
    large = [bytes(rows_with_plan.BYTES_MAX // 2)] * 3
    for _ in range(2):
        append_values(client, stream, large[:1])
        append_values(client, stream, large[1:])
        assert query.plan() is None
        assert len(query.read()) == 3
    assert len(fetched) == 1
    append_values(client, stream, large[:1])
    assert len(query.plan()) == 1


def test_batches_that_are_far_larger_when_decoded_are_left_to_a_task(query, client):
    query, (stream, _) = query
    (info,) = client.describe_streams([stream])
    zeros = [bytes(rows_with_plan.BYTES_MAX)] * 10
    batch = encode_rows(
        rows_of(zeros), stream_id=info.stream_id, timestamp_ms=0, compression="zstd"
    )
    assert len(batch) < rows_with_plan.BYTES_MAX // 10
    client.append([AppendItem(info.stream_id, batch)])
    assert query.plan() is None
    assert len(query.read()) == 10


def test_records_that_are_gone_are_left_to_the_task(query, client):
    query, (stream, _) = query
    append_values(client, stream, numbered(0, 5))
    assert query.plan() is not None
    (info,) = client.describe_streams([stream])
    client.trim_streams({info.stream_id: 2})
    assert rows_with_plan.SmallBatches().maybe_read(query.partitions, SCHEMA) is None


def test_a_plan_that_failed_leaves_no_rows_behind(query, client):
    query, (stream, _) = query
    append_values(client, stream, numbered(0, 5))
    end = query.reader.latestOffset(query.offset, ReadAllAvailable())
    query.reader.partitions(query.offset, end)
    assert isinstance(query.reader, _SimpleStreamReaderWrapper)
    assert query.reader.partitions(end, end) == []
    assert not isinstance(query.reader, _SimpleStreamReaderWrapper)


@contextmanager
def frozen(pid):
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_silent_server_delays_the_plan_for_seconds_only():
    """A task waits for a minute; this would come on top of that."""
    patience = client_pool.Patience.STARTING
    with WarmCluster() as cluster, Client(cluster.endpoint) as client:
        client.create_streams([StreamSpec("a")])
        append_values(client, "a", numbered(0, 5))
        query = Query(cluster.endpoint, "a")
        end = query.reader.latestOffset(query.offset, ReadAllAvailable())
        (partition,) = query.reader.partitions(query.offset, end)
        asked = []
        hasty = Client(cluster.endpoint, timeout_ms=300, retry=RetryPolicy(budget_ms=0))
        small_batches = rows_with_plan.SmallBatches(lambda _, given: asked.append(given) or hasty)
        with hasty, frozen(cluster.pid):
            assert small_batches.maybe_read([partition], SCHEMA) is None
        assert asked == [patience]
        assert rows_with_plan.SmallBatches().maybe_read([partition], SCHEMA) is not None
