"""Requests for batches, and batches that are found while the log changes between two searches."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pyarrow as pa
import pytest

from sbp_core import filter_limits, limits
from sbp_core.errors import InvalidRequestError
from sbp_core.log.cleaning import Cleaner
from sbp_core.rangeserver.fetching.batch_finder import BatchFinder, Item, item_of
from sbp_core.records import StreamSchema, maybe_kept_columns
from sbp_core.wire.headers import FetchInfo, Projection
from tests.support.disk import FaultyDisk
from tests.support.log import batch, concatenate, created, open_log

KEY = (1, 0)
BATCH_BYTES = 10_000
COUNT = 30


def finder_of(log, threads):
    """A finder of batches of one range in `log`."""
    hosted = SimpleNamespace(
        key=KEY,
        range_index=0,
        start_offset=0,
        next_offset=COUNT,
        end_offset=None,
        receive=lambda _: None,
    )
    table = SimpleNamespace(ranges_of=lambda _: [hosted], range_at=lambda *_: hosted)
    return BatchFinder(table, log, threads)


def found(slots):
    return [(slot.base_offset, slot.end_offset) for slot in slots]


def test_batches_that_are_merged_meanwhile_are_not_in_an_answer_twice():
    """A second search adds more to an answer with places, and found those before in one of them."""
    log = open_log(FaultyDisk(), segment_bytes=10_000_000)
    log.append([created()])
    for offset in range(COUNT):
        log.append([batch(offset, body=bytes(BATCH_BYTES))])
    log.end_segment()
    item = Item(0, *KEY, 0, -1, 5 * BATCH_BYTES, None, 10 * BATCH_BYTES * COUNT)
    with ThreadPoolExecutor(1) as threads:
        finder = finder_of(log, threads)
        answer = asyncio.run(finder.find(finder.answer(item, 1)))
        assert found(answer.slots) == [(at, at + 1) for at in range(5)]
        assert Cleaner(log, concatenate).clean().merged_count
        assert found(log.batches_from(KEY, 5)) == [(0, COUNT)]
        assert asyncio.run(finder.find(finder.with_more([answer])[0])) == answer


def test_a_projection_longer_than_any_schema_needs_is_refused():
    """Servers remember some projections, so long ones would take their memory."""
    size_bytes = filter_limits.PROJECTION_BYTES_MAX
    longest = Projection("s", bytes(size_bytes - 1), b"1", "k" * 32)
    assert item_of(FetchInfo(projections=(longest,))).selection.projections == (longest,)
    for nodes, buffers in ((size_bytes, 1), (0, 3_500_000)):
        longer = Projection("s", bytes(nodes), bytes(buffers), "k" * 32)
        with pytest.raises(InvalidRequestError, match=f"'s' has {nodes + buffers} bytes of bits"):
            item_of(FetchInfo(projections=(longest, longer)))


def test_a_projection_of_the_largest_schema_is_taken():
    texts = [(f"t{at}", pa.string()) for at in range(limits.SCHEMA_FIELDS_MAX - 4)]
    schema = StreamSchema.of(pa.schema([*texts, ("m", pa.map_(pa.string(), pa.string()))]))
    kept = maybe_kept_columns(schema, pa.schema([schema.arrow.field("t0")]))
    item = item_of(FetchInfo(projections=(kept.projection,)))
    assert item.selection.projections == (kept.projection,)
