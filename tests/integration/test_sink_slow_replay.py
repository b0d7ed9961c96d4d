"""A replay of a decided batch whose tasks take longer than servers keep what they stage."""

from __future__ import annotations

import asyncio
import time

import pyarrow as pa
import pytest

from sbp_core.client import Client
from sbp_core.errors import TxnAbortedError
from sbp_spark.options.sink import BatchKey, OnReplayMismatch, parse_sink_options
from sbp_spark.writing.batch_commit import commit_staged
from sbp_spark.writing.sending import SendingPace
from sbp_spark.writing.sinks import StagedFor, write_rows
from tests.support.appends import letters_of, one_driven_stream

KEY = BatchKey("query-1", 7)
AT_ONCE = SendingPace(waiting_bytes_max=0, append_bytes=1)


HASTY = {"staged_ask_ms": 0, "clock_even_ms": 0}
"""Servers ask at once about what is staged."""


def row(value):
    return pa.record_batch({"value": pa.array([value], pa.binary())})


def slow_rows(client, *, staging_count, end):
    """Rows of a task. Its first batch is dropped once `staging_count` tasks have staged one."""
    yield row(b"a")
    yield row(b"b")  # now the first one is on its way
    until(lambda: len(open_txns(client)) == staging_count)
    end(open_txns(client))
    until(lambda: not open_txns(client))
    yield row(b"c")


def open_txns(client):
    return [
        part for info in client.describe_txns() if info.state == "staged" for part in info.parts
    ]


def commit(client, message):
    commit_staged(client, [message], KEY, OnReplayMismatch.FAIL)


def until(is_so):
    give_up_at = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


def run(folder, body):
    async def main():
        async with one_driven_stream(folder, retention_check_interval_ms=10, bounds=HASTY) as (
            cluster,
            stream_id,
            _,
        ):
            endpoint = cluster.client._context.drivers.endpoint
            options = parse_sink_options({"endpoint": endpoint, "stream": str(stream_id)})
            await asyncio.wait_for(asyncio.to_thread(body, endpoint, options), 60)
            return await letters_of(cluster, stream_id)

    return asyncio.run(main())


def test_a_batch_that_another_attempt_commits_in_between_is_a_replay(tmp_path):
    def body(endpoint, options):
        with Client(endpoint) as client:
            staged_for = StagedFor(KEY, is_repeatable=True)
            first = write_rows(
                map(row, (b"c", b"a", b"b")), client, options, staged_for, pace=AT_ONCE
            )
            again = write_rows(
                slow_rows(client, staging_count=2, end=lambda _: commit(client, first)),
                client,
                options,
                staged_for,
                pace=AT_ONCE,
            )
            commit(client, again)

    assert run(tmp_path, body) == "cab"


def test_a_given_up_batch_is_not_committed(tmp_path):
    def body(endpoint, options):
        with Client(endpoint) as client:
            staged_for = StagedFor(KEY, is_repeatable=True)
            rows = slow_rows(client, staging_count=1, end=client.abort_txns)
            message = write_rows(rows, client, options, staged_for, pace=AT_ONCE)
            with pytest.raises(TxnAbortedError):
                commit(client, message)

    assert run(tmp_path, body) == ""
