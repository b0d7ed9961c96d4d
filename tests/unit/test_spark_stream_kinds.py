"""A pattern beside an encoding: only streams of that kind are read, whatever others become."""

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StructField, StructType

from sbp_core.errors import NotFoundError, StatusCode, UnsupportedError
from sbp_spark.options.source import parse_source_options
from sbp_spark.reading.source_streams import select_streams
from sbp_spark.row_schema import source_schema
from sbp_spark.streaming.stream_reader import SbpStreamReader
from tests.support.data.typed import schema_of, versions_of
from tests.support.fake_streams import ALL, nexts, read_up, spans, use_fake_cluster

COLUMNS = StructType([StructField("id", IntegerType())])
TYPED = schema_of(id=pa.int32())


@pytest.fixture
def cluster(monkeypatch):
    """Stream 1 is typed, stream 2 is plain."""
    fake = use_fake_cluster(monkeypatch)
    type_stream(fake, 1)
    return fake


def type_stream(fake, stream_id):
    fake.schemas[stream_id] = versions_of(stream_id, TYPED)


def matching(encoding):
    given = {"endpoint": "h:1", "streamsPattern": ".*", "encoding": encoding}
    return parse_source_options(given, streaming=None)


def query(encoding, **options):
    schema = COLUMNS if encoding == "columns" else source_schema(include_headers=False)
    given = {"endpoint": "h:1", "streamsPattern": ".*", "startingOffsets": "earliest"}
    return SbpStreamReader({**given, "encoding": encoding, **options}, schema)


@pytest.mark.parametrize(
    ("encoding", "selected"), [("auto", {1, 2}), ("rows", {2}), ("columns", {1})]
)
def test_streams_of_one_kind_are_selected(cluster, encoding, selected):
    assert set(select_streams(matching(encoding))) == selected


@pytest.mark.parametrize(("encoding", "stream_id"), [("rows", 2), ("columns", 1)])
def test_a_query_reads_streams_of_one_kind(cluster, encoding, stream_id):
    read, end = read_up(query(encoding))
    assert {each for each, _, _ in read} == set(nexts(end)) == {stream_id}


STALLING = [{}, {"maxRangeStall": "10s"}]


@pytest.mark.parametrize("options", STALLING)
def test_rows_are_not_read_of_a_stream_that_becomes_typed(cluster, options):
    cluster.change(c=[3, 300, 0, 0])
    running = query("rows", **options)
    _, end = read_up(running)
    assert set(nexts(end)) == {2}
    type_stream(cluster, 3)
    cluster.streams["c"][3] = 10
    assert read_up(running, end) == ([], end)
    assert read_up(query("rows", **options), end) == ([], end)
    cluster.streams["b"][3] = 40
    assert read_up(running, end)[0] == [(2, 30, 40)]


@pytest.mark.parametrize("options", STALLING)
def test_rows_are_read_of_a_stream_that_proves_plain(cluster, options):
    cluster.change(c=[3, 300, 0, 0])
    running = query("rows", **options)
    _, end = read_up(running)
    cluster.streams["c"][3] = 10
    read, end = read_up(running, end)
    assert read == [(3, 0, 10)]
    assert read_up(query("rows", **options), end) == ([], end)


@pytest.mark.parametrize("options", STALLING)
def test_a_stream_that_a_checkpoint_knows_stays(cluster, options):
    cluster.change(c=[3, 300, 0, 0], a=None)
    _, end = read_up(query("auto", **options))
    assert set(nexts(end)) == {2, 3}
    restarted = query("rows", **options)
    restarted.prepareForTriggerAvailableNow()
    assert restarted.latestOffset(end, ALL) == end
    cluster.streams["c"][3] = 10
    later = query("rows", **options)
    planned = later.partitions(end, later.latestOffset(end, ALL))
    assert spans(planned) == [(3, 0, 10)]


def test_a_schema_is_noticed_though_the_metadata_stay_the_same(cluster):
    cluster.change(c=[3, 300, 0, 10])
    running = query("columns")
    _, end = read_up(running)
    assert set(nexts(end)) == {1}
    listings = cluster.listings
    type_stream(cluster, 3)
    read, end = read_up(running, end)
    assert read == [(3, 0, 10)]
    cluster.streams["b"][2] = 0
    type_stream(cluster, 2)
    assert read_up(running, end)[0] == [(2, 0, 30)]
    assert cluster.listings == listings


@pytest.mark.parametrize("options", STALLING)
def test_columns_are_read_of_a_stream_that_becomes_typed(cluster, options):
    running = query("columns", **options)
    _, end = read_up(running)
    cluster.change(c=[3, 300, 0, 0])
    assert set(nexts(read_up(running, end)[1])) == {1}
    type_stream(cluster, 3)
    cluster.streams["c"][3] = 10
    read, end = read_up(running, end)
    assert (read, set(nexts(end))) == ([(3, 0, 10)], {1, 3})


def test_plain_streams_are_asked_about_once(cluster):
    asked = []
    original = cluster.describe_schemas
    cluster.describe_schemas = lambda ids, **options: (
        asked.append(list(ids)) or original(ids, **options)
    )
    running = query("rows")
    _, end = read_up(running)
    asked.clear()
    for tail in (40, 50, 60):
        cluster.streams["b"][3] = tail
        _, end = read_up(running, end)
    assert asked == []


def test_a_placement_driver_without_schemas(cluster):
    def refuse(*_, **__):
        raise UnsupportedError(StatusCode.UNSUPPORTED_OPERATION, "no schemas")

    cluster.describe_schemas = refuse
    assert set(nexts(read_up(query("rows"))[1])) == {1, 2}
    with pytest.raises(UnsupportedError):
        query("columns").initialOffset()


def test_a_stream_that_is_deleted_while_it_is_looked_up(cluster):
    original = cluster.describe_schemas

    def describe(ids, **options):
        if 9 in ids:
            raise NotFoundError(StatusCode.NOT_FOUND, "stream 9")
        return original(ids, **options)

    listing = cluster.list_streams
    cluster.streams["z"] = [9, 900, 0, 0]
    stale = listing()
    del cluster.streams["z"]
    answers = iter([stale])
    cluster.describe_schemas = describe
    cluster.list_streams = lambda: next(answers, None) or listing()
    assert set(select_streams(matching("columns"))) == {1}
