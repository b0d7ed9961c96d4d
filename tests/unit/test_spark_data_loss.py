"""A streaming query whose records, or streams, are gone."""

from __future__ import annotations

import pytest

from sbp_core.client import StoreCommit
from sbp_core.errors import ConfigurationError
from sbp_spark.reading.losses import DataLossError
from sbp_spark.reading.offsets import StreamChangedError
from tests.support.fake_streams import ALL, nexts, read_up, reader, spans, use_fake_cluster


@pytest.fixture
def cluster(monkeypatch):
    return use_fake_cluster(monkeypatch)


def shown_for_a_while(cluster, looks, **shown):
    """Let the servers report stale or missing streams for the next `looks` requests."""
    right, bounds = cluster.streams, cluster.stream_bounds
    left = iter(range(looks))

    def stream_bounds(stream_ids):
        cluster.streams = (right | shown) if next(left, None) is not None else right
        cluster.streams = {name: at for name, at in cluster.streams.items() if at is not None}
        return bounds(stream_ids)

    cluster.stream_bounds = stream_bounds


@pytest.mark.parametrize("shown", [{"a": [1, 100, 0, 20]}, {"a": [1, 100, 0, 0]}, {"b": None}])
def test_metadata_that_lag_are_asked_for_again(cluster, shown):
    query = reader(startingOffsets="earliest")
    end = query.latestOffset(query.initialOffset(), ALL)
    cluster.streams["b"][3] = 31
    shown_for_a_while(cluster, 3, **shown)
    assert nexts(query.latestOffset(end, ALL)) == {1: 50, 2: 31}


@pytest.mark.parametrize("policy", ["true", "false"])
def test_ranges_that_are_not_there_for_a_while_are_no_loss(cluster, caplog, policy):
    query = reader(startingOffsets="earliest", failOnDataLoss=policy)
    begin = query.initialOffset()
    end = query.latestOffset(begin, ALL)
    listed, empty = cluster.list_ranges, iter([{1: (), 2: ()}] * 3)
    cluster.list_ranges = lambda ids, **_: next(empty, None) or listed(ids)
    assert spans(query.partitions(begin, end)) == [(1, 0, 50), (2, 10, 30)]
    assert caplog.text == ""


def test_a_stream_that_goes_back_is_an_error(cluster):
    query = reader(startingOffsets="earliest")
    end = query.latestOffset(query.initialOffset(), ALL)
    cluster.streams["a"][3] = 20
    with pytest.raises(StreamChangedError, match=r"stream 1 \(a\) went backwards: .* 50, .* 20;"):
        query.latestOffset(end, ALL)


def test_a_stream_that_goes_back_is_waited_for_if_nothing_is_to_fail(cluster, caplog):
    query = reader(startingOffsets="earliest", failOnDataLoss="false")
    end = query.latestOffset(query.initialOffset(), ALL)
    cluster.streams["a"][3] = 20
    for _ in range(3):
        assert query.latestOffset(end, ALL) == end
    assert caplog.text.count("records that are appended at the offsets [20, 50)") == 1
    cluster.streams["a"][3] = 55
    assert nexts(query.latestOffset(end, ALL)) == {1: 55, 2: 30}


FIRST, SECOND, OTHER = StoreCommit(5, "0-a"), StoreCommit(9, "0-a"), StoreCommit(30, "0-b")


def put_back(cluster):
    """The metadata lose their last commit, and are overtaken by others; so is stream a."""
    cluster.commits_had = [FIRST, OTHER]
    cluster.streams["a"][3] = 90


@pytest.mark.parametrize("is_restarted", [False, True])
def test_metadata_that_were_put_back_and_overtaken_are_an_error(cluster, is_restarted):
    cluster.commits_had = [FIRST, SECOND]
    query = reader(startingOffsets="earliest")
    begin = query.initialOffset()
    end = query.latestOffset(begin, ALL)
    assert (end["store_commit"], end["store_life"], end["version"]) == (*SECOND, 3)
    put_back(cluster)
    query = reader() if is_restarted else query
    for _ in range(2):
        with pytest.raises(
            StreamChangedError, match=r"never had commit 9 of life 0-a, .*older copy"
        ):
            query.latestOffset(end, ALL)
    with pytest.raises(StreamChangedError, match="never had commit 9 of life 0-a"):
        reader().partitions(begin, end)


@pytest.mark.parametrize("policy", ["false", "report"])
def test_metadata_that_were_put_back_may_be_gone_on_with(cluster, caplog, policy):
    cluster.commits_had = [FIRST, SECOND]
    _, end = read_up(reader(startingOffsets="earliest"))
    put_back(cluster)
    options = {"failOnDataLoss": policy}
    read, after = read_up(reader(**options), end)
    assert read == [(1, 50, 90)]
    assert caplog.text.count("data loss: the placement driver's metadata never had commit 9") == 1
    assert (after["store_commit"], after["store_life"]) == OTHER
    assert "lost" not in after
    assert read_up(reader(), after) == ([], after)


def test_commits_that_were_made_since_are_no_news_and_are_asked_for_where_life_is_another(cluster):
    cluster.commits_had = [FIRST]
    query = reader(startingOffsets="earliest")
    _, end = read_up(query)
    cluster.commits_had.append(SECOND)
    assert query.latestOffset(end, ALL) == reader().latestOffset(end, ALL) == end
    assert cluster.commits_asked == []
    cluster.commits_had.append(OTHER)
    assert query.latestOffset(end, ALL) == reader().latestOffset(end, ALL) == end
    assert cluster.commits_asked == [SECOND, FIRST]
    assert query.latestOffset(end, ALL) == end
    assert len(cluster.commits_asked) == 2
    cluster.streams["a"][3] = 51
    moved = query.latestOffset(end, ALL)
    assert (moved["store_commit"], moved["store_life"]) == OTHER


def test_a_query_that_has_seen_a_commit_which_its_offset_lacks_misses_it(cluster):
    """The offset keeps the commit of the last micro-batch; a running query keeps the last one."""
    cluster.commits_had = [FIRST]
    query = reader(startingOffsets="earliest")
    _, end = read_up(query)
    cluster.commits_had.append(SECOND)
    assert query.latestOffset(end, ALL) == end
    put_back(cluster)
    with pytest.raises(StreamChangedError, match="never had commit 9"):
        query.latestOffset(end, ALL)


def test_commits_that_go_back_in_one_life_are_noticed(cluster):
    """As of a machine that was put back to a snapshot with all that ran on it."""
    cluster.commits_had = [FIRST, SECOND]
    query = reader(startingOffsets="earliest")
    _, end = read_up(query)
    cluster.commits_had = [FIRST]
    with pytest.raises(StreamChangedError, match="never had commit 9"):
        query.latestOffset(end, ALL)


def test_an_offset_without_a_commit_and_metadata_that_count_none(cluster, caplog):
    _, old = read_up(reader(startingOffsets="earliest"))
    assert (old["version"], cluster.commits_asked) == (2, [])
    cluster.commits_had = [FIRST]
    assert read_up(reader(), old) == ([], old)
    cluster.streams["a"][3] = 55
    _, new = read_up(reader(), old)
    assert (new["store_commit"], new["store_life"]) == FIRST
    cluster.commits_had = []
    cluster.streams["a"][3] = 60
    query = reader()
    _, later = read_up(query, new)
    assert query.latestOffset(later, ALL) == later
    assert (later["store_commit"], later["store_life"]) == FIRST
    assert cluster.commits_asked == [FIRST]
    assert caplog.text == ""


def test_trimmed_offsets_are_data_loss(cluster):
    query = reader(startingOffsets="earliest")
    begin = query.initialOffset()
    end = query.latestOffset(begin, ALL)
    cluster.streams["a"][2] = 20
    with pytest.raises(DataLossError, match=r"stream 1 \(a\): \[0, 20\)"):
        query.partitions(begin, end)
    cluster.streams["a"][2:] = [70, 90]
    with pytest.raises(DataLossError, match=r"20 offsets are lost.*stream 1 \(a\): \[50, 70\)"):
        query.latestOffset(end, ALL)


def lost(offset):
    return offset.get("lost", {})


def test_lost_records_are_skipped_and_logged(cluster, caplog):
    query = reader("a", startingOffsets="earliest", failOnDataLoss="false")
    end = query.latestOffset(query.initialOffset(), ALL)
    cluster.streams["a"][2:] = [70, 90]
    read, last = read_up(query, end)
    assert (read, nexts(last), lost(last)) == ([(1, 70, 90)], {1: 90}, {})
    assert caplog.text.count("stream 1 (a): [50, 70)") == 1


def test_lost_records_are_reported_in_the_offset(cluster, caplog):
    options = {"failOnDataLoss": "report", "maxRecordsPerTrigger": "5"}
    query = reader("a", startingOffsets="earliest", failOnDataLoss="report")
    end = query.latestOffset(query.initialOffset(), ALL)
    cluster.streams["a"][2:] = [70, 90]
    limited = reader("a", **options)
    after = limited.latestOffset(end, limited.getDefaultReadLimit())
    assert (nexts(after), lost(after)) == ({1: 75}, {"1": [[50, 70]]})
    assert spans(limited.partitions(end, after)) == [(1, 70, 75)]
    assert caplog.text.count("stream 1 (a): [50, 70)") == 1
    assert lost(read_up(limited, after)[1]) == {}


def test_a_loss_that_is_found_at_planning_is_reported_in_the_next_offset(cluster):
    query = reader("a", startingOffsets="earliest", failOnDataLoss="report")
    begin = query.initialOffset()
    end = query.latestOffset(begin, ALL)
    cluster.streams["a"][2] = 20
    assert spans(query.partitions(begin, end)) == [(1, 20, 50)]
    after = query.latestOffset(end, ALL)
    assert lost(after) == {"1": [[0, 20]]}
    assert query.partitions(end, after) == []
    assert query.latestOffset(after, ALL) == after


@pytest.mark.parametrize("policy", ["false", "report"])
def test_a_stream_that_was_created_again_is_read_as_a_new_one(cluster, caplog, policy):
    query = reader("a,b", startingOffsets="earliest", failOnDataLoss=policy)
    end = query.latestOffset(query.initialOffset(), ALL)
    cluster.change(b=[3, 300, 0, 5])
    after = query.latestOffset(end, ALL)
    assert nexts(after) == {1: 50, 3: 5}
    assert lost(after) == ({"2": [[30, None]]} if policy == "report" else {})
    assert spans(query.partitions(end, after)) == [(3, 0, 5)]
    assert "stream 2 (b): all from 30 on" in caplog.text
    assert query.latestOffset(after, ALL) == after


def test_a_logged_batch_whose_stream_is_gone(cluster, caplog):
    options = {"startingOffsets": "earliest"}
    query = reader("a,b", **options)
    begin = query.initialOffset()
    end = query.latestOffset(begin, ALL)
    cluster.change(b=None)
    with pytest.raises(StreamChangedError, match="has read stream 2"):
        reader("a", **options).partitions(begin, end)
    lenient = reader("a", failOnDataLoss="false", **options)
    assert spans(lenient.partitions(begin, end)) == [(1, 0, 50)]
    assert "stream 2 (unnamed): [10, 30)" in caplog.text


def test_a_start_that_was_trimmed(cluster):
    strict = reader("b", startingOffsets='{"b": 4}')
    with pytest.raises(ConfigurationError, match="b at 4"):
        strict.latestOffset(strict.initialOffset(), ALL)
    query = reader("b", startingOffsets='{"b": 4}', failOnDataLoss="report")
    begin = query.initialOffset()
    end = query.latestOffset(begin, ALL)
    assert lost(end) == {"2": [[4, 10]]}
    assert spans(query.partitions(begin, end)) == [(2, 10, 30)]
