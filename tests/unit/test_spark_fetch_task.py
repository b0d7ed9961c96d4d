"""Reading a partition: requests, output, and faults that must fail the task."""

import pickle
import threading
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from sbp_core.client import FetchOutcome, ReceivedBatches
from sbp_core.errors import ConnectError, DeadlineExceededError, OffsetOutOfRangeError, StatusCode
from sbp_core.records import encode_rows
from sbp_spark.logical_types import logical_arrow_schema
from sbp_spark.options.endpoints import Servers
from sbp_spark.reading import input_partitions, prefetch
from sbp_spark.reading.input_partitions import SpanPartition, decode_chunks
from sbp_spark.reading.layout import RowsLayout
from sbp_spark.reading.losses import DataLossError, Loss
from sbp_spark.reading.partition_planning import StreamSpan
from sbp_spark.reading.prefetch import Prefetcher, fetch_chunks
from sbp_spark.reading.stored_runs import ENVELOPES_AT_ONCE, BrokenSequenceError
from sbp_spark.row_schema import source_schema
from sbp_spark.spark_internals import rows_with_plan
from tests.support.spark import chunk_of, numbered, rows_of

ARROW = logical_arrow_schema(source_schema(include_headers=False))
ROWS = RowsLayout(ARROW)
SERVERS = Servers(("nowhere:1",))


def span(start, end, stream_id=7, range_index=0):
    return StreamSpan(stream_id, f"s{stream_id}", range_index, start, end, ("host:1",))


def batch(start, end, stream_id=7):
    """A record batch whose values are its offsets."""
    rows = rows_of(numbered(start, end))
    return encode_rows(rows, stream_id=stream_id, timestamp_ms=0, base_offset=start)


class FakeServer:
    """Streams of record batches with a fixed number of records each; answers what it is asked."""

    def __init__(self, *, records_per_batch=10, batches_per_answer=2, stored_to=10**6):
        self.records_per_batch = records_per_batch
        self.batches_per_answer = batches_per_answer
        self.stored_to = stored_to
        self.asked = []

    def fetch(self, items, *, max_wait_ms=0, min_bytes=1):
        self.asked.append(list(items))
        # Answers come in any order: here the last item's first.
        for index, item in reversed(list(enumerate(items))):
            payload, offset = b"", item.fetch_offset
            for _ in range(self.batches_per_answer):
                start = offset - offset % self.records_per_batch
                end = start + self.records_per_batch
                if offset < min(item.end_offset, self.stored_to):
                    payload += batch(start, end, item.stream_id)
                    offset = end
            batches = ReceivedBatches(memoryview(payload), offset)
            yield FetchOutcome(index, item.stream_id, batches, None)


class FailingServer:
    def __init__(self, error):
        self.error = error

    def fetch(self, items, *, max_wait_ms=0, min_bytes=1):
        for index, item in enumerate(items):
            nothing = ReceivedBatches(memoryview(b""), item.fetch_offset)
            yield FetchOutcome(index, item.stream_id, nothing, self.error)


def read(server, spans, **options):
    chunks = fetch_chunks(server, spans, sleep=lambda _: None, **options)
    return list(decode_chunks(chunks, spans, ROWS))


def rows(batches):
    return [row for each in batches for row in each.to_pylist()]


spans_of_streams = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 60)), min_size=1, max_size=40
).map(lambda cuts: [span(at, at + n, stream_id=i) for i, (at, n) in enumerate(cuts)])


@given(spans_of_streams, st.integers(1, 9), st.integers(1, 4))
def test_exactly_the_spans_come_out(spans, records_per_batch, batches_per_answer):
    server = FakeServer(records_per_batch=records_per_batch, batches_per_answer=batches_per_answer)
    found = {}
    for row in rows(read(server, spans)):
        assert row["value"] == b"%d" % row["offset"]
        assert row["stream"] == f"s{row['stream_id']}"
        found.setdefault(row["stream_id"], []).append(row["offset"])
    assert found == {s.stream_id: list(range(s.start_offset, s.end_offset)) for s in spans}
    assert max(len(items) for items in server.asked) <= prefetch.SPANS_PER_FETCH


def test_batches_that_are_merged_between_two_requests_come_once():
    server = FakeServer(records_per_batch=10)
    chunks = fetch_chunks(server, [span(5, 200)], sleep=lambda _: None)

    def merged_meanwhile():
        for number, chunk in enumerate(chunks):
            yield chunk
            server.records_per_batch = (10, 70, 90)[min(number, 2)]

    found = rows(decode_chunks(merged_meanwhile(), [span(5, 200)], ROWS))
    assert [row["offset"] for row in found] == list(range(5, 200))
    assert [row["value"] for row in found] == numbered(5, 200)
    asked = [item.fetch_offset for (item,) in server.asked]
    assert asked[:4] == [5, 20, 40, 140]


def test_a_small_micro_batch_has_the_spans_in_order_whichever_server_answers_first():
    spans = (span(0, 25, range_index=0), span(25, 60, range_index=1), span(60, 61, range_index=2))
    server = FakeServer(batches_per_answer=10)
    found = rows_with_plan.SmallBatches(lambda *_: server).maybe_read(
        [SpanPartition(SERVERS, spans)], ARROW
    )
    assert found is not None
    assert [row["offset"] for row in rows(found)] == list(range(61))


COLUMNS = source_schema(include_headers=True).fields


@given(st.permutations(COLUMNS), st.integers(1, len(COLUMNS)), st.booleans())
def test_batches_have_the_columns_that_were_asked_for(columns, count, is_joined):
    schema = StructType(columns[:count])
    spans = [span(5, 9), span(0, 3, stream_id=8)] if is_joined else [span(5, 9)]
    chunks = [chunk_of(i, memoryview(batch(0, 9, each.stream_id))) for i, each in enumerate(spans)]
    arrow = logical_arrow_schema(schema)
    (found,) = decode_chunks(chunks, spans, RowsLayout(arrow))
    found.validate(full=True)
    assert found.schema.equals(arrow)
    assert found.num_rows == sum(each.record_count for each in spans)
    everything = logical_arrow_schema(StructType(COLUMNS))
    (whole,) = decode_chunks(chunks, spans, RowsLayout(everything))
    assert found.equals(whole.select(schema.names))


def test_columns_that_are_not_requested_are_not_built():
    """A stream whose name is no text has no column `stream`."""
    nameless = replace(span(0, 9), stream_name=7)
    chunks = [chunk_of(0, memoryview(batch(0, 9)))]
    few = logical_arrow_schema(StructType([COLUMNS[1], COLUMNS[6]]))
    (found,) = decode_chunks(chunks, [nameless], RowsLayout(few))
    assert found.schema.names == ["stream_id", "value"]
    with pytest.raises(pa.ArrowTypeError):
        list(decode_chunks(chunks, [nameless], ROWS))


def test_more_batches_than_are_looked_at_at_once():
    server = FakeServer(records_per_batch=1, batches_per_answer=3 * ENVELOPES_AT_ONCE)
    found = rows(read(server, [span(7, 2 * ENVELOPES_AT_ONCE + 9)]))
    assert [row["offset"] for row in found] == list(range(7, 2 * ENVELOPES_AT_ONCE + 9))
    assert all(row["value"] == b"%d" % row["offset"] for row in found)


def test_a_large_batch_is_passed_without_a_copy():
    payload = memoryview(batch(0, 20_000))
    (found,) = decode_chunks([chunk_of(0, payload)], [span(5, 15_005)], ROWS)
    assert found.num_rows == 15_000
    start = pa.py_buffer(payload).address
    address = found.column("value").buffers()[2].address
    assert start <= address < start + len(payload)


@pytest.mark.parametrize(
    ("stored", "told"),
    [
        ([(0, 10), (20, 30)], r"expected offset 10 next, found a record batch of offsets \[20, 30"),
        ([(0, 10), (5, 15)], r"expected offset 10 next, found a record batch of offsets \[5, 15"),
        ([(0, 10), (0, 10)], r"expected offset 10 next, found a record batch of offsets \[0, 10"),
        ([(10, 20)], r"expected offset 0 next, found a record batch of offsets \[10, 20"),
        ([(0, 10)], "expected offset 10 next, found the end"),
    ],
)
def test_gaps_and_overlaps_fail_the_task(stored, told):
    payload = memoryview(b"".join(batch(*bounds) for bounds in stored))
    with pytest.raises(BrokenSequenceError, match=rf"stream s7 \(id 7\), range 0, .*{told}"):
        list(decode_chunks([chunk_of(0, payload)], [span(0, 30)], ROWS))


@pytest.mark.parametrize(
    ("bounds", "lost"), [((15, 90), (5, 15)), ((80, 90), (5, 30)), ((0, 3), (5, 30))]
)
def test_lost_offsets_are_named_exactly(bounds, lost):
    error = OffsetOutOfRangeError(
        StatusCode.OFFSET_OUT_OF_RANGE, "gone", OffsetOutOfRangeError.encode_bounds(*bounds)
    )
    with pytest.raises(DataLossError) as raised:
        read(FailingServer(error), [span(5, 30)])
    assert raised.value.losses == (Loss(7, *lost),)
    assert "stream 7 (s7)" in str(raised.value)


class TrimmedServer(FakeServer):
    """Trimmed up to an offset, before or after the first answer."""

    def __init__(self, trimmed_to, *, after=0, **options):
        super().__init__(**options)
        self.trimmed_to = trimmed_to
        self.answers_before = after

    def fetch(self, items, **options):
        first = self.trimmed_to if len(self.asked) >= self.answers_before else 0
        gone = OffsetOutOfRangeError(
            StatusCode.OFFSET_OUT_OF_RANGE,
            "gone",
            OffsetOutOfRangeError.encode_bounds(first, 10**6),
        )
        for outcome in super().fetch(items, **options):
            if items[outcome.item_index].fetch_offset < first:
                index, offset = outcome.item_index, items[outcome.item_index].fetch_offset
                nothing = ReceivedBatches(memoryview(b""), offset)
                yield FetchOutcome(index, outcome.stream_id, nothing, gone)
            else:
                yield outcome


@given(st.integers(0, 30), st.integers(1, 60), st.integers(0, 100), st.integers(0, 3))
def test_records_trimmed_during_a_read_are_skipped_exactly(start, count, trimmed_to, after):
    spans = [span(start, start + count), span(start + count, start + count + 5, range_index=1)]
    server = TrimmedServer(trimmed_to, after=after, batches_per_answer=1)
    found = [row["offset"] for row in rows(read(server, spans, is_loss_fatal=False))]
    assert found == sorted(set(found))
    kept = [each for each in range(start, start + count + 5) if each >= trimmed_to]
    assert found[len(found) - len(kept) :] == kept
    if after == 0:
        assert found == kept


def test_skipped_records_are_logged(caplog):
    read(TrimmedServer(17), [span(5, 30)], is_loss_fatal=False)
    assert "stream 7 (s7): [5, 17)" in caplog.text


def test_other_errors_tell_the_span():
    with pytest.raises(ConnectError) as raised:
        read(FailingServer(ConnectError("refused")), [span(5, 30)])
    assert "stream s7 (id 7), range 0, offsets [5, 30)" in raised.value.__notes__[0]


def test_silence_has_an_end():
    seconds = iter(range(1_000_000))
    server = FakeServer(stored_to=20)
    with pytest.raises(DeadlineExceededError, match="anything at offset 20 for 60 s"):
        read(server, [span(0, 30)], clock=lambda: next(seconds))


def test_silence_is_counted_from_the_last_records_on():
    server = FakeServer(stored_to=20)
    seconds = 0

    def clock():
        return seconds

    def pass_50_seconds_and_store_more(_):
        nonlocal seconds
        seconds += 50
        server.stored_to += 5

    spans = [span(0, 100)]
    chunks = fetch_chunks(server, spans, clock=clock, sleep=pass_50_seconds_and_store_more)
    found = decode_chunks(chunks, spans, ROWS)
    assert sum(each.num_rows for each in found) == 100


def test_late_records_are_waited_for():
    server = FakeServer(stored_to=20)

    def store_more(_):
        server.stored_to = 40

    chunks = fetch_chunks(server, [span(0, 40)], sleep=store_more)
    assert sum(bool(chunk.batches.payload) for chunk in chunks) == 2


def test_a_partition_holds_what_a_task_needs_and_nothing_else():
    partition = SpanPartition(SERVERS, (span(0, 1), span(1, 2)))
    assert pickle.loads(pickle.dumps(partition)) == partition


def test_an_empty_partition_sends_no_request():
    partition = SpanPartition(SERVERS, ())
    assert list(input_partitions.read_partition(partition, ARROW)) == []


def chunks_of(sizes):
    for index, size in enumerate(sizes):
        yield chunk_of(index, memoryview(bytes(size)), is_more=True)


def test_the_thread_stays_within_its_bytes():
    drawn = threading.Semaphore(0)
    count = 0

    def counted():
        nonlocal count
        for chunk in chunks_of([10] * 50):
            count += 1
            drawn.release()
            yield chunk

    prefetcher = Prefetcher(counted(), bytes_max=30)
    for taken, _ in enumerate(prefetcher, start=1):
        assert drawn.acquire(timeout=10)
        assert count <= taken + 2 + 1  # three with the one taken; one waits to be put
    assert count == 50


def test_a_chunk_larger_than_the_queue_passes():
    assert len(list(Prefetcher(chunks_of([100, 5, 100]), bytes_max=10))) == 3


def drawn_by(chunks, is_more):
    """Yield chunks, the last ones with more to ask for behind them, and note who draws them."""
    threads = []

    def noted():
        for each in is_more:
            threads.append(threading.current_thread())
            yield chunk_of(len(threads), memoryview(b"x"), is_more=each)

    assert [each.span_index for each in chunks(noted())] == list(range(1, len(is_more) + 1))
    return [each is threading.current_thread() for each in threads]


def test_a_thread_is_begun_only_where_more_is_to_be_asked_for():
    def prefetched(chunks):
        return Prefetcher(chunks, bytes_max=10)

    assert drawn_by(prefetched, [False, False, False]) == [True, True, True]
    assert drawn_by(prefetched, [False, True, True, False]) == [True, True, False, False]


def test_a_chunk_announces_whether_more_requests_follow():
    def more_of(spans):
        chunks = fetch_chunks(FakeServer(batches_per_answer=1), spans)
        return [chunk.is_more for chunk in chunks]

    assert more_of([span(0, 10)]) == [False]
    assert more_of([span(0, 30)]) == [True, True, False]
    assert more_of([span(0, 10), span(10, 20)]) == [True, False]
    many = [span(0, 10, stream_id=each) for each in range(prefetch.SPANS_PER_FETCH + 1)]
    assert more_of(many) == [True] * prefetch.SPANS_PER_FETCH + [False]


def test_a_partly_read_task_is_closed_without_a_thread_too():
    ended = []

    def two():
        try:
            yield chunk_of(0, memoryview(b"x"))
            yield chunk_of(1, memoryview(b"x"))
        finally:
            ended.append(True)

    prefetcher = Prefetcher(two(), bytes_max=10)
    next(iter(prefetcher))
    prefetcher.close()
    assert ended


def test_errors_of_the_thread_are_raised_in_the_task_after_what_came_before():
    def broken():
        yield from chunks_of([1, 1])
        raise ConnectError("refused")

    chunks = iter(Prefetcher(broken(), bytes_max=10))
    assert [next(chunks).span_index, next(chunks).span_index] == [0, 1]
    with pytest.raises(ConnectError, match="refused"):
        next(chunks)


class ThriftyServer(FakeServer):
    """Answers no more than it is asked for, but one batch; knows what was handed out."""

    def __init__(self, **options):
        super().__init__(**options)
        self.served_bytes = 0
        self.asked_bytes_max = 0

    def fetch(self, items, **options):
        self.asked_bytes_max = max(self.asked_bytes_max, sum(each.max_bytes for each in items))
        batch_bytes = len(batch(0, self.records_per_batch))
        self.batches_per_answer = max(1, items[0].max_bytes // batch_bytes)
        for outcome in super().fetch(items, **options):
            self.served_bytes += len(outcome.payload)
            yield outcome


@pytest.mark.parametrize("buffer_batches", [2, 3, 8])
def test_a_task_holds_no_more_than_its_buffer(buffer_batches):
    sizes = [len(batch(start, start + 10_000)) for start in range(0, 300_000, 10_000)]
    server = ThriftyServer(records_per_batch=10_000)
    buffer_bytes = buffer_batches * max(sizes)
    partition = SpanPartition(SERVERS, (span(0, 300_000),), buffer_bytes=buffer_bytes)
    decoded_bytes = 0
    found = input_partitions.read_partition(partition, ARROW, lambda *_: server)
    for size, _ in zip(sizes, found, strict=True):
        assert server.served_bytes - decoded_bytes <= buffer_bytes
        decoded_bytes += size
    assert server.asked_bytes_max <= buffer_bytes // 2


def test_closing_ends_the_thread_and_what_it_draws_from():
    ended = threading.Event()

    def endless():
        try:
            while True:
                yield from chunks_of([10])
        finally:
            ended.set()

    prefetcher = Prefetcher(endless(), bytes_max=20)
    next(iter(prefetcher))
    prefetcher.close()
    assert ended.wait(10)


def test_a_chunk_is_held_until_the_next_one_is_asked_for():
    drawn = []

    def noted():
        for chunk in chunks_of([10] * 4):
            drawn.append(chunk)
            yield chunk

    prefetcher = Prefetcher(noted(), bytes_max=10)
    for taken, _ in enumerate(prefetcher, start=1):
        assert len(drawn) <= taken + 1
    assert len(drawn) == 4


def test_a_task_that_is_not_read_to_its_end_closes_its_thread():
    server = FakeServer(records_per_batch=10_000)
    partition = SpanPartition(SERVERS, (span(0, 10**7),), buffer_bytes=1_000_000)
    reading = input_partitions.read_partition(partition, ARROW, lambda *_: server)
    assert next(reading).num_rows == 10_000
    (thread,) = (each for each in threading.enumerate() if each.name == "sbp-prefetch")
    assert thread.is_alive()
    reading.close()
    thread.join(10)
    assert not thread.is_alive()
