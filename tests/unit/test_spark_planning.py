from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from itertools import pairwise

import pytest

from sbp_spark.options.source import PARTITIONS_MAX, parse_source_options
from sbp_spark.reading.input_partitions import plan_read
from sbp_spark.reading.layout import QueryColumns
from sbp_spark.reading.losses import DataLossError, Loss, log_losses
from sbp_spark.reading.offsets import Interval
from sbp_spark.reading.partition_planning import StreamSpan, cover, plan_partitions
from tests.support.fake_streams import FakeCluster


@dataclass(frozen=True)
class Placed:
    stream_id: int
    range_index: int
    start_offset: int
    end_offset: int | None
    servers: tuple[str, ...] = ("a:1",)


NAMES = {1: "orders", 2: "clicks"}


def cut(intervals, ranges):
    spans, losses = cover([Interval(*each) for each in intervals], ranges, names=NAMES)
    assert losses == ()
    return [
        (span.stream_id, span.range_index, span.start_offset, span.end_offset) for span in spans
    ]


def lost(intervals, ranges):
    return cover([Interval(*each) for each in intervals], ranges, names=NAMES).losses


def span(stream_id, start, end, server="a:1", range_index=0):
    return StreamSpan(stream_id, "", range_index, start, end, (server,) if server else ())


def plan(spans, records=10, count=100):
    return plan_partitions(spans, records_per_partition_max=records, spans_per_partition_max=count)


def test_a_range_that_looks_open_ends_where_the_next_one_begins():
    ranges = [Placed(1, 0, 0, None), Placed(1, 1, 50, None)]
    assert cut([(1, 0, 60)], ranges) == [(1, 0, 0, 50), (1, 1, 50, 60)]


def test_every_lost_part_of_every_stream_is_named_and_the_rest_is_covered():
    ranges = [Placed(1, 1, 10, 20), Placed(1, 2, 30, 40), Placed(1, 3, 40, 50)]
    wanted = [Interval(1, 5, 60), Interval(2, 0, 3)]
    spans, losses = cover(wanted, ranges, names=NAMES)
    assert losses == (Loss(1, 5, 10), Loss(1, 20, 30), Loss(1, 50, 60), Loss(2, 0, 3))
    assert [(each.start_offset, each.end_offset) for each in spans] == [
        (10, 20),
        (30, 40),
        (40, 50),
    ]
    message = str(DataLossError(losses, NAMES))
    assert message.startswith("28 offsets are lost")
    assert "stream 1 (orders): [5, 10); stream 1 (orders): [20, 30)" in message
    assert "stream 2 (clicks): [0, 3)" in message


def test_a_loss_survives_pickling_and_stays_short():
    losses = lost([(stream_id, 0, 1) for stream_id in range(3, 1000)], [])
    error = DataLossError(losses, {})
    copy = pickle.loads(pickle.dumps(error))
    assert copy.losses == error.losses
    assert str(copy) == str(error)
    assert "stream 3 (unnamed): [0, 1)" in str(error)
    assert "and 977 more" in str(error)
    assert len(str(error)) < 2000


def test_a_loss_without_a_known_end(caplog):
    log_losses([Loss(1, 5, None), Loss(2, 3, 7)], NAMES)
    assert "at least 4 offsets are lost" in caplog.text
    assert "stream 1 (orders): all from 5 on; stream 2 (clicks): [3, 7)" in caplog.text
    caplog.clear()
    log_losses([Loss(each, 0, 1) for each in range(100)], {})
    assert caplog.text.count("[0, 1)") == 100
    log_losses([], NAMES)
    assert len(caplog.records) == 1


HUGE = 10**13


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"partitions_min": PARTITIONS_MAX},
        {"bytes_per_partition_max": 1, "record_bytes": {1: 10**9}},
        {"bytes_per_partition_max": 10**6, "record_bytes": {2: 1}},
    ],
    ids=str,
)
def test_no_claim_of_a_server_makes_a_plan_large(options):
    spans = [span(1, 0, HUGE), span(2, 5, HUGE, "b:1"), span(3, 0, 3)]
    planned = plan_partitions(
        spans, records_per_partition_max=1_000_000, spans_per_partition_max=100, **options
    )
    assert len(planned) <= 2 * PARTITIONS_MAX
    assert len(planned) >= PARTITIONS_MAX // 2
    pieces = sorted(
        (p for part in planned for p in part), key=lambda p: (p.stream_id, p.start_offset)
    )
    assert sum(piece.record_count for piece in pieces) == 2 * HUGE - 5 + 3
    for before, after in pairwise(pieces):
        if before.stream_id == after.stream_id:
            assert before.end_offset == after.start_offset


def test_partitions_that_are_larger_than_asked_for_are_logged(caplog):
    plan([span(1, 0, 10 * PARTITIONS_MAX)], records=10)
    assert caplog.records == []
    plan([span(1, 0, 10 * PARTITIONS_MAX + 1)], records=10)
    (record,) = caplog.records
    assert str(PARTITIONS_MAX) in record.getMessage()


@pytest.mark.parametrize(
    ("stored_bytes", "count"),
    [(0, 1), (7 << 20, 1), (8 << 20, 2), (256 << 20, 2), (257 << 20, 4), (1 << 30, 8)],
)
def test_tasks_of_a_batch_take_so_many_bytes_each_and_there_is_one_for_each_core(
    monkeypatch, stored_bytes, count
):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    cluster = FakeCluster(a=[1, 100, 0, 1024])
    cluster.stored = {1: stored_bytes}
    streams = {info.stream_id: info for info in cluster.list_streams()}
    planned = [
        plan_read(
            cluster,
            parse_source_options({"endpoint": "h:1", "streams": "a"}, streaming=False),
            [Interval(1, 0, 1024)],
            streams,
            QueryColumns(),
            is_repeatable=is_repeatable,
        )
        for is_repeatable in (False, True)
    ]
    assert [len(each.partitions) for each in planned] == [count, 1]
