"""The processes of the soak, for a moment, with a server that runs as users start it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.core.soak import board, work
from benchmarks.core.soak.board import CONTEXT, Board
from benchmarks.core.soak.crew import Crew, Post
from benchmarks.core.soak.records import (
    CLICKS,
    CLICKS_SCHEMA,
    COPIES,
    ORDERS,
    REPLICATED,
    UNREPLICATED,
    WRITERS,
    encode,
)
from benchmarks.core.soak.report import all_records
from benchmarks.core.soak.sampling import maybe_usage
from benchmarks.harness.model import BenchmarkError
from sbp_core.client import AppendItem, Client
from tests.support.clock import until
from tests.support.warm import WarmCluster

RECORDS = 200
RATE = 2_000_000


@pytest.fixture
def client(tmp_path):
    with WarmCluster(tmp_path / "data") as cluster, Client(cluster.endpoint) as found:
        yield found


@pytest.fixture
def posts(client):
    """Two posts with the same counters: the writers stop first."""
    specs = [UNREPLICATED, *(replace(spec, replica_count=1) for spec in REPLICATED)]
    ids = {each.label: each.stream_id for each in client.create_streams(specs)}
    client.register_schema(ids[CLICKS], CLICKS_SCHEMA, version=1)
    counters = Board()
    return [Post(client.endpoint, ids, counters, CONTEXT.Event()) for _ in range(2)]


def test_a_reader_counts_what_writers_append_and_what_is_there_twice(client, posts):
    counters, ids = posts[0].board, posts[0].stream_ids
    writers, users = Crew(posts[0]), Crew(posts[1])
    for number in range(len(WRITERS)):
        writers.start(f"writer-{number}", work.write, number, RATE)
    users.start("reader", work.read)
    acknowledged = [board.acknowledged(number) for number in range(len(WRITERS))]
    until(lambda: all(counters[each] > RECORDS for each in acknowledged))
    assert all(maybe_usage(pid).threads for pid in (*writers.pids.values(), *users.pids.values()))
    writers.stop()
    copied = [each for each in all_records(counters) if each.reader in (COPIES, "foreachBatch")]
    until(lambda: [each for each in all_records(counters) if each.lost] == copied)
    assert [each.doubled for each in all_records(counters)] == [0] * len(all_records(counters))

    again = encode(ORDERS, ids[ORDERS], 0, 7, [b"again"])
    client.append([AppendItem(ids[ORDERS], again)])
    until(lambda: counters[board.doubled(ORDERS, 0)] == 1)
    users.check()
    users.stop()


def test_a_process_that_ends_with_an_error_ends_the_soak(posts):
    crew = Crew(posts[0])
    crew.start("writer", work.write, len(WRITERS), RATE)
    with pytest.raises(BenchmarkError, match="writer ended with exit code 1"):
        until(crew.check)
    crew.stop()
