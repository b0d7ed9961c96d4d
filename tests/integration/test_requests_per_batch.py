"""A micro-batch asks the placement driver once about its streams, and each range server once."""

from __future__ import annotations

import json
import time
import urllib.request
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql.streaming.datasource import ReadAllAvailable

from sbp_core.client import Client, StreamSpec
from sbp_spark.row_schema import source_schema
from sbp_spark.streaming.stream_reader import SbpStreamReader
from tests.support.spark import append_values, numbered
from tests.support.warm import WarmCluster

BATCHES = 10
ASKED = ("list_ranges", "describe_range", "list_streams")


class Scene:
    """A cluster, a query that reads all its streams, and the requests that servers answered."""

    def __init__(self, cluster, client, stream_count):
        ready = json.loads((cluster.data_dir / "ready.json").read_text())
        self._metrics = f"http://{ready['admin']}/metrics"
        self._client = client
        self._append_count = 0
        client.create_streams([StreamSpec(f"s{number}") for number in range(stream_count)])
        given = {"endpoint": cluster.endpoint, "streamsPattern": "s.*"}
        self._query = SbpStreamReader(given, source_schema(include_headers=False))
        self._offset = self._query.initialOffset()

    def append(self):
        append_values(self._client, "s0", numbered(0, 5))
        self._append_count += 1

    def read(self):
        """Run a micro-batch as Spark does."""
        end = self._query.latestOffset(self._offset, ReadAllAvailable())
        assert "initial" in self._offset or self._query.partitions(self._offset, end)
        self._query.commit(end)
        self._offset = json.loads(json.dumps(end))

    def requests(self):
        """How many requests there were, by operation. An append marks the end of them."""
        self.append()
        deadline = time.monotonic() + 30
        while (found := self._counts())["append"] < self._append_count:
            assert time.monotonic() < deadline, found
            time.sleep(0.1)
        return Counter({each: found[each] for each in ASKED})

    def _counts(self):
        with urllib.request.urlopen(self._metrics, timeout=10) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        samples = [each for family in families for each in family.samples]
        found = Counter()
        for each in samples:
            if each.name == "sbp_request_seconds_count":
                found[each.labels["operation"]] += int(each.value)
        return found


@pytest.mark.parametrize("stream_count", [3, 120])
def test_requests_of_a_micro_batch(tmp_path, stream_count):
    options = ("--admin-port", "0")
    with WarmCluster(tmp_path, options=options) as cluster, Client(cluster.endpoint) as client:
        scene = Scene(cluster, client, stream_count)
        for _ in range(2):  # the query finds its streams, and what servers count
            scene.append()
            scene.read()
        before = scene.requests()
        for _ in range(BATCHES):
            scene.read()
            scene.append()
        asked = scene.requests() - before
    assert asked == {"list_ranges": BATCHES, "describe_range": BATCHES}
