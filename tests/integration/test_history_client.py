"""A client that reads tables and logs, while streams land, are compacted and trimmed behind it."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

import sbp_core
from sbp_core.client import FetchItem, StreamUpdate
from sbp_core.lake.history_client import HistoryClient
from sbp_core.lake.landing import LandingSettings
from sbp_core.records import StreamSchema, decode_columns
from tests.support.lake import catalog_in, has_landed, land_until, read_all

KEEPS_NOTHING = LandingSettings(interval_seconds=0.0, keep_seconds=0.0)
HOUR_US = 3_600_000_000


@pytest.fixture
def catalog(tmp_path):
    return catalog_in(tmp_path)


@pytest.fixture
def stream(client, new_streams):
    (name,) = new_streams(1)
    client.update_streams([StreamUpdate(name, properties={"lake.table": f"lake.{name}"})])
    (info,) = client.describe_streams([name])
    return info


@pytest.fixture
def reader(cluster, tmp_path):
    with HistoryClient(cluster.endpoint, open_catalog=partial(catalog_in, tmp_path)) as client:
        yield client


def send(cluster, stream, start, stop):
    with sbp_core.connect(cluster.endpoint) as sbp, sbp.producer(stream.name) as producer:
        for number in range(start, stop):
            producer.send(b"%d" % number, timestamp_us=number * HOUR_US)


def values(stop):
    return [b"%d" % each for each in range(stop)]


def test_a_table_that_was_not_there_is_found_once_the_log_has_been_trimmed(
    cluster, client, catalog, stream, reader
):
    send(cluster, stream, 0, 5)
    assert read_all(reader, stream.stream_id) == values(5)
    land_until(cluster, catalog, stream.name, has_landed(5))
    client.trim_streams({stream.stream_id: 5})
    assert read_all(reader, stream.stream_id) == values(5)


def test_a_time_is_found_in_records_that_have_landed_since_the_table_was_loaded(
    cluster, client, catalog, stream, reader
):
    send(cluster, stream, 0, 5)
    land_until(cluster, catalog, stream.name, has_landed(5))
    client.trim_streams({stream.stream_id: 3})
    assert reader.lookup_offsets({stream.stream_id: 2 * HOUR_US}) == {stream.stream_id: 2}
    send(cluster, stream, 5, 10)
    land_until(cluster, catalog, stream.name, has_landed(10))
    client.trim_streams({stream.stream_id: 9})
    assert reader.lookup_offsets({stream.stream_id: 7 * HOUR_US}) == {stream.stream_id: 7}


def test_a_column_that_is_added_while_the_table_is_loaded_is_not_lost(
    cluster, client, catalog, stream, tmp_path
):
    old = pa.schema([("id", pa.int64())])
    new = pa.schema([("id", pa.int64()), ("more", pa.string())])
    client.evolve_schema(stream.stream_id, StreamSchema.of(old), may_change=True)

    def land(columns, row, end):
        client.evolve_schema(stream.stream_id, StreamSchema.of(columns), may_change=True)
        with sbp_core.connect(cluster.endpoint) as sbp, sbp.producer(stream.name) as producer:
            producer.send_many([row])
        land_until(cluster, catalog, stream.name, has_landed(end))
        client.trim_streams({stream.stream_id: end})

    class GrowingCatalog(SqlCatalog):
        def load_table(self, identifier):
            land(new, {"id": 2, "more": "x"}, 2)
            return catalog.load_table(identifier)

    land(old, {"id": 1}, 1)
    growing = GrowingCatalog("other", uri="sqlite://", warehouse="unused")
    with HistoryClient(cluster.endpoint, open_catalog=lambda: growing) as reader:
        rows = []
        for offset in range(2):
            (outcome,) = reader.fetch([FetchItem(stream.stream_id, offset, 2, 1 << 20)])
            assert outcome.error is None
            (envelope,) = outcome.batches.envelopes()
            rows.append(decode_columns(envelope, StreamSchema(new)))
    assert pa.Table.from_batches(rows).to_pylist() == [
        {"id": 1, "more": None},
        {"id": 2, "more": "x"},
    ]


def test_files_that_were_compacted_and_removed_are_looked_for_again(
    cluster, client, catalog, stream, reader
):
    for number in range(20):  # each by a process of its own, which finds the files of the others
        send(cluster, stream, number, number + 1)
        landed = has_landed(number + 1)
        land_until(cluster, catalog, stream.name, landed, settings=KEEPS_NOTHING)
        if number == 10:
            client.trim_streams({stream.stream_id: 10})
            assert read_all(reader, stream.stream_id) == values(11)
    assert len(catalog.load_table(f"lake.{stream.name}").inspect.files()) < 16
    assert reader.lookup_offsets({stream.stream_id: 4 * HOUR_US}) == {stream.stream_id: 4}
    assert read_all(reader, stream.stream_id) == values(20)
