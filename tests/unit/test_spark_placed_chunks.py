"""Batches that a fetch left where they are: read when they are decoded, lost if trimmed before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_core.client import Batches, FetchOutcome, ReceivedBatches
from sbp_core.errors import OffsetOutOfRangeError, StatusCode
from sbp_core.records import encode_rows
from sbp_spark.logical_types import logical_arrow_schema
from sbp_spark.reading.input_partitions import decode_chunks
from sbp_spark.reading.layout import RowsLayout
from sbp_spark.reading.losses import DataLossError
from sbp_spark.reading.planning import StreamSpan
from sbp_spark.reading.prefetch import Prefetcher, fetch_chunks, read_chunks
from sbp_spark.row_schema import source_schema
from tests.support.spark import numbered, rows_of

ROWS = RowsLayout(logical_arrow_schema(source_schema(include_headers=False)))
BATCH_RECORDS = 10
EMPTY = memoryview(b"")


def span(start, end, stream_id=7):
    return StreamSpan(stream_id, f"s{stream_id}", 0, start, end, ("host:1",))


def batch(start, stream_id):
    rows = rows_of(numbered(start, start + BATCH_RECORDS))
    return encode_rows(rows, stream_id=stream_id, timestamp_ms=0, base_offset=start)


class LeftBatches(Batches):
    """Batches of 10 records in [start, end) that a server holds."""

    def __init__(self, server, stream_id, start, end):
        self.size_bytes, self.next_offset = 200_000 * (end - start) // BATCH_RECORDS, end
        self.server, self.stream_id, self.start = server, stream_id, start

    def pieces(self, piece_bytes=1):
        for at in range(self.start, self.next_offset, BATCH_RECORDS):
            if not self.server.readable and at < self.server.trimmed_to:
                raise self.server.gone()
            self.server.readable -= self.server.readable > 0
            payload = memoryview(batch(at, self.stream_id))
            yield ReceivedBatches(payload, at + BATCH_RECORDS)


class LeavingServer:
    """Leaves five batches at a time, if the reader lets it; else sends one of them.

    The first `readable` are read in time; from then on records below `trimmed_to` are gone.
    """

    def __init__(self, readable=10**6, trimmed_to=0):
        self.readable = readable
        self.trimmed_to = trimmed_to
        self.fetched = []

    def gone(self):
        bounds = OffsetOutOfRangeError.encode_bounds(self.trimmed_to, 10**6)
        return OffsetOutOfRangeError(StatusCode.OFFSET_OUT_OF_RANGE, "gone", bounds)

    def fetch(self, items, *, max_wait_ms=0, min_bytes=1, leaves_batches=False):
        for index, item in enumerate(items):
            first = item.fetch_offset - item.fetch_offset % BATCH_RECORDS
            if leaves_batches:
                starts = range(first, min(item.end_offset, first + 50), BATCH_RECORDS)
                left = LeftBatches(self, item.stream_id, first, starts[-1] + BATCH_RECORDS)
                yield FetchOutcome(index, item.stream_id, left, None)
                continue
            self.fetched.append(item.fetch_offset)
            if item.fetch_offset < self.trimmed_to:
                nothing = ReceivedBatches(EMPTY, item.fetch_offset)
                yield FetchOutcome(index, item.stream_id, nothing, self.gone())
                continue
            payload = memoryview(batch(first, item.stream_id))
            sent = ReceivedBatches(payload, first + BATCH_RECORDS)
            yield FetchOutcome(index, item.stream_id, sent, None)


def offsets(server, spans, *, is_loss_fatal=True):
    """Offsets by stream, as a task reads them."""
    fetched = fetch_chunks(server, spans, is_loss_fatal=is_loss_fatal, leaves_batches=True)
    ahead = Prefetcher(fetched, bytes_max=1)
    chunks = read_chunks(server, ahead, spans, round_bytes=1_000, is_loss_fatal=is_loss_fatal)
    found = {}
    for rows in decode_chunks(chunks, spans, ROWS):
        for row in rows.to_pylist():
            assert row["value"] == b"%d" % row["offset"]
            found.setdefault(row["stream_id"], []).append(row["offset"])
    return found


spans_of_streams = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 150)), min_size=1, max_size=20
).map(lambda cuts: [span(at, at + n, stream_id=i) for i, (at, n) in enumerate(cuts)])


@given(spans_of_streams)
def test_exactly_the_spans_come_out(spans):
    server = LeavingServer()
    expected = {each.stream_id: list(range(each.start_offset, each.end_offset)) for each in spans}
    assert offsets(server, spans) == expected
    assert server.fetched == []


@given(st.integers(0, 40), st.integers(1, 150), st.integers(0, 12), st.integers(0, 200))
def test_exactly_what_was_trimmed_before_it_was_read_is_left_out(start, count, readable, trimmed):
    server = LeavingServer(readable, trimmed)
    found = offsets(server, [span(start, start + count)], is_loss_fatal=False).get(7, [])
    read_to = start - start % BATCH_RECORDS + readable * BATCH_RECORDS
    assert found == [at for at in range(start, start + count) if at < read_to or at >= trimmed]


def test_records_that_were_trimmed_before_the_read_are_lost():
    with pytest.raises(DataLossError, match=r"\[20, 50\)"):
        offsets(LeavingServer(2, trimmed_to=70), [span(3, 100)])


def test_reading_goes_on_behind_what_is_lost():
    found = offsets(LeavingServer(2, trimmed_to=35), [span(3, 100)], is_loss_fatal=False)
    assert found == {7: [*range(3, 20), *range(35, 100)]}


def test_a_chunk_counts_for_what_is_to_be_read():
    (chunk,) = fetch_chunks(LeavingServer(), [span(0, 50)], leaves_batches=True)
    assert chunk.batches.size_bytes == 5 * 200_000
