"""Reading that starts where a consumer group has come to."""

from __future__ import annotations

import pytest

from sbp_core.errors import ConfigurationError
from sbp_spark.reading.input_partitions import SbpBatchReader
from sbp_spark.reading.losses import DataLossError
from sbp_spark.row_schema import source_schema
from tests.support.fake_streams import ALL, nexts, read_up, reader, spans, use_fake_cluster
from tests.support.spark import source


@pytest.fixture
def cluster(monkeypatch):
    return use_fake_cluster(monkeypatch)


def read_batch(**options):
    options = source(streaming=False, streams="a,b", **options)
    query = SbpBatchReader(options, source_schema(include_headers=False))
    return spans(query.partitions())


def test_a_query_starts_where_its_group_reads_next(cluster):
    cluster.cursors = {"nightly": {1: 20, 2: 30}, "hourly": {1: 44}}
    options = {"startingOffsets": "group:nightly"}
    assert read_batch(**options) == [(1, 20, 50)]
    read, end = read_up(reader(**options))
    assert read == [(1, 20, 50)]
    cluster.cursors["nightly"][1] = 0
    assert nexts(reader(**options).latestOffset(end, ALL)) == {1: 50, 2: 30}


def test_a_stream_new_to_the_group_is_read_from_its_first_record(cluster):
    cluster.cursors = {"nightly": {1: 20}}
    assert read_batch(startingOffsets="group:nightly") == [(1, 20, 50), (2, 10, 30)]
    assert read_up(reader(startingOffsets="group:new"))[0] == [(1, 0, 50), (2, 10, 30)]


def test_groups_by_stream(cluster):
    cluster.cursors = {"nightly": {1: 20, 2: 15}, "hourly": {1: 44, 2: 29}}
    options = {"startingOffsets": '{"a": "group:hourly", "2": "group:nightly"}'}
    assert read_batch(**options) == [(1, 44, 50), (2, 15, 30)]
    assert read_up(reader(startingOffsets='{"a": -1, "b": "group:hourly"}'))[0] == [(2, 29, 30)]


def test_records_trimmed_before_the_group_read_them_are_lost(cluster, caplog):
    cluster.cursors = {"nightly": {1: 20, 2: 4}}
    options = {"startingOffsets": "group:nightly"}
    strict = reader(**options)
    for fails in (
        lambda: strict.latestOffset(strict.initialOffset(), ALL),
        lambda: read_batch(**options),
    ):
        with pytest.raises(DataLossError, match=r"stream 2 \(b\): \[4, 10\)"):
            fails()
    rest = [(1, 20, 50), (2, 10, 30)]
    assert read_batch(failOnDataLoss="false", **options) == rest
    assert "[4, 10)" in caplog.text
    read, end = read_up(reader(failOnDataLoss="report", **options))
    assert read == rest
    assert end["lost"] == {"2": [[4, 10]]}


@pytest.mark.parametrize("policy", ["true", "report"])
def test_a_cursor_beyond_the_tail_is_an_error(cluster, policy):
    cluster.cursors = {"nightly": {1: 51}}
    options = {"startingOffsets": "group:nightly", "failOnDataLoss": policy}
    told = r"option startingOffsets is outside of the stream: a at 51, which has offsets \[0, 50\)"
    with pytest.raises(ConfigurationError, match=told):
        read_batch(**options)
    query = reader(**options)
    with pytest.raises(ConfigurationError, match=told):
        query.latestOffset(query.initialOffset(), ALL)
