"""The search for records: what it passes over, and where it ends."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from sbp_core.client import FetchOutcome, ReceivedBatches, StreamInfo
from sbp_core.errors import ConnectError
from sbp_core.records import StreamSchema, encode_columns, with_base_offset
from sbp_core.web.console.record_search import RecordFilter, Search
from tests.support.cluster import rows_batch

INFO = StreamInfo(1, "s", 1, 0, 0)
ALL = RecordFilter()
SCHEMA = StreamSchema.of(pa.schema([pa.field("id", pa.int64())]))


def typed_batch(*numbers):
    rows = pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA.arrow)
    return encode_columns(rows, SCHEMA, stream_id=1, timestamp_ms=0)


class Fetches:
    """Answers each fetch with the batch at its offset, or with an error."""

    def __init__(self, *batches):
        self.batches = {}
        self.fetched = []
        offset = 0
        for batch, count in batches:
            content = batch
            if isinstance(batch, bytes):
                content = b"".join(with_base_offset(batch, offset))
            self.batches[offset] = content, offset + count
            offset += count
        self.end = offset

    async def fetch(self, items, *, max_wait_ms):
        (item,) = items
        self.fetched.append(item.fetch_offset)
        content, end = self.batches[item.fetch_offset]
        if isinstance(content, Exception):
            yield FetchOutcome(0, 1, ReceivedBatches(memoryview(b""), item.fetch_offset), content)
        else:
            yield FetchOutcome(0, 1, ReceivedBatches(memoryview(content), end), None)

    async def describe_schemas(self, stream_ids):
        return {1: ()}


def search(fetches, wanted=ALL, count_max=100, **options):
    made = Search(INFO, (0, fetches.end), wanted, count_max, **options)
    return asyncio.run(made.run(fetches))


def offsets(found):
    return [each["offset"] for each in found.records]


def test_batches_that_cannot_be_decoded_are_passed_over_and_reported():
    found = search(
        Fetches((rows_batch([b"a", b"b"]), 2), (typed_batch(1, 2, 3), 3), (rows_batch([b"c"]), 1))
    )
    assert (offsets(found), found.end) == ([0, 1, 5], 6)
    assert len(found.faults) == 1
    assert "does not know" in found.faults[0]


def test_it_ends_behind_the_last_record_that_is_wanted():
    fetches = Fetches((rows_batch([b"a", b"b", b"c"]), 3), (rows_batch([b"a", b"a"]), 2))
    found = search(fetches, RecordFilter(text="a"), 2)
    assert (offsets(found), found.start, found.end) == ([0, 3], 0, 4)
    first = search(fetches, count_max=1)
    assert (offsets(first), first.end) == ([0], 1)


def test_what_was_found_before_an_error_is_shown_with_it():
    error = ConnectError("refused")
    found = search(Fetches((rows_batch([b"a"]), 1), (error, 1)))
    assert (offsets(found), found.end, found.faults) == ([0], 1, ["refused"])
    with pytest.raises(ConnectError):
        search(Fetches((error, 1)))


def test_a_search_without_end_ends_by_its_bytes():
    batches = [(rows_batch([b"x" * 100]), 1)] * 10
    fetches = Fetches(*batches)
    found = search(fetches, RecordFilter(text="nothing"), bytes_max=250)
    assert (found.records, found.end, fetches.fetched) == ([], 3, [0, 1, 2])


def test_the_newest_records_are_those_at_the_end():
    batches = [(rows_batch([b"a", b"b", b"c"]), 3), (rows_batch([b"d", b"e"]), 2)]
    found = search(Fetches(*batches))
    for count, expected in ((1, [4]), (2, [3, 4]), (4, [1, 2, 3, 4]), (9, [0, 1, 2, 3, 4])):
        newest = found.newest(count)
        assert (offsets(newest), newest.end) == (expected, 5)
        assert sum(piece.rows.num_rows for piece in newest.pieces) == len(expected)
    assert [found.newest(count).start for count in (2, 4, 5)] == [3, 1, 0]
