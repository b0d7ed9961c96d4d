"""One producer for many streams, and commits of chosen offsets."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from sbp_core.errors import ConditionFailedError, ConfigurationError, NotFoundError, Outcome


@pytest.fixture
def names(sbp, request):
    made = [f"{request.node.name}-{each}" for each in range(3)]
    for each in made:
        sbp.create_stream(each)
    return made


def values(sbp, stream):
    return [each.value for each in sbp.consumer(stream)]


def test_one_worker_serves_all_streams_in_the_order_of_each(sbp, names):
    with sbp.producer(batch_records=7) as producer:
        deliveries = [producer.send(b"%d" % each, stream=names[each % 3]) for each in range(300)]
        workers = [each for each in threading.enumerate() if each.name == "sbp-deliveries"]
        assert len(workers) <= 1
        rows = producer.send_many([{"value": b"a"}, {"value": b"b"}], stream=names[0])
        assert rows.result() == 101
    assert [each.result() for each in deliveries] == [each // 3 for each in range(300)]
    assert values(sbp, names[0]) == [b"%d" % each for each in range(0, 300, 3)] + [b"a", b"b"]
    assert values(sbp, names[2]) == [b"%d" % each for each in range(2, 300, 3)]


def test_streams_of_any_kind_may_be_mixed(sbp, names):
    sbp.create_stream(f"{names[0]}-typed", schema=pa.schema([("id", pa.int64())]))
    with sbp.producer(names[0]) as producer:
        producer.send_many([{"id": 1}], stream=f"{names[0]}-typed")
        producer.send(b"own")
        producer.send(b"other", stream=names[1])
    (typed,) = sbp.consumer(f"{names[0]}-typed")
    assert typed.columns == {"id": 1}
    assert (values(sbp, names[0]), values(sbp, names[1])) == ([b"own"], [b"other"])


def test_a_stream_that_fails_leaves_the_others_alone(sbp, names, caplog):
    reports = []
    producer = sbp.producer(linger_ms=3_600_000, on_delivery=reports.append)
    producer.send(b"one", stream=names[0]).done()
    sbp.delete_stream(names[0])
    lost = producer.send(b"two", stream=names[0])
    kept = producer.send(b"three", stream=names[1])
    with pytest.raises(NotFoundError):
        producer.flush()
    assert kept.result() == 0
    with pytest.raises(NotFoundError) as failure:
        lost.result()
    assert failure.value.outcome is Outcome.NOT_APPLIED
    with pytest.raises(NotFoundError):
        producer.send(b"four", stream=names[0])
    with pytest.raises(NotFoundError):
        producer.send_many([{"value": b"four"}], stream=names[0])
    late = producer.send(b"five", stream=names[1])
    with pytest.raises(NotFoundError):
        producer.close()
    assert late.result() == 1
    assert values(sbp, names[1]) == [b"three", b"five"]
    assert {(each.stream, each.error is None) for each in reports} == {
        (names[0], False),
        (names[1], True),
    }
    assert f"records lost count=2 stream={names[0]}" in caplog.text


def test_a_producer_says_which_streams_it_cannot_serve(sbp, names):
    with sbp.producer() as producer, pytest.raises(ConfigurationError, match="say which stream"):
        producer.send(b"one")
    with pytest.raises(ConfigurationError, match="counts the records of one stream"):
        sbp.producer(id="loader")
    with (
        sbp.producer(names[0], id="loader") as producer,
        pytest.raises(ConfigurationError, match=f"of stream {names[0]} only"),
    ):
        producer.send(b"one", stream=names[1])


def test_chosen_offsets_and_commits_at_an_interval_exclude_each_other(sbp, names):
    with (
        sbp.consumer(names[0], group="both") as consumer,
        pytest.raises(ConfigurationError, match="pass commit_interval_ms=None"),
    ):
        consumer.commit({names[0]: 0})


def test_chosen_offsets_are_committed(sbp, names):
    stream = names[0]
    with sbp.producer(stream) as producer:
        for each in range(10):
            producer.send(b"%d" % each)
    with sbp.consumer(stream, group="chosen", commit_interval_ms=None) as consumer:
        records = consumer.getmany(5, 6)
        consumer.commit({stream: records[2].offset + 1})
        for offset in (-1, 7, "1"):
            with pytest.raises(ConfigurationError, match=f"offset {offset!r} of stream .* 6"):
                consumer.commit({stream: offset})
        with pytest.raises(ConfigurationError, match="does not read stream 'other'"):
            consumer.commit({"other": 0})
        for expected in (None, 2):
            with pytest.raises(ConditionFailedError, match="is at 3, and") as caught:
                consumer.commit({stream: 5}, expected={stream: expected})
            assert caught.value.current_offset == 3
        consumer.commit({stream: 4}, expected={stream: 3})
        consumer.commit({stream: 3}, expected={stream: 4})
        with pytest.raises(ConditionFailedError, match="and none was expected"):
            consumer.commit({stream: 5}, expected={stream: None})
        with pytest.raises(ConfigurationError, match="for which no offset is committed"):
            consumer.commit({}, expected={stream: 3})
        for wrong in (-1, "3"):
            with pytest.raises(ConfigurationError, match="is no offset; None means no cursor"):
                consumer.commit({stream: 4}, expected={stream: wrong})
        with pytest.raises(ConfigurationError, match="expected goes with offsets"):
            consumer.commit(expected={stream: 3})
    with sbp.consumer(stream, group="chosen", commit_interval_ms=None) as consumer:
        assert consumer.getone(5).value == b"3"
        consumer.commit({stream: 0})
    assert next(iter(sbp.consumer(stream, group="chosen"))).value == b"0"
