"""A streaming query that starts, or ends, at a time."""

from __future__ import annotations

import json

import pytest

from sbp_core.errors import ConfigurationError
from sbp_spark.reading import locating
from sbp_spark.reading.offsets import StreamPosition
from sbp_spark.streaming import backlog
from tests.support.fake_streams import ALL, nexts, positions, read_up, reader, use_fake_cluster

NOW_MS = 1_000_000


@pytest.fixture
def clock(monkeypatch):
    """The driver's clock, in ms."""
    shown = [NOW_MS]
    for module in (locating, backlog):
        monkeypatch.setattr(module, "wall_ms", lambda: shown[0])
    return shown


@pytest.fixture
def cluster(monkeypatch, clock):
    """A record per second in each stream, the first one of both 50 s ago."""
    fake = use_fake_cluster(monkeypatch)
    fake.times = {each: [950_000 + 1000 * n for n in range(200)] for each in (1, 2)}
    return fake


def at(seconds):
    return str(950_000 + 1000 * seconds)


def test_a_start_by_time_is_one_call_and_travels_in_the_first_end(cluster):
    read, end = read_up(reader(startingTimestamp=at(20)))
    assert read == [(1, 20, 50), (2, 20, 30)]
    assert cluster.lookups == [{1: 970_000_000, 2: 970_000_000}]
    cluster.streams["a"][3] = 60
    assert read_up(reader(startingTimestamp=at(20)), end)[0] == [(1, 50, 60)]
    assert len(cluster.lookups) == 1


def test_starts_by_stream(cluster):
    times = json.dumps({"a": int(at(40)), "2": "1970-01-01T00:16:15"})
    assert read_up(reader(startingOffsetsByTimestamp=times))[0] == [(1, 40, 50), (2, 25, 30)]
    assert cluster.lookups == [{1: 990_000_000, 2: 975_000_000}]
    wrong = reader(startingOffsetsByTimestamp='{"a": 1}')
    with pytest.raises(ConfigurationError, match="option startingOffsetsByTimestamp leaves out b"):
        wrong.latestOffset(wrong.initialOffset(), ALL)


def test_a_start_past_the_end_is_an_error_or_the_tail(cluster):
    late = reader(startingTimestamp=at(30))
    with pytest.raises(ConfigurationError) as raised:
        late.latestOffset(late.initialOffset(), ALL)
    told = "option startingTimestamp is past the end of b, whose last record is before 980000"
    assert told in str(raised.value)
    assert "startingOffsetsByTimestampStrategy" in str(raised.value)
    lenient = {"startingTimestamp": at(30), "startingOffsetsByTimestampStrategy": "latest"}
    read, end = read_up(reader(**lenient))
    assert read == [(1, 30, 50)]
    assert positions(end)[2] == StreamPosition(2, 200, 30, base_offset=30)
    cluster.streams["b"][3] = 32
    assert read_up(reader(**lenient), end)[0] == [(2, 30, 32)]


def test_records_appended_while_a_start_is_looked_up_are_not_skipped(cluster):
    """The tail moved between the two questions: records before the lookup are after the start."""
    looked_up = cluster.lookup_offsets

    def lookup_offsets(timestamps, **options):
        cluster.streams["a"][3] += 5
        return looked_up(timestamps, **options)

    cluster.lookup_offsets = lookup_offsets
    query = reader("a", startingTimestamp=at(53), startingOffsetsByTimestampStrategy="latest")
    assert positions(query.latestOffset(query.initialOffset(), ALL))[1].base_offset == 50


def test_a_relative_start_is_resolved_once(cluster, clock):
    query = reader(startingTimestamp="-25s")
    begin = query.initialOffset()
    end = query.latestOffset(begin, ALL)
    assert {each: at.base_offset for each, at in positions(end).items()} == {1: 25, 2: 25}
    clock[0] += 3_600_000
    cluster.streams["a"][3] = 55
    again = reader(startingTimestamp="-25s")
    assert nexts(again.latestOffset(end, ALL)) == {1: 55, 2: 30}
    assert read_up(again, end)[0] == [(1, 50, 55)]
    assert len(cluster.lookups) == 1


def test_a_relative_start_needs_no_record_unless_it_is_said(cluster):
    assert read_up(reader(startingTimestamp="-5s"))[0] == [(1, 45, 50)]
    strict = reader(startingTimestamp="-5s", startingOffsetsByTimestampStrategy="error")
    with pytest.raises(ConfigurationError, match="past the end of b"):
        strict.latestOffset(strict.initialOffset(), ALL)


def test_an_end_by_time_is_waited_for_and_kept(cluster):
    options = {"startingOffsets": "earliest", "endingTimestamp": at(40)}
    read, end = read_up(reader(**options))
    assert read == [(1, 0, 40), (2, 10, 30)]
    assert positions(end)[1].end_offset == 40
    assert positions(end)[2].end_offset is None
    assert {at.end_time_ms for at in positions(end).values()} == {990_000}
    query = reader(**options)
    asked = len(cluster.lookups)
    assert query.latestOffset(end, ALL) == end
    assert len(cluster.lookups) == asked
    cluster.streams["b"][3] = 38
    read, end = read_up(query, end)
    assert read == [(2, 30, 38)]
    cluster.streams["b"][3] = 50
    read, end = read_up(query, end)
    assert read == [(2, 38, 40)]
    assert all(set(times) == {2} for times in cluster.lookups[asked:])
    cluster.streams["b"][3] = 90
    assert read_up(query, end)[0] == []


def test_an_end_does_not_move_when_it_is_trimmed(cluster):
    options = {"startingOffsets": "earliest", "endingTimestamp": at(40)}
    query = reader("a", maxRecordsPerTrigger="15", failOnDataLoss="report", **options)
    end = query.latestOffset(query.initialOffset(), query.getDefaultReadLimit())
    cluster.streams["a"][2] = 45
    read, end = read_up(query, end)
    assert read == []
    assert nexts(end)[1] == 40
    assert end["lost"] == {"1": [[15, 40]]}


def test_another_end_by_time_is_looked_up_at_a_restart(cluster):
    start = {"startingOffsets": "earliest"}
    _, end = read_up(reader("a", endingTimestamp=at(20), **start))
    read, end = read_up(reader("a", endingTimestamp=at(30), **start), end)
    assert read == [(1, 20, 30)]
    read, end = read_up(reader("a", endingOffsets="latest", **start), end)
    assert read == [(1, 30, 50)]
    cluster.streams["a"][3] = 60
    read, end = read_up(reader("a", endingTimestamp=at(55), **start), end)
    assert read == [(1, 50, 55)]
    assert read_up(reader("a", **start), end)[0] == [(1, 55, 60)]


def test_a_relative_end_is_resolved_once_for_all_streams_of_the_query(cluster, clock):
    options = {"startingOffsets": "earliest", "endingTimestamp": "-5s"}
    read, end = read_up(reader("a", **options))
    assert read == [(1, 0, 45)]
    clock[0] += 20_000
    cluster.change(b=[2, 200, 10, 60])
    read, end = read_up(reader("a,b", **options), end)
    assert read == [(2, 10, 45)]
    assert {at.end_time_ms for at in positions(end).values()} == {995_000}


def test_a_clock_that_is_set_back_does_not_move_the_end(cluster):
    """Another server, say, goes on with the stream, and its clock is behind."""
    cluster.times[1][42:] = [900_000] * 8
    assert read_up(reader("a", startingOffsets="earliest", endingTimestamp=at(40)))[0] == [
        (1, 0, 40)
    ]
    assert read_up(reader("a", startingTimestamp=at(40)))[0] == [(1, 40, 50)]


def test_available_now_ends_at_the_tail_though_the_time_has_not_come(cluster):
    options = {"startingOffsets": "earliest", "endingTimestamp": at(55)}
    query = reader("a", **options)
    query.prepareForTriggerAvailableNow()
    read, end = read_up(query)
    assert read == [(1, 0, 50)]
    cluster.streams["a"][3] = 60
    later = reader("a", **options)
    later.prepareForTriggerAvailableNow()
    assert read_up(later, end)[0] == [(1, 50, 55)]


MIDDLE = [(0, 10, "rs1:1"), (10, 20, "rs9:1"), (20, None, "rs1:1")]


def test_a_start_by_time_waits_for_all_servers_of_the_stream(cluster):
    cluster.away, cluster.placed[1] = {"rs9:1"}, MIDDLE
    query = reader(startingTimestamp=at(15), maxRangeStall="1ms")
    read, end = read_up(query)
    assert read == [(2, 15, 30)]
    assert cluster.lookups == [{2: 965_000_000}], "a server that is down is not asked for times"
    assert list(end["stalled"]) == ["1"]
    cluster.away = set()
    assert read_up(query, end)[0] == [(1, 15, 50)]


def test_an_end_by_time_that_a_server_away_may_have_is_not_passed(cluster):
    cluster.away, cluster.placed[1] = {"rs9:1"}, MIDDLE
    query = reader(endingTimestamp=at(15), startingOffsets="earliest", maxRangeStall="1ms")
    read, end = read_up(query)
    assert read == [(2, 10, 15)]
    assert end["stalled"].keys() == {"1"}
    cluster.away = set()
    assert read_up(query, end)[0] == [(1, 0, 15)]


def test_a_server_of_what_was_read_does_not_matter_to_an_end_by_time(cluster):
    cluster.placed[1] = [(0, 50, "rs9:1"), (50, None, "rs1:1")]
    options = {"endingTimestamp": at(60), "startingOffsets": "earliest", "maxRangeStall": "1ms"}
    query = reader(**options)
    _, end = read_up(query)
    cluster.away = {"rs9:1"}
    cluster.streams["a"][3] = cluster.streams["b"][3] = 55
    read, end = read_up(query, end)
    assert read == [(1, 50, 55), (2, 30, 55)]
    cluster.streams["a"][3] = 70
    again = reader(**options)
    again.prepareForTriggerAvailableNow()
    read, end = read_up(again, end)
    assert read == [(1, 55, 60)]
    assert "stalled" not in end


def dying_at_lookups(cluster, *servers):
    """These servers answer looks, and go away before they are asked for times."""
    looked_up = cluster.lookup_offsets

    def lookup_offsets(timestamps, **options):
        before, cluster.away = cluster.away, {*cluster.away, *servers}
        found = looked_up(timestamps, **options)
        cluster.away = before
        return found

    cluster.lookup_offsets = lookup_offsets
    return looked_up


def test_a_server_that_dies_at_a_lookup_holds_up_its_own_streams_only(cluster, clock):
    options = {"startingTimestamp": at(15), "endingTimestamp": at(25), "maxRangeStall": "1ms"}
    alive = dying_at_lookups(cluster, "rs1:1")
    query = reader(**options)
    read, end = read_up(query)
    assert read == [(2, 15, 25)]
    assert end["stalled"] == {"1": NOW_MS}
    clock[0] += 1000
    assert query.latestOffset(end, ALL) == end
    cluster.lookup_offsets = alive
    read, end = read_up(query, end)
    assert read == [(1, 15, 25)]
    assert "stalled" not in end
    dying_at_lookups(cluster, "rs1:1")
    later = reader(**options | {"endingTimestamp": at(28)})
    read, end = read_up(later, end)
    assert read == [(2, 25, 28)]
    assert list(end["stalled"]) == ["1"]


def test_a_relative_start_that_was_waited_for_counts_from_when_the_query_began(cluster, clock):
    dying_at_lookups(cluster, "rs1:1")
    options = {"startingTimestamp": "-25s", "maxRangeStall": "1ms"}
    _, end = read_up(reader(**options))
    clock[0] += 60_000
    cluster.streams["b"][3] = 40
    _, end = read_up(reader(**options), end)
    assert end["stalled"] == {"1": NOW_MS}
    del cluster.lookup_offsets
    assert read_up(reader(**options), end)[0] == [(1, 25, 50)]


def test_a_time_past_the_end_of_a_late_stream_is_its_tail_with_a_warning(cluster, caplog):
    cluster.away = {2}
    query = reader(startingTimestamp=at(35), maxRangeStall="1ms")
    read, end = read_up(query)
    assert read == [(1, 35, 50)]
    cluster.away = set()
    read, end = read_up(query, end)
    assert read == []
    assert nexts(end) == {1: 50, 2: 30}
    assert "startingTimestamp is past the end of b, whose last record is before 985000" in (
        caplog.text
    )
    cluster.streams["b"][3] = 31
    assert read_up(query, end)[0] == [(2, 30, 31)]
