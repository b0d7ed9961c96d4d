"""Transactions over several streams, and producers that are restarted with their id."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from itertools import islice

import pyarrow as pa
import pytest

from sbp_core import aio
from sbp_core.errors import ConfigurationError, SchemaError
from tests.support.warm import WarmProcess


@pytest.fixture
def stream(sbp, request):
    name = re.sub(r"[^\w-]", "-", request.node.name)
    sbp.create_stream(name)
    return name


@pytest.fixture
def other(sbp, stream):
    sbp.create_stream(f"{stream}-other")
    return f"{stream}-other"


def values(sbp, stream):
    return [each.value for each in sbp.consumer(stream)]


def test_records_of_all_streams_become_visible_at_the_commit(sbp, stream, other):
    with sbp.transaction(stream, other) as txn:
        txn.send(stream, b"one", key=b"k", headers={"a": b"b"}, timestamp_us=7)
        txn.send_many(other, [{"value": b"two"}, {"value": b"three"}])
        txn.send(other, b"four")
        assert values(sbp, stream) == values(sbp, other) == []
    (one,) = sbp.consumer(stream)
    assert (one.value, one.key, one.headers) == (b"one", b"k", {"a": b"b"})
    assert values(sbp, other) == [b"two", b"three", b"four"]


def test_rows_may_come_from_a_consumer(sbp, stream, other):
    with sbp.producer(stream) as producer:
        producer.send_many([{"value": b"a"}, {"value": b"b"}])
    with sbp.transaction(other) as txn:
        txn.send_many(other, ({"value": each.value.upper()} for each in sbp.consumer(stream)))
    assert values(sbp, other) == [b"A", b"B"]


def test_an_error_in_the_block_drops_all_records(sbp, stream, other):
    txn = sbp.transaction(stream, other)

    def fail():
        with txn:
            txn.send_many(stream, [{"value": b"one"}])
            txn.send(other, b"two")
            raise KeyError("no such order")

    with pytest.raises(KeyError):
        fail()
    assert values(sbp, stream) == values(sbp, other) == []
    with pytest.raises(ConfigurationError, match="the transaction is aborted; begin another"):
        txn.send(stream, b"three")
    with pytest.raises(ConfigurationError, match="is aborted"):
        txn.commit()


def test_a_transaction_that_is_committed_is_over(sbp, stream):
    with sbp.transaction(stream) as txn:
        txn.send(stream, b"one")
        txn.commit()
        with pytest.raises(ConfigurationError, match="is committed"):
            txn.abort()
        with pytest.raises(ConfigurationError, match="is committed"):
            txn.send(stream, b"two")
    assert values(sbp, stream) == [b"one"]


def test_an_empty_transaction_commits_nothing(sbp, stream):
    with sbp.transaction(stream):
        pass
    assert values(sbp, stream) == []


def test_another_stream_and_records_for_a_typed_one_are_refused(sbp, stream):
    sbp.create_stream(f"{stream}-typed", schema=pa.schema([("id", pa.int64())]))
    with sbp.transaction(f"{stream}-typed") as txn:
        with pytest.raises(ConfigurationError, match=f"begun for {stream}-typed"):
            txn.send(stream, b"one")
        with pytest.raises(SchemaError, match="pass rows to send_many"):
            txn.send(f"{stream}-typed", b"one")
        txn.send_many(f"{stream}-typed", [{"id": 1}])
    assert [each.columns for each in sbp.consumer(f"{stream}-typed")] == [{"id": 1}]


def test_asyncio_commits_the_same(cluster, sbp, stream):
    async def main():
        async with aio.connect(cluster.endpoint) as connection:
            async with connection.transaction(stream) as txn:
                await txn.send(stream, b"one")
            async with connection.producer(stream, id="loader") as producer:
                await producer.send(b"two")
                await producer.flush()
                assert producer.position == 1

    asyncio.run(main())
    assert values(sbp, stream) == [b"one", b"two"]


@pytest.mark.parametrize("is_full", [False, True])
def test_a_cancelled_call_loses_nothing_and_may_be_repeated(cluster, sbp, stream, is_full):
    async def turns(count):
        for _ in range(count):
            await asyncio.sleep(0)

    async def cancelled(call, count):
        task = asyncio.create_task(call)
        await turns(count)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return task.cancelled()

    async def main():
        async with aio.connect(cluster.endpoint) as connection:
            count, was_cancelled = 0, True
            while was_cancelled:
                txn = connection.transaction(stream)
                await txn.send(stream, value := f"{count}".encode())
                await turns(20)
                call = txn.send_many(stream, [{"value": b"more"}]) if is_full else txn.commit()
                was_cancelled = await cancelled(call, count)
                if is_full or was_cancelled:
                    await txn.commit()
                sent.append(value)
                count += 1

    sent = []
    asyncio.run(main())
    assert len(sent) > 3
    assert [each for each in values(sbp, stream) if each != b"more"] == sent


def test_records_that_cannot_be_staged_are_not_left_out(sbp, stream, monkeypatch):
    txn = sbp.transaction(stream)
    txn.send(stream, b"one")
    monkeypatch.setattr("sbp_core.app.aio.transaction.encoded", None)
    with pytest.raises(TypeError):
        txn.commit()
    monkeypatch.undo()
    with pytest.raises(ConfigurationError, match="not staged"):
        txn.commit()
    txn.abort()


def test_a_producer_goes_on_where_the_last_one_with_its_id_was(sbp, stream, other):
    source = [b"%d" % each for each in range(100)]
    for end in (30, 60, 100):
        with sbp.producer(stream, id="loader", batch_records=7) as producer:
            for value in islice(source, producer.position, end):
                producer.send(value)
    assert values(sbp, stream) == source
    with sbp.producer(other, id="loader") as producer:
        assert producer.position == 0


def test_a_producer_without_an_id_has_no_position(sbp, stream):
    with sbp.producer(stream) as producer, pytest.raises(ConfigurationError, match="with an id"):
        _ = producer.position


def test_an_id_that_cannot_be_one_is_refused(sbp, stream):
    with pytest.raises(ConfigurationError, match="cannot be the id of a producer"):
        sbp.producer(stream, id="a b").send(b"")


def test_of_two_producers_with_one_id_the_second_to_commit_ends(sbp, stream):
    first = sbp.producer(stream, id="loader", linger_ms=0)
    second = sbp.producer(stream, id="loader", linger_ms=0)
    for each in (first, second):
        each.__enter__()
    first.send(b"of the first").result()
    lost = second.send(b"of the second")
    with pytest.raises(ConfigurationError, match="has the same id"):
        lost.result()
    with pytest.raises(ConfigurationError, match="has the same id"):
        second.close()
    first.send(b"again of the first")
    first.close()
    assert values(sbp, stream) == [b"of the first", b"again of the first"]


LOADER = """
    import sys
    from itertools import count, islice

    from sbp_core import connect

    endpoint, stream, end = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with connect(endpoint) as sbp, sbp.producer(stream, id="loader", batch_records=50) as producer:
        print(producer.position, flush=True)
        for number in islice(count(), producer.position, end):
            producer.send(b"%d" % number)
"""


def test_a_producer_that_is_killed_loses_and_doubles_nothing(cluster, sbp, stream):
    """It is killed at three points that depend on its speed; what it committed then, counts."""
    end = 20_000
    command = [sys.executable, "-c", textwrap.dedent(LOADER), cluster.endpoint, stream, str(end)]
    consumer = iter(sbp.consumer(stream, follow=True))
    for _ in range(3):
        with WarmProcess(command, stdout=subprocess.PIPE) as loader:
            loader.stdout.readline()
            for _ in range(200):
                next(consumer)
            os.kill(loader.pid, signal.SIGKILL)
    assert WarmProcess(command, stdout=subprocess.DEVNULL).wait() == 0
    assert values(sbp, stream) == [b"%d" % each for each in range(end)]
