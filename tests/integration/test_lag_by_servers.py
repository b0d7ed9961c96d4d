"""The lag of a query, as its servers report it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from sbp_core.client import StreamSpec
from sbp_spark.lag import LagListener, StreamLag, lag
from tests.support.spark import append_values


@pytest.fixture
def streams(client):
    infos = client.create_streams([StreamSpec(None), StreamSpec(None)])
    yield [info.stream_id for info in infos]
    client.delete_streams([info.stream_id for info in infos])


def progress(*nexts):
    entries = " ".join(f"{stream_id}={at}@1" for stream_id, at in nexts)
    text = json.dumps({"streams": entries, "version": 2})
    sources = [{"endOffset": text, "latestOffset": text}]
    return {"id": "q", "name": "n", "batchId": 7, "sources": sources}


def test_the_servers_report_the_lag_in_records_time_and_bytes(client, cluster, streams):
    first, second = streams
    append_values(client, first, [b"x" * 1000] * 50)
    shown = progress((first, 20), (second, 0))
    assert [each.record_count for each in lag(shown)] == [0, 0]
    behind, at_tail = lag(shown, cluster.endpoint)
    assert at_tail == StreamLag(second, 0, 0, None, str(second), 0, 0)
    assert (behind.record_count, behind.stream) == (30, str(first))
    assert 30_000 <= behind.size_bytes <= 33_000
    assert 0 <= behind.age_ms < 300_000
    (aged,) = client.append_times({first: 20}).values()
    older, _ = lag(shown, cluster.endpoint)
    assert older.age_ms >= behind.age_ms
    assert aged is not None


def test_trimmed_records_do_not_count(client, cluster, streams):
    first, _ = streams
    append_values(client, first, [b"x"] * 50)
    client.trim_streams({first: 40})
    (found,) = lag(progress((first, 20)), cluster.endpoint)
    assert found.record_count == 10


def test_deleted_streams_are_left_out(client, cluster, streams):
    _, second = streams
    append_values(client, second, [b"x"])
    found = lag(progress((10**9, 20), (second, 0)), cluster.endpoint)
    assert [(each.stream_id, each.record_count) for each in found] == [(second, 1)]


def test_without_servers_a_listener_reports_the_progress(caplog, streams):
    reports = []
    listener = LagListener("127.0.0.1:1", lambda _, found: reports.append(found))
    listener.onQueryProgress(SimpleNamespace(progress=progress((streams[0], 20))))
    assert reports == [[StreamLag(streams[0], 20, 0)]]
    assert "lag is taken from the query's progress" in caplog.text
