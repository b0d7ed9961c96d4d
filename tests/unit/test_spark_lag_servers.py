"""Lag of a query as its servers report it, when one of them becomes unavailable."""

from __future__ import annotations

import json

from sbp_spark.operations import query_lag as lag
from tests.support.fake_streams import FakeCluster, use_client


def test_the_age_is_not_known_where_a_server_does_not_tell_in_time(monkeypatch):
    cluster = FakeCluster(**{"1": [1, 100, 0, 50], "2": [2, 200, 0, 50], "3": [3, 300, 0, 50]})
    cluster.find_streams = lambda stream_ids: cluster.list_streams()
    asked = []

    def append_times(offsets, *, timeout_ms):
        asked.append((offsets, timeout_ms))
        return {2: 1_000}

    cluster.append_times = append_times
    cluster.fetch = lambda items: ()
    use_client(monkeypatch, cluster)
    end = {"streams": "1=40@1 2=40@1 3=50@1", "version": 2}
    source = {"endOffset": json.dumps(end), "latestOffset": None}
    silent, told, at_tail = lag.lag({"sources": [source]}, "h:1")
    assert (silent.record_count, silent.age_ms) == (10, None)
    assert told.age_ms > 0
    assert (at_tail.record_count, at_tail.age_ms) == (0, 0)
    assert asked == [({1: 40, 2: 40}, lag._ANSWER_MS)]
