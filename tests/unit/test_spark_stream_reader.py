"""The driver side of a streaming read: which offsets it gives to Spark, and when it refuses."""

import json
import pickle

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)
from pyspark.sql.types import IntegerType, StructField, StructType

from sbp_core.errors import ConfigurationError
from sbp_spark.reading.offsets import StreamChangedError
from sbp_spark.row_schema import source_schema
from sbp_spark.streaming.stream_reader import SbpStreamReader
from tests.support.fake_streams import ALL, nexts, read_up, reader, spans, use_fake_cluster


@pytest.fixture
def cluster(monkeypatch):
    return use_fake_cluster(monkeypatch)


def test_the_start_is_resolved_once_and_travels_in_the_first_end(cluster):
    query = reader(startingOffsets="latest")
    start = query.initialOffset()
    assert start == reader().initialOffset()
    end = query.latestOffset(start, ALL)
    assert end["streams"] == "1=50@100,base=50 2=30@200,base=30"
    cluster.streams["a"][3] = 60
    restarted = reader(startingOffsets="latest")
    assert list(restarted.partitions(restarted.initialOffset(), end)) == []
    later = restarted.latestOffset(end, ALL)
    assert spans(restarted.partitions(end, later)) == [(1, 50, 60)]


def test_nothing_new_is_the_same_text(cluster):
    query = reader(startingOffsets="earliest")
    end = json.loads(json.dumps(query.latestOffset(query.initialOffset(), ALL)))
    assert json.dumps(query.latestOffset(end, ALL)) == json.dumps(end)
    cluster.streams["a"][3] = 51
    moved = query.latestOffset(end, ALL)
    assert json.dumps(query.latestOffset(moved, ALL)) == json.dumps(moved)


@pytest.mark.parametrize(("offset", "is_inside"), [(9, False), (10, True), (30, True), (31, False)])
def test_starting_offsets_must_lie_inside(cluster, offset, is_inside):
    query = reader("b", startingOffsets=f'{{"b": {offset}}}')
    if is_inside:
        query.latestOffset(query.initialOffset(), ALL)
    else:
        with pytest.raises(ConfigurationError, match=rf"b at {offset}, which has .*\[10, 30\)"):
            query.latestOffset(query.initialOffset(), ALL)


def test_positions_by_name_or_id(cluster):
    options = {"startingOffsets": '{"1": 5, "b": -2}', "endingOffsets": '{"a": 9, "2": 12}'}
    assert read_up(reader(**options))[0] == [(1, 5, 9), (2, 10, 12)]
    wrong = reader(startingOffsets='{"1": 5, "a": 5, "bb": 0}')
    with pytest.raises(ConfigurationError) as raised:
        wrong.latestOffset(wrong.initialOffset(), ALL)
    for told in ("stream 1 twice", "names bb, which is not read", "mean b?", "leaves out b"):
        assert told in str(raised.value)


def test_a_stream_named_by_name_and_by_id_is_refused(cluster):
    query = reader("a,1")
    with pytest.raises(ConfigurationError, match=r"one and the same stream: a and 1 \(id 1\)"):
        query.latestOffset(query.initialOffset(), ALL)


def test_an_end_is_waited_for_and_then_nothing_is_new(cluster):
    query = reader("a", startingOffsets="earliest", endingOffsets='{"a": 55}')
    read, end = read_up(query)
    assert read == [(1, 0, 50)]
    cluster.streams["a"][3] = 99
    read, end = read_up(query, end)
    assert read == [(1, 50, 55)]
    assert read_up(reader("a", endingOffsets='{"a": 60}'), end)[0] == [(1, 55, 60)]


@pytest.mark.parametrize(("ending", "stop"), [("latest", 50), ("-20", 30)])
def test_an_end_at_the_tail_stays_where_it_was_first_seen(cluster, ending, stop):
    options = {"startingOffsets": "earliest", "endingOffsets": ending}
    query = reader("a", maxRecordsPerTrigger="7", **options)
    end = query.latestOffset(query.initialOffset(), query.getDefaultReadLimit())
    cluster.streams["a"][3] = 99
    read, end = read_up(reader("a", **options), end)
    assert read == [(1, 7, stop)]
    assert read_up(reader("a", startingOffsets="earliest"), end)[0] == [(1, stop, 99)]


def test_an_end_before_the_start_is_named(cluster):
    query = reader(startingOffsets='{"a": -2, "b": -1}', endingOffsets='{"a": 5, "b": 20}')
    with pytest.raises(ConfigurationError, match="b starts at 30 and ends at 20"):
        query.latestOffset(query.initialOffset(), ALL)


def test_available_now_stops_at_the_tail_of_its_beginning(cluster):
    query = reader(startingOffsets="earliest")
    query.prepareForTriggerAvailableNow()
    cluster.streams["a"][3] = 99
    end = query.latestOffset(query.initialOffset(), ALL)
    assert nexts(end) == {1: 50, 2: 30}
    assert query.latestOffset(end, ALL) == end


def test_available_now_reads_what_is_there_when_it_is_started_again(cluster):
    options = {"startingOffsets": "earliest", "maxRecordsPerTrigger": "30"}
    query = reader(**options)
    query.prepareForTriggerAvailableNow()
    end = query.latestOffset(query.initialOffset(), query.getDefaultReadLimit())
    cluster.streams["a"][3], cluster.streams["b"][3] = 99, 31
    again = reader(**options)
    again.prepareForTriggerAvailableNow()
    cluster.streams["a"][3] = 500
    assert nexts(read_up(again, json.loads(json.dumps(end)))[1]) == {1: 99, 2: 31}


def test_a_query_that_is_asked_again_at_once_waits_for_news(cluster):
    query = reader(startingOffsets="earliest")
    end = query.latestOffset(query.initialOffset(), ALL)
    assert query.latestOffset(end, ALL) == end
    assert cluster.waits == []  # there was something new just before
    assert query.latestOffset(end, ALL) == end
    assert cluster.waits == [{1: 50, 2: 30}]

    def append():
        cluster.streams["a"][3] = 51

    cluster.on_wait = append
    assert nexts(query.latestOffset(end, ALL)) == {1: 51, 2: 30}


def test_a_query_with_a_trigger_interval_does_not_wait(cluster):
    query = reader(startingOffsets="earliest")
    end = query.latestOffset(query.initialOffset(), ALL)
    for _ in range(3):
        assert query.latestOffset(end, ALL) == end
        query._run._idle_since_s -= 1
    assert cluster.waits == []


def test_once_ignores_the_limits(cluster):
    query = reader(startingOffsets="earliest", maxRecordsPerTrigger="3", minRecordsPerTrigger="2")
    begin = query.initialOffset()
    assert nexts(query.latestOffset(begin, ALL)) == {1: 50, 2: 30}


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxRecordsPerTrigger": "5", "maxBytesPerTrigger": "7"}, ReadMaxRows(5)),
        ({"maxBytesPerTrigger": "7", "minRecordsPerTrigger": "2"}, ReadMaxBytes(7)),
        ({"minRecordsPerTrigger": "2"}, ReadMinRows(2)),
        ({"targetBatchDuration": "10s"}, ReadMinRows(1)),
    ],
)
def test_no_limit_passes_for_everything(cluster, options, limit):
    assert reader(**options).getDefaultReadLimit() == limit


def test_available_now_with_latest_reads_nothing(cluster):
    query = reader(startingOffsets="latest")
    query.prepareForTriggerAvailableNow()
    cluster.streams["a"][3] = 99
    assert nexts(query.latestOffset(query.initialOffset(), ALL)) == {1: 50, 2: 30}


@pytest.mark.parametrize(("place", "value"), [(0, 9), (1, 999)])
def test_a_stream_that_was_created_again_is_an_error(cluster, place, value):
    query = reader("a", startingOffsets="earliest")
    begin = query.initialOffset()
    end = query.latestOffset(begin, ALL)
    cluster.streams["a"][place] = value
    with pytest.raises(StreamChangedError):
        reader("a").latestOffset(end, ALL)
    with pytest.raises(StreamChangedError):
        reader("a").partitions(begin, end)


def test_a_stream_that_is_deleted_while_it_is_read(cluster):
    query = reader("a,b")
    end = query.latestOffset(query.initialOffset(), ALL)
    cluster.change(b=None)
    with pytest.raises(StreamChangedError, match="has read stream 2"):
        query.latestOffset(end, ALL)


def test_a_stream_that_is_created_again_while_it_is_read(cluster):
    query = reader("a,b")
    end = query.latestOffset(query.initialOffset(), ALL)
    cluster.change(b=[3, 300, 0, 5])
    with pytest.raises(
        StreamChangedError, match=r"has read stream 2 \(b\) up to offset 30, .*\(new to it: 3\)"
    ):
        query.latestOffset(end, ALL)


def rename(cluster, old, new):
    cluster.change(**{new: cluster.streams[old], old: None})


def test_a_stream_that_is_renamed_is_read_on(cluster):
    query = reader("a,b", startingOffsets="earliest")
    read, end = read_up(query)
    rename(cluster, "b", "c")
    cluster.streams["c"][3] = 33
    read, end = read_up(query, end)
    assert read == [(2, 30, 33)]
    cluster.change(b=[3, 300, 0, 9])
    assert read_up(query, end) == ([], end)
    assert read_up(reader("a,c"), end) == ([], end)
    with pytest.raises(StreamChangedError, match=r"has read stream 2 .*it exists, but is not"):
        reader("a,b").latestOffset(end, ALL)


def test_streams_that_swap_their_names_are_read_on(cluster):
    query = reader("a", startingOffsets="earliest", endingOffsets='{"a": 60}')
    _, end = read_up(query)
    a, b = cluster.streams["a"], cluster.streams["b"]
    cluster.change(a=b, b=a)
    a[3] = b[3] = 99
    assert read_up(query, end)[0] == [(1, 50, 60)]


def test_a_stream_that_took_the_name_of_one_that_is_gone_is_read_instead(cluster):
    query = reader("a,b", startingOffsets="earliest", failOnDataLoss="false")
    _, end = read_up(query)
    cluster.change(b=None)
    _, end = read_up(query, end)
    cluster.change(b=[3, 300, 0, 9])
    read, end = read_up(query, end)
    assert read == [(3, 0, 9)]
    rename(cluster, "b", "c")
    assert read_up(query, end) == ([], end)


def test_an_id_that_another_stream_has_got_does_not_count(cluster):
    query = reader(
        "a", startingOffsets="earliest", endingOffsets='{"a": 20}', failOnDataLoss="false"
    )
    _, end = read_up(query)
    cluster.change(a=[2, 201, 0, 30], b=[1, 101, 0, 50])
    assert read_up(query, end)[0] == [(2, 0, 20)]


def test_positions_by_name_hold_when_the_stream_is_renamed_before_the_first_batch(cluster):
    query = reader("a,b", startingOffsets='{"a": 45, "b": 25}')
    query.initialOffset()
    rename(cluster, "a", "z")
    assert read_up(query)[0] == [(1, 45, 50), (2, 25, 30)]


def pattern_reader(pattern, **options):
    given = {"endpoint": "h:1", "streamsPattern": pattern} | options
    return SbpStreamReader(given, source_schema(include_headers=False))


def test_a_pattern_finds_streams_that_come_later_and_reads_them_from_their_first_record(cluster):
    query = pattern_reader("[a-c].*", startingOffsets="latest")
    read, end = read_up(query)
    assert read == []
    cluster.change(c1=[7, 700, 0, 4], d=[8, 800, 0, 9])
    read, end = read_up(query, end)
    assert read == [(7, 0, 4)]
    cluster.change(c2=[9, 900, 0, 1])
    assert read_up(pattern_reader("[a-c].*", startingOffsets="latest"), end)[0] == [(9, 0, 1)]


def test_a_stream_created_after_a_pattern_matched_nothing_is_read_from_its_first_record(cluster):
    query = pattern_reader("new-.*", startingOffsets="latest")
    begin = query.initialOffset()
    end = query.latestOffset(begin, ALL)
    assert end != begin
    assert query.latestOffset(end, ALL) == end
    cluster.change(**{"new-1": [7, 700, 0, 4]})
    assert read_up(pattern_reader("new-.*", startingOffsets="latest"), end)[0] == [(7, 0, 4)]


def test_json_names_exactly_what_a_pattern_matches_at_the_start_only(cluster):
    options = {"startingOffsets": '{"a": 49}', "endingOffsets": '{"a": 60}'}
    query = pattern_reader(".*", **options)
    with pytest.raises(ConfigurationError, match="leaves out b"):
        query.latestOffset(query.initialOffset(), ALL)
    query = pattern_reader("a.*", **options)
    read, end = read_up(query)
    cluster.change(a1=[7, 700, 0, 99])
    assert read == [(1, 49, 50)]
    assert read_up(query, end)[0] == [(7, 0, 99)]


def test_an_end_by_name_holds_when_a_stream_of_a_pattern_is_renamed(cluster):
    ends = '{"a": 60, "b": 30}'
    query = pattern_reader("[a-c].*", startingOffsets="earliest", endingOffsets=ends)
    _, end = read_up(query)
    rename(cluster, "a", "a2")
    cluster.streams["a2"][3] = 99
    assert read_up(query, end)[0] == [(1, 50, 60)]


def test_a_stream_whose_new_name_does_not_match_is_no_longer_read(cluster):
    query = pattern_reader("[ab]", startingOffsets="earliest")
    _, end = read_up(query)
    rename(cluster, "a", "z")
    with pytest.raises(StreamChangedError, match="it exists, but is not selected"):
        query.latestOffset(end, ALL)


def test_streams_are_listed_only_when_something_has_changed(cluster):
    query = pattern_reader(".*")
    end = query.latestOffset(query.initialOffset(), ALL)
    query.latestOffset(end, ALL)
    seen = cluster.listings
    for _ in range(5):
        assert query.latestOffset(end, ALL) == end
    assert cluster.listings == seen
    cluster.change(c=[7, 700, 0, 4])
    assert nexts(query.latestOffset(end, ALL)) == {1: 50, 2: 30, 7: 4}
    assert cluster.listings == seen
    cluster.revision = None
    query.latestOffset(end, ALL)
    query.latestOffset(end, ALL)
    assert cluster.listings == seen + 2


def test_a_deletion_between_two_looks_is_looked_at_again(cluster):
    query = pattern_reader(".*")
    query.latestOffset(query.initialOffset(), ALL)
    query._run._watch.streams()
    del cluster.streams["b"]  # after the revision was asked for
    assert query._run._watch.look().tails == {1: 50}


def test_partitions_are_as_many_as_are_asked_for(cluster):
    query = reader("a", startingOffsets="earliest", minPartitions="3", maxRecordsPerPartition="20")
    begin = query.initialOffset()
    planned = query.partitions(begin, query.latestOffset(begin, ALL))
    assert spans(planned) == [(1, 0, 16), (1, 16, 33), (1, 33, 50)]


def test_the_latest_offset_is_reported_without_asking(cluster):
    query = reader(startingOffsets="earliest", maxRecordsPerTrigger="1")
    assert query.reportLatestOffset() is None
    query.latestOffset(query.initialOffset(), ReadMaxRows(1))
    cluster.streams.clear()
    assert nexts(query.reportLatestOffset()) == {1: 50, 2: 30}


def test_faults_show_at_the_first_use_and_the_reader_can_be_sent(cluster):
    faulty = pickle.loads(pickle.dumps(reader(maxRecordsPerTrigger="0")))
    for use in (faulty.initialOffset, faulty.getDefaultReadLimit):
        with pytest.raises(ConfigurationError, match="maxRecordsPerTrigger"):
            use()
    columns = StructType([StructField("price", IntegerType())])
    other = SbpStreamReader({"endpoint": "h:1", "streams": "a"}, columns)
    with pytest.raises(ConfigurationError, match=r"\.schema"):
        other.prepareForTriggerAvailableNow()


def test_a_query_that_has_read_everything_sees_what_comes_nevertheless(cluster):
    query = reader(startingOffsets="earliest")
    _, offset = read_up(query)
    for _ in range(3):
        again = json.loads(json.dumps(offset))
        assert json.dumps(query.latestOffset(again, ALL)) == json.dumps(offset)
    cluster.streams["a"][3] = 57
    read, offset = read_up(query, offset)
    assert read == [(1, 50, 57)]
    cluster.streams["b"][3] = 33
    read, offset = read_up(query, offset)
    assert read == [(2, 30, 33)]
    cluster.change(b=None)
    with pytest.raises(StreamChangedError, match="stream 2 "):
        query.latestOffset(offset, ALL)


def test_a_query_that_has_read_everything_may_be_asked_from_elsewhere(cluster):
    query = reader(startingOffsets="earliest")
    first = query.latestOffset(query.initialOffset(), ALL)
    assert query.latestOffset(first, ALL) == first
    earlier = {**first, "streams": "1=40@100,base=0 2=30@200,base=30"}
    assert nexts(query.latestOffset(earlier, ALL)) == {1: 50, 2: 30}
    assert nexts(earlier) == {1: 40, 2: 30}


def test_losses_that_were_noted_are_reported_by_a_query_that_has_read_everything(cluster):
    query = reader(startingOffsets="earliest", failOnDataLoss="report")
    first = query.latestOffset(query.initialOffset(), ALL)
    assert query.latestOffset(first, ALL) == first
    cluster.change(a=None)
    assert query.partitions({"initial": True, "version": 2}, first)
    assert query.latestOffset(first, ALL)["lost"]["1"]
