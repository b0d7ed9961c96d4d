"""Consumers of records over a real server: positions, ends, groups, patterns, typed streams."""

from __future__ import annotations

import asyncio
import re
import threading
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from sbp_core import aio, connect
from sbp_core.app import Record
from sbp_core.client import AppendItem, Writer
from sbp_core.errors import AlreadyExistsError, ConfigurationError, NotFoundError
from sbp_core.records import ROWS_SCHEMA, RowsBuilder, StreamSchema, encode_columns
from tests.support.clock import until

TIME_MS = 1_700_000_000_000


@pytest.fixture
def name(request):
    return re.sub(r"[^\w-]", "-", request.node.name)


def append(sbp, name, *values, **columns):
    (info,) = sbp.client.describe_streams([name])
    rows = [{"value": value, "timestamp": TIME_MS * 1000, **columns} for value in values]
    builder = RowsBuilder(info.stream_id)
    builder.add(pa.RecordBatch.from_pylist(rows, ROWS_SCHEMA), timestamp_ms=TIME_MS)
    items = [AppendItem(info.stream_id, batch) for batch in builder.flush()]
    sbp.client.append(items, writer=Writer())


def values(records):
    return [each.value for each in records]


def test_a_record_has_all_that_was_written(sbp, name):
    sbp.create_stream(name)
    append(sbp, name, b"one", key=b"k", headers=[("source", b"web"), ("none", None)])
    append(sbp, name, None)
    first, second = sbp.consumer(name)
    headers = {"source": b"web", "none": None}
    assert first == Record(name, 0, TIME_MS * 1000, b"k", b"one", headers)
    assert first.timestamp == datetime.fromtimestamp(TIME_MS / 1000, UTC)
    assert second == Record(name, 1, TIME_MS * 1000, None, None, {})


def test_batches_are_arrow_and_know_their_offsets(sbp, name):
    sbp.create_stream(name)
    append(sbp, name, b"a", b"b")
    append(sbp, name, b"c")
    batches = list(sbp.consumer(name, start=1).batches())
    assert [each.rows.schema for each in batches] == [ROWS_SCHEMA] * len(batches)
    found = [
        (offset, value)
        for each in batches
        for offset, value in zip(
            each.offsets.to_pylist(), each.rows.column("value").to_pylist(), strict=True
        )
    ]
    assert found == [(1, b"b"), (2, b"c")]


def test_a_group_goes_on_where_it_was(sbp, name):
    sbp.create_stream(name)
    append(sbp, name, b"a", b"b")
    assert values(sbp.consumer(name, group="g")) == [b"a", b"b"]
    append(sbp, name, b"c")
    assert values(sbp.consumer(name, group="g")) == [b"c"]
    assert values(sbp.consumer(name, group="other")) == [b"a", b"b", b"c"]


def test_commits_are_left_to_the_caller(sbp, name):
    sbp.create_stream(name)
    append(sbp, name, b"a", b"b", b"c")
    with sbp.consumer(name, group="g", commit_interval_ms=None) as consumer:
        records = iter(consumer)
        assert [next(records).value, next(records).value] == [b"a", b"b"]
        consumer.commit()
        next(records)
    assert values(sbp.consumer(name, group="g")) == [b"c"]


def test_a_commit_without_a_group_is_refused(sbp, name):
    sbp.create_stream(name)
    with pytest.raises(ConfigurationError, match="no group"):
        sbp.consumer(name).commit()


def test_positions_lag_and_seek(sbp, name):
    sbp.create_stream(name)
    append(sbp, name, *(b"%d" % each for each in range(10)))
    consumer = sbp.consumer(name)
    records = iter(consumer)
    assert next(records).offset == 0
    assert consumer.positions() == {name: 1}
    assert consumer.lag() == {name: 9}
    consumer.seek(name, 8)
    assert [each.offset for each in records] == [8, 9]
    consumer.seek(name, "earliest")
    assert next(iter(consumer)).offset == 0
    consumer.seek(name, datetime.now(UTC) + timedelta(days=1))
    assert consumer.positions() == {name: 10}


def test_a_start_at_the_end_sees_what_comes(sbp, name):
    sbp.create_stream(name)
    append(sbp, name, b"old")
    consumer = sbp.consumer(name, start="latest", follow=True)
    assert consumer.positions() == {name: 1}
    append(sbp, name, b"new")
    assert next(iter(consumer)).value == b"new"


def test_what_is_done_is_committed_while_nothing_comes(sbp, name):
    info = sbp.create_stream(name)
    append(sbp, name, b"a", b"b")
    consumer = sbp.consumer(name, group=name, follow=True, commit_interval_ms=1)
    reading = threading.Thread(target=lambda: values(consumer))
    reading.start()

    def is_committed():
        (cursor,) = sbp.client.describe_cursors(name, [info.stream_id]) or [None]
        return cursor is not None and cursor.next_offset == 2

    until(is_committed)
    consumer.close()
    reading.join()


def test_a_stream_is_followed_while_another_one_is_silent(sbp, name):
    for each in (f"{name}-a", f"{name}-b"):
        sbp.create_stream(each)
    records = iter(sbp.consumer(f"{name}-*", follow=True))
    writing = threading.Timer(0.2, append, (sbp, f"{name}-b", b"one", b"two"))
    writing.start()
    found = [next(records), next(records)]
    writing.join()
    assert [(each.stream, each.value) for each in found] == [
        (f"{name}-b", b"one"),
        (f"{name}-b", b"two"),
    ]


def test_a_new_stream_that_matches_is_found(sbp, name):
    consumer = sbp.consumer(f"{name}-*", follow=True, start="latest", refresh_interval_ms=1)
    assert consumer.positions() == {}
    sbp.create_stream(f"{name}-new")
    append(sbp, f"{name}-new", b"first")
    assert next(iter(consumer)).value == b"first"


def test_a_missing_stream_is_named(sbp):
    with pytest.raises(NotFoundError, match="no stream nowhere; create it"):
        next(iter(sbp.consumer("nowhere")))


def test_an_unknown_start_is_refused(sbp, name):
    sbp.create_stream(name)
    with pytest.raises(ConfigurationError, match="'begin' is not 'earliest'"):
        next(iter(sbp.consumer(name, start="begin")))


def test_a_stream_is_created_once(sbp, name):
    first = sbp.create_stream(name)
    assert sbp.create_stream(name, if_missing=True).stream_id == first.stream_id
    with pytest.raises(AlreadyExistsError):
        sbp.create_stream(name)


def test_a_typed_stream_has_its_columns(sbp, name):
    schema = StreamSchema.of(pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))]))
    info = sbp.create_stream(name, schema=schema.arrow)
    time = datetime(2026, 1, 2, tzinfo=UTC)
    rows = pa.RecordBatch.from_pylist([{"id": 1, "at": time}, {"id": 2}], schema.arrow)
    encoded = encode_columns(
        rows, schema, stream_id=info.stream_id, timestamp_ms=TIME_MS, timestamp_column="at"
    )
    sbp.client.append([AppendItem(info.stream_id, encoded)], writer=Writer())
    first, second = sbp.consumer(name)
    assert (first.columns, first.timestamp) == ({"id": 1, "at": time}, time)
    assert (second.columns, second.timestamp_us) == ({"id": 2, "at": None}, TIME_MS * 1000)
    (batch,) = sbp.consumer(name).batches()
    assert batch.is_typed
    assert batch.rows.equals(rows)


def test_a_connection_closes_its_consumers(cluster, sbp, name):
    sbp.create_stream(name)
    append(sbp, name, b"a", b"b")
    with connect(cluster.endpoint) as other:
        records = iter(other.consumer(name, group="g"))
        next(records)
        next(records)
    assert values(sbp.consumer(name, group="g")) == [b"b"]


def test_asyncio_reads_the_same(cluster, sbp, name):
    async def main():
        async with aio.connect(cluster.endpoint) as sbp:
            await sbp.create_stream(name, if_missing=True)
            return [each async for each in sbp.consumer(name, group="g")]

    sbp.create_stream(name)
    append(sbp, name, b"a", b"b")
    assert asyncio.run(main()) == list(sbp.consumer(name))
    assert list(sbp.consumer(name, group="g")) == []
