"""A query whose streams are not those of its checkpoint: some are added, others left out."""

from __future__ import annotations

import json

import pytest

from sbp_core.errors import ConfigurationError
from sbp_spark.reading.offsets import StreamChangedError
from tests.support.fake_streams import (
    ALL,
    nexts,
    positions,
    read_up,
    reader,
    spans,
    use_fake_cluster,
)

GO_ON = {"startingOffsets": "earliest", "failOnDataLoss": "false"}


@pytest.fixture
def cluster(monkeypatch):
    return use_fake_cluster(monkeypatch)


@pytest.mark.parametrize(
    ("starting", "begin"),
    [
        ('{"a": 3, "b": 15}', 15),
        ('{"1": 3, "2": -2}', 10),
        ('{"a": 3, "b": -1}', 30),
        ("earliest", 10),
        ("latest", 30),
        ("-4", 26),
    ],
)
def test_a_stream_that_is_added_starts_where_the_options_say(cluster, caplog, starting, begin):
    caplog.set_level("INFO", "sbp_spark")
    _, end = read_up(reader("a", startingOffsets="earliest"))
    query = reader("a,b", startingOffsets=starting)
    added = query.latestOffset(end, ALL)
    assert positions(added)[2].base_offset == begin
    assert nexts(added) == {1: 50, 2: 30}
    assert (
        caplog.text.count("added to the checkpoint: b; they start as option startingOffsets") == 1
    )
    again = reader("a,b", startingOffsets='{"a": 0, "b": 11}')
    cluster.streams["b"][3] = 33
    assert read_up(again, added)[0] == [(2, 30, 33)]


def test_an_added_stream_starts_at_a_time(cluster):
    cluster.times = {2: [100 + each for each in range(30)]}
    _, end = read_up(reader("a", startingOffsets="earliest"))
    times = '{"a": 5, "b": 125}'
    query = reader("a,b", startingOffsetsByTimestamp=times)
    assert read_up(query, end)[0] == [(2, 25, 30)]
    assert cluster.lookups == [{2: 125_000}]


def test_an_offset_outside_of_an_added_stream_is_named(cluster):
    _, end = read_up(reader("a", startingOffsets="earliest"))
    query = reader("a,b", startingOffsets='{"a": 0, "b": 31}')
    with pytest.raises(ConfigurationError, match=r"b at 31, which has offsets \[10, 30\)"):
        query.latestOffset(end, ALL)


def test_the_start_of_an_added_stream_is_resolved_once(cluster):
    """It travels in the first offset that has the stream, so a crash does not move it."""
    _, end = read_up(reader("a", startingOffsets="earliest"))
    added = reader("a,b", startingOffsets="-5").latestOffset(end, ALL)
    cluster.streams["b"][3] = 99
    restarted = reader("a,b", startingOffsets="latest")
    assert spans(restarted.partitions(end, added)) == [(2, 25, 30)]
    assert read_up(restarted, added)[0] == [(2, 30, 99)]


def test_a_stream_that_was_created_again_is_no_added_one(cluster):
    """It is read from its first record, whether it is found in a run or at a restart."""
    options = {**GO_ON, "startingOffsets": "latest"}
    for is_restarted in (False, True):
        query = reader(**options)
        _, end = read_up(query)
        cluster.change(b=[cluster.streams["b"][0] + 1, 300 + is_restarted, 0, 5])
        query = reader(**options) if is_restarted else query
        assert read_up(query, end)[0] == [(cluster.streams["b"][0], 0, 5)]


@pytest.mark.parametrize("policy", ["false", "report"])
def test_a_stream_that_is_left_out_goes_on_when_it_is_selected_again(cluster, caplog, policy):
    options = {**GO_ON, "failOnDataLoss": policy}
    _, end = read_up(reader(**options))
    cluster.streams["a"][3], cluster.streams["b"][3] = 55, 31
    read, end = read_up(reader("b", **options), end)
    assert read == [(2, 30, 31)]
    assert (end["left_out"], end["version"], "lost" in end) == ("1=50@100", 3, False)
    assert "data loss" not in caplog.text
    assert caplog.text.count("stream 1 (a) is no longer selected and not read") == 1
    read, end = read_up(reader("b"), end)  # for good: nothing is to fail
    assert read == []
    read, end = read_up(reader("a,b", startingOffsets="latest"), end)
    assert read == [(1, 50, 55)]
    assert end == {"streams": "1=55@100 2=31@200", "version": 2}


def test_a_batch_that_reads_a_stream_again_is_replayed_as_it_was(cluster):
    _, end = read_up(reader(**GO_ON))
    _, left = read_up(reader("b", **GO_ON), end)
    cluster.streams["a"][3] = 55
    back = reader(**GO_ON).latestOffset(left, ALL)
    cluster.streams["a"][3] = 60
    assert spans(reader(**GO_ON).partitions(left, back)) == [(1, 50, 55)]


def test_records_trimmed_while_a_stream_was_left_out_are_lost(cluster, caplog):
    _, end = read_up(reader(**GO_ON))
    _, left = read_up(reader("b", **GO_ON), end)
    cluster.streams["a"][2:] = [60, 70]
    assert read_up(reader(**GO_ON), left)[0] == [(1, 60, 70)]
    assert "stream 1 (a): [50, 60)" in caplog.text


def test_a_stream_that_went_backwards_while_it_was_left_out_is_not_read(cluster):
    _, end = read_up(reader(**GO_ON))
    _, left = read_up(reader("b", **GO_ON), end)
    cluster.streams["a"][3] = 20
    back = reader(**GO_ON).latestOffset(left, ALL)
    assert nexts(back) == {1: 50, 2: 30}
    with pytest.raises(StreamChangedError, match=r"stream 1 \(a\) went backwards"):
        reader("a,b").latestOffset(back, ALL)


def test_a_stream_that_was_created_again_while_its_name_was_left_out_is_a_new_one(cluster):
    _, end = read_up(reader(**GO_ON))
    _, left = read_up(reader("b", **GO_ON), end)
    cluster.change(a=[9, 900, 0, 4])
    read, after = read_up(reader("a,b", startingOffsets="earliest"), left)
    assert read == [(9, 0, 4)]
    assert nexts(after) == {2: 30, 9: 4}


def test_a_stream_that_is_left_out_is_an_error_that_says_that_it_exists(cluster):
    query = reader("a,b", startingOffsets="earliest")
    begin = query.initialOffset()
    end = query.latestOffset(begin, ALL)
    with pytest.raises(StreamChangedError) as raised:
        reader("a").latestOffset(end, ALL)
    for told in ("has read stream 2 (b) up to offset 30", "it exists", "present name"):
        assert told in str(raised.value)
    assert "deleted" not in str(raised.value)
    assert spans(reader("a").partitions(begin, end)) == [(1, 0, 50), (2, 10, 30)]


def test_streams_that_are_deleted_and_left_out_are_told_apart(cluster):
    cluster.change(c=[3, 300, 0, 4])
    _, end = read_up(reader("a,b,c", startingOffsets="earliest"))
    cluster.change(c=None)
    with pytest.raises(StreamChangedError) as raised:
        reader("a").latestOffset(end, ALL)
    assert "stream 3 (unnamed) up to offset 4" in str(raised.value)
    assert "stream 2 (b) up to offset 30, which the query no longer reads: it exists" in str(
        raised.value
    )
    _, after = read_up(reader("a", **GO_ON), json.loads(json.dumps(end)))
    assert (after["left_out"], nexts(after)) == ("2=30@200", {1: 50})
