"""Calls of a transaction that are cancelled: what they began ends before anything else begins."""

from __future__ import annotations

import asyncio

import pytest

from sbp_core.app.aio.cluster_connection import AsyncConnection
from sbp_core.app.aio.transaction import AsyncTransaction
from sbp_core.client import AppendOutcome, RangeInfo, StreamInfo
from sbp_core.client.operations.numbering import begin_numbering
from sbp_core.errors import ConfigurationError, SbpError

ROWS = [{"value": b"v"}]


class Cluster:
    """A client of one stream in memory. It stages and commits once `may_go_on` is set."""

    def __init__(self):
        self.may_go_on = asyncio.Event()
        self.errors = []
        self.done = []
        self.is_closed = False

    async def describe_streams(self, refs):
        return [StreamInfo(1, refs[0], 1, 0, 0)]

    async def describe_schemas(self, stream_ids, *, newest_only):
        return dict.fromkeys(stream_ids, ())

    async def append(self, items, *, transaction):
        numbering = begin_numbering(None, transaction)
        numbering.add(items)
        is_complete = False
        try:
            for index, item in enumerate(items):
                numbering.marks(index, RangeInfo(item.stream_id, 0, 0, None, 0, ("here",)))
                await self._do("stage")
                numbering.on_appended(index, AppendOutcome(item.stream_id, -1, 0))
            is_complete = True
        finally:
            numbering.end((), is_complete=is_complete)

    async def commit_txn(self, *_, **__):
        await self._do("commit")

    async def abort_txns(self, parts):
        assert [each.stream_id for each in parts] == [1]
        await self._do("abort")

    async def close(self):
        self.is_closed = True

    async def _do(self, what):
        await self.may_go_on.wait()
        if self.errors:
            raise self.errors.pop()
        self.done.append(what)


async def turns():
    for _ in range(20):
        await asyncio.sleep(0)


async def cancelled(call):
    """Begin a call, and cancel it while the cluster works on it."""
    task = asyncio.create_task(call)
    await turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def begin():
    cluster = Cluster()
    txn = AsyncTransaction(cluster, ["s"])
    await cancelled(txn.send_many("s", ROWS))
    return cluster, txn


@pytest.mark.parametrize("error", [None, SbpError("down"), RuntimeError("broken")])
def test_an_abort_waits_until_what_a_cancelled_call_began_is_staged(error):
    async def main():
        cluster, txn = await begin()
        aborting = asyncio.create_task(txn.abort())
        await turns()
        assert not cluster.done
        cluster.errors = [error] if error else []
        cluster.may_go_on.set()
        await aborting
        return cluster.done

    assert asyncio.run(main())[-1] == "abort"


def test_a_call_that_waits_beside_the_abort_stages_nothing_behind_it():
    async def main():
        cluster, txn = await begin()
        aborting = asyncio.create_task(txn.abort())
        sending = asyncio.create_task(txn.send_many("s", ROWS))
        await turns()
        cluster.may_go_on.set()
        await aborting
        with pytest.raises(ConfigurationError, match="aborted; begin another"):
            await sending
        return cluster.done

    assert asyncio.run(main()) == ["stage", "abort"]


def test_an_abort_that_waits_behind_another_call_waits_for_that_too():
    async def main():
        cluster, txn = await begin()
        sending = asyncio.create_task(txn.send_many("s", ROWS))
        await turns()
        aborting = asyncio.create_task(txn.abort())
        await turns()
        cluster.may_go_on.set()
        await aborting
        await sending
        return cluster.done

    assert asyncio.run(main()) == ["stage", "stage", "abort"]


def test_an_abort_that_was_cancelled_or_failed_may_be_repeated():
    async def main():
        cluster, txn = await begin()
        await cancelled(txn.abort())  # waits for the stage
        cluster.may_go_on.set()
        await turns()
        cluster.may_go_on.clear()
        await cancelled(txn.abort())  # waits for the placement driver
        cluster.errors = [SbpError("down")]
        cluster.may_go_on.set()
        with pytest.raises(SbpError, match="down"):
            await txn.abort()
        await txn.abort()
        with pytest.raises(ConfigurationError, match="is aborted"):
            await txn.abort()
        return cluster.done

    assert asyncio.run(main()) == ["stage", "abort"]


@pytest.mark.parametrize("is_committing", [False, True])
def test_a_block_that_is_cancelled_leaves_no_work(is_committing):
    async def block(cluster):
        async with AsyncTransaction(cluster, ["s"]) as txn:
            if not is_committing:
                await txn.send_many("s", ROWS)
            else:
                await txn.send("s", b"v")
                await txn.commit()

    async def main():
        cluster = Cluster()
        task = asyncio.create_task(block(cluster))
        await turns()
        task.cancel()
        await turns()
        cluster.may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return cluster.done

    assert asyncio.run(main()) == ["stage", "commit" if is_committing else "abort"]


def test_a_connection_closes_all_that_it_made_and_raises_the_first_error():
    class Made:
        def __init__(self, error=None):
            self.error = error
            self.is_closed = False

        async def close(self):
            self.is_closed = True
            if self.error is not None:
                raise self.error

    async def main():
        cluster = Cluster()
        connection = AsyncConnection(cluster)
        made = [Made(), Made(SbpError("second")), Made(SbpError("first")), Made()]
        connection._open = dict.fromkeys(made)
        with pytest.raises(SbpError, match="first"):
            await connection.close()
        await connection.close()
        return cluster.is_closed and all(each.is_closed for each in made)

    assert asyncio.run(main())


def test_a_consumer_that_is_cancelled_while_it_closes_goes_on_with_the_next_close():
    class Assignment:
        own_interval_ms = None
        has_cursors = True

        def __init__(self):
            self.commits = []
            self.may_commit = asyncio.Event()
            self.close_count = 0

        async def commit(self, offsets, expected=None):
            await self.may_commit.wait()
            self.commits.append(dict(offsets))

        async def close(self):
            self.close_count += 1

    async def main():
        assignment, closed = Assignment(), []
        consumer = AsyncConnection(Cluster()).consumer("s", assignment=assignment)
        consumer._on_close = closed.append
        consumer._positions.add(1, "s", 0, end_offset=None, committed_offset=None)
        await cancelled(consumer.close())
        assert not closed
        assignment.may_commit.set()
        await consumer.close()
        await consumer.close()
        assert (assignment.commits, len(closed)) == ([{1: 0}], 1)

    asyncio.run(main())
