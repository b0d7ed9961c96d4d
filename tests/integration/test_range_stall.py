"""A streaming read on real servers of which one is killed, frozen, and back again."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from operator import itemgetter

import pytest

from sbp_core.client import Client, StreamSpec
from sbp_spark.row_schema import source_schema
from sbp_spark.streaming.stream_reader import SbpStreamReader
from tests.support.machines import RangeServerProcess
from tests.support.spark import append_values, numbered
from tests.support.warm import WarmCluster


class Scene:
    """A cluster of two range servers, the second of them a process of its own, and two streams."""

    def __init__(self, cluster, client, server, run, tmp_path):
        self.cluster, self.client, self.server, self.run = cluster, client, server, run
        names = [f"s{number}" for number in range(4)]
        infos = client.create_streams([StreamSpec(name) for name in names])
        placed = client.list_ranges([info.stream_id for info in infos])
        hosts = {info.name: placed[info.stream_id][-1].servers[0] for info in infos}
        self.kept = next(name for name in names if hosts[name] != server.endpoint)
        self.lost = next(name for name in names if hosts[name] == server.endpoint)
        self.ids = {info.name: str(info.stream_id) for info in infos}

    def query(self, **options):
        given = {"endpoint": self.cluster.endpoint, "streams": f"{self.kept},{self.lost}"}
        return Query(given | {"maxRangeStall": "300ms"} | options)

    def freeze(self):
        os.kill(self.server.pid, signal.SIGSTOP)

    def thaw(self):
        os.kill(self.server.pid, signal.SIGCONT)


class Query:
    """A streaming reader driven as by Spark, with the values that were read from each stream."""

    def __init__(self, options):
        self._reader = SbpStreamReader(options, source_schema(include_headers=False))
        self.offset = self._reader.initialOffset()
        self.values = {}

    def read(self):
        """Run micro-batches until nothing is new."""
        limit = self._reader.getDefaultReadLimit()
        while (end := self._reader.latestOffset(self.offset, limit)) != self.offset:
            for row in sorted(self._rows(end), key=itemgetter("offset")):
                read = self.values.setdefault(row["stream"], [])
                assert row["offset"] == len(read)
                read.append(row["value"])
            self.offset = end
        return self.offset.get("stalled", {}).keys()

    def _rows(self, end):
        for partition in self._reader.partitions(self.offset, end):
            for rows in self._reader.read(partition):
                yield from rows.select(["stream", "offset", "value"]).to_pylist()


@pytest.fixture
def scene(tmp_path):
    with WarmCluster() as cluster, Client(cluster.endpoint) as client, asyncio.Runner() as runner:
        server = RangeServerProcess(tmp_path / "rs", cluster.endpoint, heartbeat_interval_ms=50)
        runner.run(server.start())
        try:
            yield Scene(cluster, client, server, runner.run, tmp_path)
        finally:
            runner.run(server.__aexit__(None, None, None))


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_the_others_go_on_and_the_rest_is_caught_up_with(scene, how, caplog):
    for name in (scene.kept, scene.lost):
        append_values(scene.client, name, numbered(0, 100))
    query = scene.query(startingOffsets="earliest", maxRecordsPerTrigger="30")
    query.read()
    append_values(scene.client, scene.lost, numbered(100, 200))
    if how == "killed":
        scene.run(scene.server.kill())
    else:
        scene.freeze()
    for first in (100, 150):
        append_values(scene.client, scene.kept, numbered(first, first + 50))
        assert query.read() == {scene.ids[scene.lost]}
    assert [len(query.values[name]) for name in (scene.kept, scene.lost)] == [200, 100]
    if how == "killed":
        scene.run(scene.server.start())
    else:
        scene.thaw()
    deadline = time.monotonic() + 60
    while query.read() or len(query.values[scene.lost]) < 200:
        assert time.monotonic() < deadline
    assert query.values == {name: numbered(0, 200) for name in (scene.kept, scene.lost)}
    assert caplog.text.count("is down for more than 0.3 s") == 1
    assert caplog.text.count("is back") == 1
