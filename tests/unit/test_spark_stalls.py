"""Unavailable range servers: a query waits, leaves ranges out, logs it, and reads them later."""

from __future__ import annotations

import json

import pytest

from sbp_core.client import Reach, StreamInfo, UnavailableRange
from sbp_core.errors import ConnectError, RangeNotFoundError, StatusCode
from sbp_spark.row_schema import source_schema
from sbp_spark.streaming import stream_watch
from sbp_spark.streaming.stalls import PROBE_PAUSE_FACTOR, Stalls
from sbp_spark.streaming.stream_reader import SbpStreamReader
from tests.support.fake_streams import (
    ALL,
    nexts,
    positions,
    read_up,
    reader,
    spans,
    use_fake_cluster,
)

STREAMS = {1: StreamInfo(1, "a", 1, 0, 5), 2: StreamInfo(2, "b", 1, 0, 5)}


class Servers:
    """Two streams with a server each; those in `away` do not answer. Time passes in answers."""

    def __init__(self):
        self.now_s = 100.0
        self.away = {}
        self.asked = []
        self.probed = []
        self.probe_s = 0.0

    def reach(self, positions, *, timeout_ms, spared):
        found = {}
        for stream_id in positions:
            server = f"rs{stream_id}:1"
            error = spared.get(server) or self.away.get(server)
            if server not in spared:
                self.asked.append(server)
            away = (UnavailableRange(0, None, server, error),) if error else ()
            found[stream_id] = Reach(stream_id, 0, None if away else 9, away)
        return found

    def probe(self, endpoints, *, timeout_ms):
        self.probed += endpoints
        self.now_s += self.probe_s
        return {each: self.away[each] for each in endpoints if each in self.away}

    def sleep(self, wait_s):
        self.now_s += wait_s

    def stalls(self, stall_ms_max):
        return Stalls(
            stall_ms_max, clock=lambda: self.now_s, wall=lambda: self.now_s + 0.5, sleep=self.sleep
        )


@pytest.fixture
def servers():
    return Servers()


def look(stalls, servers):
    found = stalls.reach(servers, STREAMS, {1: 3})
    return {each: stalls.since_ms(at) for each, at in found.items() if at.unavailable}


def test_a_server_is_waited_for_once_and_then_left_out(servers, caplog):
    stalls = servers.stalls(5_000)
    assert look(stalls, servers) == {}
    servers.away["rs2:1"] = ConnectError("refused")
    assert look(stalls, servers) == {2: 100_500}
    assert servers.now_s == pytest.approx(105)
    assert "range server rs2:1 is down error=refused; waiting for it, at most 5 s" in caplog.text
    assert "range server rs2:1 is down for more than 5 s error=refused stalled=1" in caplog.text
    assert "b (2)" in caplog.text
    for _ in range(3):
        assert look(stalls, servers) == {2: 100_500}
    assert servers.now_s == pytest.approx(105)
    assert len(caplog.records) == 2
    del servers.away["rs2:1"]
    assert look(stalls, servers) == {}
    assert "rs2:1 is back, or no longer needed, after 5 s" in caplog.text
    assert len(caplog.records) == 3


def test_a_server_that_is_back_soon_is_not_left_out(servers, caplog):
    stalls = servers.stalls(5_000)
    servers.away["rs2:1"] = ConnectError("refused")

    def sleep(wait_s):
        servers.now_s += wait_s
        if servers.now_s > 103:
            servers.away.clear()

    stalls._sleep = sleep
    assert look(stalls, servers) == {}
    away, back = (record.getMessage() for record in caplog.records)
    assert away.startswith("range server rs2:1 is down error=refused; waiting for it")
    assert "is back" in back


def test_a_silent_server_costs_a_tenth_of_the_time_at_most(servers):
    stalls = servers.stalls(1_000)
    servers.away["rs2:1"] = ConnectError("refused")
    look(stalls, servers)
    servers.probe_s = 1.0
    servers.asked.clear()
    began_s = servers.now_s
    for _ in range(200):
        servers.now_s += 0.5
        look(stalls, servers)
    waited_s = len(servers.probed) * servers.probe_s
    assert 1 < waited_s <= (servers.now_s - began_s) / PROBE_PAUSE_FACTOR
    assert set(servers.asked) == {"rs1:1"}


def test_one_that_answers_probes_only_is_not_waited_for_again(servers, caplog):
    stalls = servers.stalls(1_000)
    servers.away["rs2:1"] = ConnectError("refused")
    look(stalls, servers)
    now_s = servers.now_s
    servers.probe = lambda endpoints, timeout_ms: {}
    assert look(stalls, servers) == {2: 100_500}
    assert servers.now_s == now_s
    assert len(caplog.records) == 2


def test_one_that_refuses_is_asked_every_time(servers):
    stalls = servers.stalls(1_000)
    servers.away["rs2:1"] = RangeNotFoundError(StatusCode.RANGE_NOT_FOUND, "what range?")
    look(stalls, servers)
    servers.asked.clear()
    look(stalls, servers)
    assert servers.asked == ["rs1:1", "rs2:1"]
    assert not servers.probed


@pytest.fixture
def cluster(monkeypatch):
    """Stream 1, a, holds [0, 50), stream 2, b, [10, 30); a server that is down is given up."""
    monkeypatch.setattr(
        stream_watch, "Stalls", lambda stall_ms_max, sleep: Stalls(0, sleep=lambda _: None)
    )
    return use_fake_cluster(monkeypatch)


def stalling(streams="a,b", **options):
    return reader(streams, maxRangeStall="30s", **{"startingOffsets": "earliest"} | options)


def test_a_stalled_stream_stays_where_it_is_and_catches_up(cluster, caplog):
    query = stalling()
    read, end = read_up(query)
    cluster.away = {2}
    cluster.streams["a"][3], cluster.streams["b"][3] = 60, 40
    more, later = read_up(query, end)
    assert more == [(1, 50, 60)]
    assert later["stalled"].keys() == {"2"}
    assert nexts(later) == {1: 60, 2: 30}
    assert query.reportLatestOffset()["stalled"].keys() == {"2"}
    assert query.latestOffset(later, ALL) == later
    restarted = stalling()
    assert restarted.latestOffset(later, ALL) == later
    cluster.away = set()
    last, at = read_up(restarted, later)
    assert last == [(2, 30, 40)]
    assert "stalled" not in at
    assert read == [(1, 0, 50), (2, 10, 30)]
    assert caplog.text.count("is down") == 2


def test_a_query_that_runs_goes_on_without_the_option_and_one_that_starts_fails(cluster):
    query = reader("a,b", startingOffsets="earliest")
    read, end = read_up(query)
    assert read == [(1, 0, 50), (2, 10, 30)]
    cluster.away = {2}
    cluster.streams["a"][3], cluster.streams["b"][3] = 60, 40
    more, later = read_up(query, end)
    assert more == [(1, 50, 60)]
    assert later["stalled"].keys() == {"2"}
    with pytest.raises(ConnectError):
        reader("a,b").latestOffset(later, ALL)
    run_once = reader("a,b")
    with pytest.raises(ConnectError):
        run_once.prepareForTriggerAvailableNow()
    cluster.away = set()
    last, at = read_up(query, later)
    assert last == [(2, 30, 40)]
    assert "stalled" not in at
    cluster.away = {1}
    assert query.latestOffset(at, ALL) == at
    assert query.reportLatestOffset()["stalled"].keys() == {"1"}


def test_a_stall_alone_is_no_micro_batch(cluster):
    query = stalling()
    _, end = read_up(query)
    text = json.dumps(end)
    for away in ({2}, {1, 2}, set(), {1}):
        cluster.away = away
        assert json.dumps(query.latestOffset(end, ALL)) == text
    assert query.reportLatestOffset()["stalled"].keys() == {"1"}


@pytest.mark.parametrize(
    ("starting", "read"), [("earliest", [(2, 10, 40)]), ("-5", [(2, 35, 40)]), ("latest", [])]
)
def test_a_start_that_cannot_be_resolved_is_resolved_later(cluster, starting, read):
    cluster.away = {2}
    query = stalling(startingOffsets=starting)
    _, end = read_up(query)
    assert nexts(end) == {1: 50}
    assert end["stalled"].keys() == {"2"}
    cluster.streams["b"][3] = 40
    assert query.latestOffset(end, ALL) == end
    cluster.away = set()
    # Whether the process is the same one makes no difference, nor does the option later on.
    for later in (query, stalling(startingOffsets=starting), reader(startingOffsets=starting)):
        found, last = read_up(later, end)
        assert found == read
        assert nexts(last) == {1: 50, 2: 40}
    cluster.streams["b"][3] = 41
    assert read_up(query, last)[0] == [(2, 40, 41)]


def test_a_start_by_stream_is_resolved_later_whatever_joined(cluster):
    cluster.away = {2}
    options = {"startingOffsets": '{"a": 40, "b": 29}'}
    given = {"endpoint": "h:1", "streamsPattern": ".*", "maxRangeStall": "30s", **options}
    given["failOnDataLoss"] = "false"
    query = SbpStreamReader(given, source_schema(include_headers=False))
    _, end = read_up(query)
    cluster.change(c=[3, 300, 0, 4], a=None)
    cluster.away = set()
    assert read_up(query, end)[0] == [(2, 29, 30), (3, 0, 4)]


def test_a_query_whose_streams_are_all_away_begins_when_they_are_back(cluster):
    cluster.away = {1, 2}
    query = stalling(startingOffsets="latest")
    end = query.latestOffset(query.initialOffset(), ALL)
    assert list(query.partitions(query.initialOffset(), end)) == []
    assert query.latestOffset(end, ALL) == end
    cluster.change(c=[3, 300, 0, 4])
    cluster.away = {2}
    assert read_up(stalling("a,b,c", startingOffsets="-3"), end)[0] == [(1, 47, 50), (3, 1, 4)]


def test_a_stream_that_is_added_while_its_server_is_away_starts_as_it_was_asked_for(cluster):
    _, end = read_up(stalling("a"))
    cluster.away = {2}
    query = stalling(startingOffsets="-5")
    assert query.latestOffset(end, ALL) == end
    cluster.away = set()
    assert read_up(query, end)[0] == [(2, 25, 30)]


def test_a_stream_that_comes_back_while_its_server_is_away_waits_for_it(cluster):
    _, end = read_up(stalling())
    _, end = read_up(stalling("b", failOnDataLoss="false"), end)
    cluster.streams["a"][3] = 60
    cluster.away = {1}
    query = stalling(failOnDataLoss="false")
    assert read_up(query, end) == ([], end)
    cluster.away = set()
    assert read_up(query, end)[0] == [(1, 50, 60)]


def test_an_end_at_the_tail_is_found_when_the_server_is_back(cluster):
    cluster.away = {2}
    query = stalling(endingOffsets="latest")
    _, end = read_up(query)
    assert positions(end)[1].end_offset == 50
    cluster.away, cluster.streams["b"][3] = set(), 45
    read, end = read_up(query, end)
    assert read == [(2, 10, 45)]
    cluster.streams["b"][3] = 99
    assert query.latestOffset(end, ALL) == end


def test_an_end_that_is_asked_for_later_is_not_taken_from_where_reading_stopped(cluster):
    _, end = read_up(stalling())
    cluster.away = {2}
    query = stalling(endingOffsets="latest")
    _, end = read_up(query, end)
    assert positions(end)[2].end_offset is None
    cluster.away, cluster.streams["b"][3] = set(), 45
    assert read_up(query, end)[0] == [(2, 30, 45)]


def test_an_end_that_is_known_stays_while_the_server_is_away(cluster):
    query = stalling(endingOffsets="latest", maxRecordsPerTrigger="10")
    limit = query.getDefaultReadLimit()
    end = query.latestOffset(query.initialOffset(), limit)
    cluster.away = {2}
    later = query.latestOffset(end, limit)
    assert positions(later)[2] == positions(end)[2]
    assert positions(later)[2].end_offset == 30


def test_available_now_ends_without_what_is_stalled_and_the_next_run_reads_it(cluster):
    _, end = read_up(stalling())
    cluster.streams["a"][3], cluster.streams["b"][3] = 60, 40
    cluster.away = {2}
    query = stalling()
    query.prepareForTriggerAvailableNow()
    read, end = read_up(query, end)
    assert read == [(1, 50, 60)]
    cluster.away = set()
    assert query.latestOffset(end, ALL) == end
    again = stalling()
    again.prepareForTriggerAvailableNow()
    assert read_up(again, end)[0] == [(2, 30, 40)]


def test_a_batch_that_was_planned_is_not_changed(cluster):
    query = stalling()
    begin = query.initialOffset()
    end = query.latestOffset(begin, ALL)
    cluster.away = {1, 2}
    for planner in (query, stalling()):
        assert spans(planner.partitions(begin, end)) == [(1, 0, 50), (2, 10, 30)]


def test_a_sealed_range_on_a_server_that_is_away_is_read_up_to(cluster):
    def away_in_the_middle(positions, *, timeout_ms, spared):
        gone = UnavailableRange(20, 35, "h:2", ConnectError("scripted"))
        ahead = (gone,) if cluster.is_away and (positions[1] or 0) < 35 else ()
        return {1: Reach(1, 0, 50, ahead)}

    cluster.reach, cluster.is_away = away_in_the_middle, False
    cluster.probe = lambda endpoints, timeout_ms: {}
    query = stalling("a", startingOffsets='{"a": 7}', maxRecordsPerTrigger="3")
    _, end = query, query.latestOffset(query.initialOffset(), query.getDefaultReadLimit())
    assert nexts(end) == {1: 10}
    cluster.is_away = True
    read, end = read_up(query, end)
    assert read == [(1, 10, 20)]
    assert end["stalled"].keys() == {"1"}
    assert nexts(query.reportLatestOffset()) == {1: 50}
    cluster.is_away = False
    read, end = read_up(query, end)
    assert read == [(1, 20, 50)]
    assert "stalled" not in end


def test_a_sealed_range_behind_the_start_does_not_count(cluster):
    gone = UnavailableRange(0, 35, "h:2", ConnectError("scripted"))
    cluster.reach = lambda positions, **_: {1: Reach(1, 0, 50, (gone,))}
    query = stalling("a", startingOffsets="-10")
    read, end = read_up(query)
    assert read == [(1, 40, 50)]
    assert "stalled" not in end


def test_trimmed_records_are_logged_while_the_server_is_down(cluster):
    query = stalling(failOnDataLoss="report")
    _, end = read_up(query)
    cluster.away = {2}
    cluster.streams["b"][2:] = [35, 40]
    end = query.latestOffset(end, ALL)
    assert end["lost"] == {"2": [[30, 35]]}
    assert nexts(end)[2] == 35


def test_a_stalled_stream_that_is_left_out_and_named_again_goes_on_from_where_it_was(cluster):
    """Its start was decided long ago: it is no stream of the query's start any more."""
    _, end = read_up(stalling())
    cluster.away = {1}
    cluster.streams["b"][3] = 40
    _, end = read_up(stalling(), end)
    assert end["stalled"].keys() == {"1"}
    options = {"startingOffsets": "latest", "failOnDataLoss": "false"}
    _, end = read_up(stalling("b", **options), end)
    assert "stalled" not in end
    cluster.away = set()
    cluster.streams["a"][3] = 55
    assert read_up(stalling(**options), end)[0] == [(1, 50, 55)]
