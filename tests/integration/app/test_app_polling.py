"""Taking records one call at a time: timeouts, cancellation, iterators, records that are gone."""

from __future__ import annotations

import asyncio
import re
import threading

import pytest

from sbp_core import aio
from sbp_core.app.defaults import CUT_ROWS
from sbp_core.errors import ConfigurationError, DeadlineExceededError, OffsetOutOfRangeError
from tests.support.clock import counted_turns, until

VALUES = [b"0", b"1", b"2", b"3", b"4"]


@pytest.fixture
def name(sbp, request):
    name = re.sub(r"[^\w-]", "-", request.node.name)
    sbp.create_stream(name)
    return name


def send(sbp, name, values):
    with sbp.producer(name) as producer:
        for value in values:
            producer.send(value)


def values(records):
    return [each.value for each in records]


def test_records_are_polled(sbp, name):
    consumer = sbp.consumer(name, follow=True, group=name, commit_interval_ms=None)
    assert consumer.poll(0) is None
    assert consumer.getmany(0.01) == []
    with pytest.raises(DeadlineExceededError, match="no record within"):
        consumer.getone(0.01)
    send(sbp, name, VALUES)
    assert consumer.getone().value == b"0"
    assert values(consumer.getmany(60, max_records=2)) == [b"1", b"2"]
    assert values(consumer.getmany(60)) == [b"3", b"4"]
    consumer.commit()
    assert sbp.consumer(name, group=name).lag() == {name: 0}
    waiting = threading.Timer(0.05, send, (sbp, name, [b"5"]))
    waiting.start()
    assert consumer.poll(60).value == b"5"
    waiting.join()


def test_a_poll_behind_the_end_returns_nothing(sbp, name):
    send(sbp, name, VALUES)
    consumer = sbp.consumer(name, group=name)
    assert values(consumer.getmany(None)) == VALUES
    assert (consumer.poll(), consumer.getmany()) == (None, [])
    with pytest.raises(DeadlineExceededError, match="read to their ends"):
        consumer.getone()
    assert sbp.consumer(name, group=name).lag() == {name: 0}
    consumer.close()
    with pytest.raises(ConfigurationError, match="closed"):
        consumer.poll(0)


def test_what_was_polled_last_is_not_done(sbp, name):
    send(sbp, name, VALUES)
    with sbp.consumer(name, group=name, follow=True) as consumer:
        assert values([consumer.poll(), consumer.poll()]) == VALUES[:2]
    assert sbp.consumer(name, group=name).lag() == {name: 4}


def test_none_of_several_records_is_done_before_the_next_call(sbp, name):
    send(sbp, name, VALUES)
    with sbp.consumer(name, group=name, follow=True) as consumer:
        assert values(consumer.getmany(60, max_records=2)) == VALUES[:2]
        assert values(consumer.getmany(60, max_records=2)) == VALUES[2:4]
    assert sbp.consumer(name, group=name).lag() == {name: 3}


def test_calls_and_iterators_take_each_record_once(sbp, name):
    send(sbp, name, VALUES)
    consumer = sbp.consumer(name)
    first = iter(consumer)
    assert next(first).value == b"0"
    assert consumer.poll().value == b"1"
    assert next(first).value == b"2"
    (batch,) = consumer.batches()
    assert batch.rows.column("value").to_pylist() == [b"3", b"4"]
    with pytest.raises(ConfigurationError, match="replaced this one"):
        next(first)
    consumer.seek(name, 4)
    assert values(consumer) == [b"4"]
    with pytest.raises(OffsetOutOfRangeError, match="use one from 0 to 5"):
        consumer.seek(name, 6)
    with pytest.raises(OffsetOutOfRangeError, match="has no offset -1"):
        sbp.consumer(name, start=-1).poll()


def test_two_threads_cannot_wait_for_one_consumer(sbp, name):
    consumer = sbp.consumer(name, follow=True)
    waiting = threading.Thread(target=consumer.poll)
    waiting.start()
    until(lambda: consumer.is_waiting)
    with pytest.raises(ConfigurationError, match="waits for this consumer"):
        consumer.poll(0)
    send(sbp, name, [b"x"])
    waiting.join()


@pytest.mark.parametrize("form", ["records", "batches", "shared"])
def test_a_wait_that_is_cancelled_takes_nothing(cluster, sbp, name, form):
    async def main():
        given = {"group": name, "shared": True} if form == "shared" else {}
        async with aio.connect(cluster.endpoint) as client:
            consumer = client.consumer(name, follow=True, **given)
            iterator = consumer.batches() if form == "batches" else aiter(consumer)
            waiting = asyncio.ensure_future(anext(iterator))
            for number in range(5):
                for _ in range(10 * number):
                    await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                waiting = asyncio.ensure_future(anext(iterator))
            await asyncio.to_thread(send, sbp, name, VALUES)
            found = []
            while len(found) < len(VALUES):
                taken = await waiting
                found += [taken.value] if form != "batches" else taken.rows["value"].to_pylist()
                waiting = asyncio.ensure_future(anext(iterator))
            waiting.cancel()
            assert found == VALUES

    asyncio.run(asyncio.wait_for(main(), 60))


def trim(sbp, name, offset):
    (info,) = sbp.client.describe_streams([name])
    sbp.client.trim_streams({info.stream_id: offset})
    return info.stream_id


def test_records_that_were_trimmed_are_an_error_with_its_remedy(sbp, name):
    send(sbp, name, VALUES)
    sbp.client.commit_cursors(name, {trim(sbp, name, 3): 1})
    remedy = f"records 1 to 2 .*`sbp groups reset {name} --stream {name} --to earliest --yes`"
    with pytest.raises(OffsetOutOfRangeError, match=remedy):
        sbp.consumer(name, group=name).poll()
    assert values(sbp.consumer(name, group=name, on_trimmed="earliest")) == [b"3", b"4"]
    with pytest.raises(ConfigurationError, match="on_trimmed 'never' is not one of"):
        sbp.consumer(name, on_trimmed="never")


def test_a_query_may_go_on_with_what_comes(sbp, name):
    send(sbp, name, VALUES)
    sbp.client.commit_cursors(name, {trim(sbp, name, 3): 1})
    consumer = sbp.consumer(name, group=name, follow=True, on_trimmed="latest")
    assert consumer.poll(0.01) is None
    send(sbp, name, [b"new"])
    assert consumer.poll(60).value == b"new"


def test_a_member_gives_a_trimmed_stream_up_and_reads_the_others(sbp, name, caplog):
    other = f"{name}-other"
    sbp.create_stream(other)
    for each in (name, other):
        send(sbp, each, VALUES)
    sbp.client.commit_cursors(name, {trim(sbp, name, 3): 1})
    with sbp.consumer(name, other, group=name, shared=True, follow=True) as member:
        found = [member.getone(60) for _ in VALUES]
        assert [each.stream for each in found] == [other] * len(VALUES)
        until(lambda: member.poll(0.01) is None and "stream given up" in caplog.text)
        send(sbp, other, [b"5"])
        assert member.getone(60).value == b"5"
    assert f"sbp groups reset {name} --stream {name}" in caplog.text


def test_a_loop_is_not_held_while_rows_are_encoded_or_decoded(cluster, sbp, name):
    """Other tasks get a turn for each piece of the work, however large a batch is."""

    async def main():
        async with aio.connect(cluster.endpoint) as client, counted_turns() as turns:
            producer = client.producer(name)
            await producer.send_many({"value": b"v"} for _ in range(10 * CUT_ROWS))
            sent = turns()
            await producer.close()
            closed = turns()
            assert len([each async for each in client.consumer(name)]) == 10 * CUT_ROWS
            assert min(sent, turns() - closed) > 10

    asyncio.run(asyncio.wait_for(main(), 60))
