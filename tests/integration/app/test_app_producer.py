"""Producers of records over a real server: batches, futures, flush, close, errors, tables."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from datetime import UTC, datetime

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from sbp_core import aio, connect
from sbp_core.app import Delivered
from sbp_core.errors import (
    ConfigurationError,
    DeadlineExceededError,
    NotFoundError,
    RecordBatchError,
    SbpError,
    SchemaError,
)
from tests.support.warm import WarmCluster


@pytest.fixture
def stream(sbp, request):
    name = re.sub(r"[^\w-]", "-", request.node.name)
    sbp.create_stream(name)
    return name


def values(sbp, stream):
    return [each.value for each in sbp.consumer(stream)]


def test_a_record_is_sent_whole_and_its_future_is_its_offset(sbp, stream):
    with sbp.producer(stream) as producer:
        first = producer.send(b"one", key=b"", headers={"source": b"web", "none": None})
        second = producer.send(None, timestamp_us=5)
        assert (first.result(), second.result()) == (0, 1)
    one, two = sbp.consumer(stream)
    assert (one.value, one.key, one.headers) == (b"one", b"", {"source": b"web", "none": None})
    assert abs((datetime.now(UTC) - one.timestamp).total_seconds()) < 600
    assert (two.value, two.key, two.headers, two.timestamp_us) == (None, None, {}, 5)


def test_many_records_of_several_threads_arrive_once_each_in_the_order_of_its_thread(sbp, stream):
    def send(producer, thread):
        for index in range(1_000):
            producer.send(b"%d %d" % (thread, index))

    with sbp.producer(stream, batch_records=37, buffer_bytes=1 << 20) as producer:
        threads = [threading.Thread(target=send, args=(producer, each)) for each in range(3)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    found = [tuple(map(int, value.split())) for value in values(sbp, stream)]
    for thread in range(3):
        assert [index for at, index in found if at == thread] == list(range(1_000))


def test_a_flush_returns_when_all_is_acknowledged(sbp, stream):
    with sbp.producer(stream, linger_ms=3_600_000) as producer:
        delivery = producer.send(b"one")
        assert not delivery.done()
        producer.flush()
        assert delivery.done()
        producer.flush(timeout=10)


def test_what_became_of_each_batch_is_reported(sbp, stream):
    reports = []
    with sbp.producer(stream, on_delivery=reports.append) as producer:
        producer.send(b"one")
        producer.flush()
        producer.send_many([{"value": b"two"}, {"value": b"three"}])
    assert reports == [Delivered(stream, 0, 1), Delivered(stream, 1, 2)]


def test_a_closed_producer_refuses_records(sbp, stream):
    producer = sbp.producer(stream)
    producer.send(b"one")
    producer.close()
    producer.close()
    with pytest.raises(ConfigurationError, match="this producer is closed"):
        producer.send(b"two")
    assert values(sbp, stream) == [b"one"]


def test_a_connection_closes_its_producers(cluster, sbp, stream):
    with connect(cluster.endpoint) as other:
        other.producer(stream, linger_ms=3_600_000).send(b"one")
    assert values(sbp, stream) == [b"one"]


def test_an_unknown_stream_and_a_record_that_is_too_large_are_refused_at_once(sbp, stream):
    with pytest.raises(NotFoundError, match="nowhere"):
        sbp.producer("nowhere").send(b"")
    with sbp.producer(stream) as producer:
        with pytest.raises(RecordBatchError, match="the record has 9000024 bytes; at most"):
            producer.send(bytes(9_000_000))
        large = bytes(8_000_000)
        assert producer.send(large).result() == 0
    assert values(sbp, stream) == [large]


@pytest.mark.parametrize("value", ["text", bytearray(b"x"), 5])
def test_a_value_that_is_not_bytes_is_refused_at_once(sbp, stream, value):
    with sbp.producer(stream) as producer, pytest.raises(TypeError, match="value is a"):
        producer.send(value)


def test_the_error_that_ends_a_producer_is_raised_at_the_next_call(sbp, stream):
    reports = []
    producer = sbp.producer(stream, linger_ms=3_600_000, on_delivery=reports.append)
    producer.send(b"one").done()
    sbp.delete_stream(stream)
    lost = producer.send(b"two")
    with pytest.raises(NotFoundError):
        producer.flush()
    with pytest.raises(NotFoundError):
        lost.result()
    with pytest.raises(NotFoundError):
        producer.send(b"three")
    with pytest.raises(NotFoundError):
        producer.close()
    assert [(each.record_count, type(each.error)) for each in reports] == [(2, NotFoundError)]


def test_a_full_buffer_waits_for_acknowledgements(sbp, stream):
    value = bytes(10_000)
    with sbp.producer(stream, batch_bytes=20_000, buffer_bytes=20_000) as producer:
        deliveries = [producer.send(value) for _ in range(50)]
        assert all(each.done() for each in deliveries[:-4])
    assert len(values(sbp, stream)) == 50


def test_a_flush_that_takes_too_long_says_so(tmp_path):
    with WarmCluster(tmp_path / "data") as cluster, connect(cluster.endpoint) as sbp:
        sbp.create_stream("orders")
        with sbp.producer("orders") as producer:
            producer.send(b"one").result()
            cluster.kill()
            producer.send(b"two")
            with pytest.raises(DeadlineExceededError, match=r"not acknowledged after 0\.05 s"):
                producer.flush(0.05)
            cluster.restart()
        assert values(sbp, "orders") == [b"one", b"two"]


PLAIN = [{"value": b"a", "key": b"k"}, {"value": b"b", "key": None}]


@pytest.mark.parametrize("kind", ["mappings", "batch", "table", "pandas", "polars"])
def test_rows_of_any_kind_are_sent(sbp, stream, kind):
    rows = PLAIN
    if kind == "batch":
        rows = pa.RecordBatch.from_pylist(PLAIN)
    elif kind == "table":
        rows = pa.Table.from_pylist(PLAIN)
    elif kind == "pandas":
        rows = pd.DataFrame(PLAIN, index=["x", "y"])
    elif kind == "polars":
        rows = pl.DataFrame(PLAIN)
    with sbp.producer(stream) as producer:
        producer.send(b"first")
        assert producer.send_many(rows).result() == 2
        producer.send(b"last")
    records = list(sbp.consumer(stream))
    found = [(each.key, each.value) for each in records]
    assert found == [(None, b"first"), (b"k", b"a"), (None, b"b"), (None, b"last")]
    assert all(each.timestamp_us for each in records)


def test_no_rows_are_done_at_once(sbp, stream):
    with sbp.producer(stream) as producer:
        assert producer.send_many([]).result() == -1


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([{"value": b"a", "colour": 1}], "rows with colour; the stream has"),
        ([{"key": b"a"}], None),
        (pa.table({"key": [b"a"]}), "rows with key; the stream has"),
        ([{"value": 5}], "rows that do not fit into"),
        ([5], "a row is a int; pass"),
    ],
)
def test_rows_that_do_not_fit_are_refused(sbp, stream, rows, fault):
    with sbp.producer(stream) as producer:
        if fault is None:
            assert producer.send_many(rows).result() == 0
            return
        with pytest.raises(SchemaError, match=fault):
            producer.send_many(rows)


SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us", "UTC"))])


def test_a_typed_stream_takes_rows_with_its_columns(sbp, request):
    stream, time = request.node.name, datetime(2026, 1, 2, tzinfo=UTC)
    sbp.create_stream(stream, schema=SCHEMA)
    with sbp.producer(stream, timestamp_column="at") as producer:
        with pytest.raises(SchemaError, match="pass rows to send_many"):
            producer.send(b"bytes")
        with pytest.raises(SchemaError, match="colour"):
            producer.send_many(pa.table({"id": [1], "colour": ["red"]}))
        producer.send_many([{"id": 1, "name": "a", "at": time}])
        producer.send_many(pa.table({"id": pa.array([2], pa.int32()), "at": [time]}))
    found = [(each.columns, each.timestamp) for each in sbp.consumer(stream)]
    assert found == [
        ({"id": 1, "name": "a", "at": time}, time),
        ({"id": 2, "name": None, "at": time}, time),
    ]


def test_a_data_frame_of_pandas_fits_a_typed_stream(sbp, request):
    stream = request.node.name
    sbp.create_stream(stream, schema=SCHEMA)
    time = datetime(2026, 1, 2, tzinfo=UTC)
    frame = pd.DataFrame({"id": [1, 2], "name": ["a", None], "at": [time, time]}, index=["x", "y"])
    frame["at"] = frame["at"].dt.as_unit("us")  # pandas 2 has nanoseconds, which are refused
    frame["name"] = frame["name"].astype("string[pyarrow]")  # large, as text of pandas 3
    with sbp.producer(stream) as producer:
        assert producer.send_many(frame).result() == 1
    found = [each.columns for each in sbp.consumer(stream)]
    assert found == [{"id": 1, "name": "a", "at": time}, {"id": 2, "name": None, "at": time}]


def test_asyncio_sends_the_same(cluster, sbp, stream):
    async def main():
        async with aio.connect(cluster.endpoint) as sbp:
            async with sbp.producer(stream, batch_records=3, buffer_bytes=1 << 20) as producer:
                deliveries = [await producer.send(b"%d" % each) for each in range(10)]
                last = await producer.send_many([{"value": b"10"}])
                await producer.flush()
                assert last.done()
                assert [await each for each in deliveries] == list(range(10))
                await producer.send(b"11")
            with pytest.raises(ConfigurationError):
                await producer.send(b"12")

    asyncio.run(main())
    assert values(sbp, stream) == [b"%d" % each for each in range(12)]


def test_an_asyncio_producer_of_a_failed_stream_raises(cluster, sbp, stream):
    async def main():
        async with aio.connect(cluster.endpoint) as connection:
            producer = connection.producer(stream)
            await (await producer.send(b"one"))
            await connection.delete_stream(stream)
            delivery = await producer.send(b"two")
            with pytest.raises(SbpError):
                await delivery
            with pytest.raises(SbpError):
                await producer.close()

    asyncio.run(main())


NOW = datetime(2026, 1, 2, 3, 4, 5, 6)  # noqa: DTZ001 - a column without a zone
FRAME = {"id": [1, 2], "at": [NOW, None], "name": ["a", None], "kind": ["x", "y"]}
FRAMES = {
    "pandas": pd.DataFrame(FRAME).astype({"kind": "category", "at": "datetime64[ns]"}),
    "polars": pl.DataFrame(FRAME).with_columns(
        pl.col("kind").cast(pl.Categorical),
        pl.col("at").cast(pl.Datetime("ns")),
        pl.col("id").cast(pl.UInt32),
    ),
    "arrow": pa.table(FRAME).cast(
        pa.schema(
            [
                *(("id", pa.uint16()), ("at", pa.timestamp("ns"))),
                *(("name", pa.large_string()), ("kind", pa.string_view())),
            ]
        )
    ),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_a_stream_takes_the_columns_of_a_frame(sbp, request, kind):
    name = re.sub(r"[^\w-]", "-", request.node.name)
    frame = FRAMES[kind]
    sbp.create_stream(name, schema=frame)
    with sbp.producer(name) as producer:
        producer.send_many(frame)
    found = [each.columns for each in sbp.consumer(name)]
    assert found == [
        dict(zip(FRAME, row, strict=True)) for row in zip(*FRAME.values(), strict=True)
    ]


def test_a_frame_whose_values_would_change_is_refused(sbp, request):
    frame = pd.DataFrame({"at": pd.to_datetime([1], unit="ns")})
    sbp.create_stream(request.node.name, schema=frame)
    with (
        sbp.producer(request.node.name) as producer,
        pytest.raises(SchemaError, match=r"column at: .* would lose data"),
    ):
        producer.send_many(frame)
    late = pd.to_timedelta([1], unit="s").astype("timedelta64[ns]")
    with pytest.raises(SchemaError, match="column late has type duration"):
        sbp.create_stream("late", schema=pd.DataFrame({"late": late}))
    with pytest.raises(TypeError, match="pass a schema or table of Arrow"):
        sbp.create_stream("late", schema={"a": "int"})


def test_headers_are_those_of_the_call(sbp, stream):
    headers = {}
    with sbp.producer(stream) as producer:
        for number in range(3):
            headers["n"] = b"%d" % number
            producer.send(b"v", headers=headers)
        headers["n"] = 1
    assert [each.headers["n"] for each in sbp.consumer(stream)] == [b"0", b"1", b"2"]


class OddError(BaseException):
    """As greenlets are ended by."""


def test_calls_that_would_wait_for_their_callback_are_refused(sbp, stream, caplog):
    def end():
        raise OddError

    with sbp.producer(stream, buffer_bytes=1 << 20, batch_bytes=1 << 20) as producer:

        def call_back(_):
            delivery.add_done_callback(lambda _: None)
            with pytest.raises(ConfigurationError, match=r"close\(\) in a callback"):
                sbp.close()
            producer.flush()

        delivery = producer.send(b"1")
        delivery.add_done_callback(call_back)
        producer.send(b"2").add_done_callback(lambda _: sys.exit())
        producer.flush()
        producer.send(b"3").add_done_callback(lambda _: end())
        producer.flush()
        assert producer.send(b"4").result() == 3
    assert "flush() in a callback" in caplog.text
    assert "SystemExit" in caplog.text
    assert "OddError" in caplog.text


def test_a_callback_may_use_the_cluster(sbp, stream):
    found = []
    with sbp.producer(stream) as producer:
        producer.send(b"1").add_done_callback(lambda _: found.extend(sbp.streams()))
    assert stream in {each.name for each in found}


def test_deliveries_are_done_once_a_producer_that_failed_is_closed(sbp, stream):
    reports = []
    producer = sbp.producer(stream, linger_ms=3_600_000, batch_records=2_000)
    producer.send(b"first")
    sbp.delete_stream(stream)
    lost = [producer.send(b"x") for _ in range(1_000)]

    def slow(_):
        reports.append(len(reports))

    for each in lost:
        each.add_done_callback(slow)
    with pytest.raises(NotFoundError):
        producer.close()
    assert all(each.done() for each in lost)
    assert len(reports) == 1_000
