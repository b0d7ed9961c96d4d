"""Cursors and trims that a streaming query sends once Spark has committed."""

from __future__ import annotations

import json
import logging
import threading

import pytest

from sbp_core.errors import InvalidRequestError, StatusCode
from sbp_spark.options.source import CommitOptions, parse_source_options
from sbp_spark.streaming.commits import Commits
from tests.support.fake_streams import ALL, read_up, reader, spans, use_fake_cluster
from tests.support.spark import GOOD, faults, only_fault, source

START = {"startingOffsets": "earliest"}


@pytest.fixture
def cluster(monkeypatch):
    return use_fake_cluster(monkeypatch)


def committing_reader(cluster, streams="a,b", *, wait_s=60, pacing=None, **options):
    """A reader from the first record on, that waits for each commit unless `wait_s` is short."""
    query = reader(streams, **START | options)
    run = query._run
    run.commits = Commits(cluster, run.options.commits, wait_s=wait_s, **(pacing or {}))
    return query


def next_batch(query, start):
    """Do what Spark does for one micro-batch that reads everything: its offset, and its spans."""
    end = query.latestOffset(start, ALL)
    if end == start:
        return end, []
    if "initial" not in start:
        query.commit(start)
    return json.loads(json.dumps(end)), spans(query.partitions(start, end))


def test_options():
    assert source().commits == CommitOptions()
    options = source(group="nightly.1", trimOnCommit="TRUE")
    assert options.commits == CommitOptions("nightly.1", is_trimming=True)
    for wrong in ("", "a b", "a/b", "x" * 250):
        assert only_fault(group=wrong).startswith("  - group is")
    assert "trimOnCommit is 'yes'" in only_fault(trimOnCommit="yes")


def test_a_batch_has_no_progress():
    given = {**GOOD, "group": "nightly", "trimOnCommit": "true"}
    first, second = faults(given, streaming=False)
    assert "group is given in a batch read" in first
    assert "startingOffsets" in first
    assert "trimOnCommit is given in a batch read" in second
    parse_source_options(given, streaming=None)


def test_nothing_is_sent_unless_it_is_asked_for(cluster):
    query = committing_reader(cluster)
    end, _ = next_batch(query, query.initialOffset())
    cluster.streams["a"][3] = 60
    end, _ = next_batch(query, end)
    next_batch(query, end)
    assert (cluster.commits, cluster.trims) == ([], [])


def test_cursors_follow_the_batches_that_are_done(cluster):
    query = committing_reader(cluster, group="nightly")
    end, read = next_batch(query, query.initialOffset())
    assert read
    assert cluster.commits == []
    end, read = next_batch(query, end)
    assert read == []
    assert cluster.cursors == {"nightly": {1: 50, 2: 30}}
    cluster.streams["a"][3] = 60
    end, _ = next_batch(query, end)
    assert cluster.cursors["nightly"][1] == 50
    next_batch(query, end)
    next_batch(query, end)
    assert cluster.commits == [{1: 50, 2: 30}, {1: 60}]
    assert cluster.trims == []


def test_a_restart_tells_what_was_not_told_any_more(cluster):
    query = committing_reader(cluster, group="nightly")
    end, _ = next_batch(query, query.initialOffset())
    restarted = committing_reader(cluster, group="nightly")
    restarted.latestOffset(end, ALL)
    assert cluster.cursors == {"nightly": {1: 50, 2: 30}}


def test_only_what_was_committed_is_trimmed_and_a_restart_reads_the_rest(cluster):
    query = committing_reader(cluster, trimOnCommit="true")
    first, _ = next_batch(query, query.initialOffset())
    next_batch(query, first)
    assert cluster.trims == []
    cluster.streams["a"][3] = 60
    second, read = next_batch(query, first)
    assert read == [(1, 50, 60)]
    assert cluster.trims == [{1: 50, 2: 30}]
    # The batch was logged, but not committed: it is planned again.
    restarted = committing_reader(cluster, trimOnCommit="true")
    assert spans(restarted.partitions(first, second)) == read
    cluster.streams["b"][3] = 31
    _, read = next_batch(restarted, second)
    assert read == [(2, 30, 31)]
    assert cluster.trims == [{1: 50, 2: 30}, {1: 60}]


def test_nothing_is_trimmed_before_its_cursor_is_set(cluster):
    query = committing_reader(cluster, pacing={"pause_s": 0}, trimOnCommit="true", group="nightly")
    end, _ = next_batch(query, query.initialOffset())
    cluster.commit_cursors, works = fail_with("the disk is full"), cluster.commit_cursors
    cluster.streams["a"][3] = 60
    end, _ = next_batch(query, end)
    wait_for_the_attempt(query)
    assert cluster.trims == []
    cluster.commit_cursors = works
    query.latestOffset(end, ALL)
    wait_for_the_attempt(query)
    assert cluster.cursors == {"nightly": {1: 60, 2: 30}}
    assert cluster.trims == [{1: 50, 2: 30}]


def fail_with(message):
    def fail(*_):
        raise InvalidRequestError(StatusCode.INVALID_REQUEST, message)

    return fail


def test_an_outage_is_logged_once_and_over_when_it_is_over(cluster, caplog):
    caplog.set_level(logging.INFO)
    query = committing_reader(cluster, pacing={"pause_s": 0}, group="nightly", trimOnCommit="true")
    end, _ = next_batch(query, query.initialOffset())
    cluster.fails = InvalidRequestError(StatusCode.INVALID_REQUEST, "the disk is full")
    for tail in (60, 70, 80):
        cluster.streams["a"][3] = tail
        end, read = next_batch(query, end)
        wait_for_the_attempt(query)
        assert read == [(1, tail - 10, tail)]
    (told,) = messages(caplog)
    assert told.startswith("cannot set the cursors of group nightly error=the disk is full")
    assert told.endswith("the query continues")
    cluster.fails = None
    next_batch(query, end)
    wait_for_the_attempt(query)
    assert cluster.cursors == {"nightly": {1: 80, 2: 30}}
    assert messages(caplog)[1:] == ["recovered: can set the cursors of group nightly again"]


def messages(caplog):
    return [record.getMessage() for record in caplog.records]


def wait_for_the_attempt(query):
    for teller in (query._run.commits._cursors, query._run.commits._trimming):
        if teller is not None and teller._thread is not None:
            teller._thread.join()


def test_cursors_do_not_wait_for_a_trim(cluster):
    answers, begun = threading.Event(), threading.Event()

    def trim_streams(offsets):
        begun.set()
        answers.wait()

    cluster.trim_streams = trim_streams
    query = committing_reader(cluster, wait_s=0.01, group="nightly", trimOnCommit="true")
    end, _ = next_batch(query, query.initialOffset())
    for tail in (60, 70, 80):
        cluster.streams["a"][3] = tail
        end, _ = next_batch(query, end)
        query._run.commits._cursors._thread.join()
    next_batch(query, end)
    query._run.commits._cursors._thread.join()
    assert begun.is_set()
    assert cluster.cursors == {"nightly": {1: 80, 2: 30}}
    answers.set()
    wait_for_the_attempt(query)


def test_stalled_streams_are_not_trimmed(cluster):
    query = committing_reader(cluster, trimOnCommit="true", maxRangeStall="1ms")
    end, _ = next_batch(query, query.initialOffset())
    cluster.away, cluster.streams["a"][3] = {2}, 60
    end, _ = next_batch(query, end)
    assert cluster.trims == [{1: 50}]
    cluster.away, cluster.streams["a"][3] = set(), 70
    next_batch(query, end)
    assert cluster.trims == [{1: 50}, {1: 60, 2: 30}]


def test_a_fault_of_any_kind_is_logged_and_paused_after(cluster, caplog):
    query = committing_reader(cluster, group="nightly")
    end, _ = next_batch(query, query.initialOffset())
    cluster.fails = KeyError("a fault")
    for _ in range(3):
        query.latestOffset(end, ALL)
        wait_for_the_attempt(query)
    (record,) = caplog.records
    assert record.getMessage().startswith("cannot set the cursors of group nightly error='a fault'")
    assert record.exc_info


def test_a_failure_is_not_repeated_at_every_look(cluster):
    clock = [100.0]
    query = committing_reader(cluster, pacing={"clock": lambda: clock[0]}, group="nightly")
    end, _ = next_batch(query, query.initialOffset())
    asked = []

    def commit_cursors(group, offsets):
        asked.append(offsets)
        fail_with("the disk is full")()

    cluster.commit_cursors = commit_cursors
    for now_s in (100.0, 104.9, 105.0, 105.1):
        clock[0] = now_s
        query.latestOffset(end, ALL)
        wait_for_the_attempt(query)
    assert asked == [{1: 50, 2: 30}] * 2


def test_a_server_that_does_not_answer_holds_nothing_up(cluster):
    query = committing_reader(cluster, wait_s=0.01, group="nightly", trimOnCommit="true")
    end, _ = next_batch(query, query.initialOffset())
    answers, works, asked = threading.Event(), cluster.commit_cursors, []

    def commit_cursors(group, offsets):
        asked.append(offsets)
        answers.wait()
        works(group, offsets)

    cluster.commit_cursors = commit_cursors
    for tail in (60, 70):
        cluster.streams["a"][3] = tail
        end, read = next_batch(query, end)
        assert read == [(1, tail - 10, tail)]
    assert asked == [{1: 50, 2: 30}]
    answers.set()
    wait_for_the_attempt(query)
    next_batch(query, end)
    wait_for_the_attempt(query)
    assert cluster.cursors == {"nightly": {1: 70, 2: 30}}


def test_streams_that_are_gone_or_shorter_are_left_alone(cluster):
    options = {"group": "nightly", "trimOnCommit": "true", "failOnDataLoss": "false"}
    query = committing_reader(cluster, **options)
    end, _ = next_batch(query, query.initialOffset())
    cluster.change(a=[3, 300, 0, 9], b=[2, 200, 10, 20])
    end, read = next_batch(query, end)
    assert read == [(3, 0, 9)]
    assert cluster.trims == []
    cluster.streams["a"][3] = 11
    next_batch(query, end)
    assert cluster.trims == [{3: 9}]


def test_a_stream_that_was_created_again_is_not_trimmed_for_the_one_before(cluster):
    query = committing_reader(cluster, "a", trimOnCommit="true", failOnDataLoss="false")
    end, _ = next_batch(query, query.initialOffset())
    cluster.change(a=[1, 300, 0, 60])
    _, read = next_batch(query, end)
    assert read == [(1, 0, 60)]
    assert cluster.trims == []


def test_a_query_that_starts_at_its_own_group_continues_without_a_checkpoint(cluster):
    options = {"startingOffsets": "group:nightly", "group": "nightly", "trimOnCommit": "true"}
    assert read_up(committing_reader(cluster, **options))[0] == [(1, 0, 50), (2, 10, 30)]
    cluster.streams["a"][3] = 60
    assert read_up(committing_reader(cluster, **options))[0] == [(1, 50, 60)]
