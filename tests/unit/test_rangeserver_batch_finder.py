"""Batches that are found for an answer, while the log changes between two searches."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

from faulty_disk import FaultyDisk
from log_files import batch, created, open_log
from log_merging import concatenate

from sbp_core.log.cleaning import Cleaner
from sbp_core.rangeserver.fetching.batch_finder import BatchFinder, Item

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
