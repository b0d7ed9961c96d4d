"""Numbered batches in flight, when a server leads a stream again before it settled an older range.

Such a server was paused or cut off: its older range ended without the batches that it had accepted
last. The writer appended them elsewhere since, with the same sequences.
"""

import asyncio

import pytest

from sbp_core.errors import RangeSealedError, WriterGapError
from sbp_core.log.entry import Entry
from sbp_core.log.states.writer_states import (
    NumberedBatch,
    WriterState,
    WriterStates,
    encode_writers,
)
from sbp_core.rangeserver.appending.append_items import (
    BatchNumber,
    InFlight,
    PendingAppend,
    Writers,
)
from sbp_core.rangeserver.appending.commit import Written
from sbp_core.segment_format import EntryKind

STREAM, WRITER = 7, "w"
OLD_RANGE, NEW_RANGE = 4, 6
BATCH = memoryview(b"batch")


class LedAgain:
    """A server that has batches 38 and 39 in flight in range 4, and leads range 6.

    Batch 38 is in range 4 and waits for another disk. Batch 39 is not: it is in range 5, as the
    ones up to 50 are, which this server learned from the placement driver.
    """

    def __init__(self) -> None:
        self.known = WriterStates()
        self.in_flight = InFlight()
        self.writers = Writers(self.known, self.in_flight)
        self.old = [self.begin(38, 100, OLD_RANGE), self.begin(39, 101, OLD_RANGE)]
        batches = tuple(NumberedBatch(100 + at, 1, 0) for at in range(13))
        writers = encode_writers([WriterState(WRITER, 50, batches)])
        self.known.apply(Entry(EntryKind.RANGE_WRITERS, STREAM, NEW_RANGE, 113, 1, writers), 0)

    def begin(self, sequence: int, base_offset: int, range_index: int) -> PendingAppend:
        pending = PendingAppend((STREAM, WRITER), sequence, base_offset, 1, BATCH, range_index)
        self.in_flight.begin(pending)
        self.in_flight.follow([pending], asyncio.get_running_loop().create_future())
        return pending

    def check_next(self, sequence: int) -> None:
        self.writers.check_next(number(sequence), NEW_RANGE)

    def maybe_repeat(self, sequence: int) -> object:
        return self.writers.maybe_repeat(number(sequence), NEW_RANGE, 1, BATCH)


def number(sequence: int) -> BatchNumber:
    return BatchNumber(STREAM, WRITER, sequence)


def in_loop(check):
    async def body():
        await check()

    return lambda: asyncio.run(body())


@in_loop
async def test_the_writer_goes_on_where_the_stream_has_it():
    server = LedAgain()
    assert server.maybe_repeat(51) is None
    server.check_next(51)
    with pytest.raises(WriterGapError, match="batch 51 comes next"):
        server.check_next(40)


@in_loop
async def test_batches_of_the_open_range_count_before_the_log_has_them():
    server = LedAgain()
    first = server.begin(51, 113, NEW_RANGE)
    server.check_next(52)
    assert server.maybe_repeat(51) is first


@in_loop
async def test_a_repeat_waits_for_the_disk_that_its_batch_waits_for():
    server = LedAgain()
    assert server.maybe_repeat(38) is server.old[0]
    assert server.maybe_repeat(45) == NumberedBatch(107, 1, 0)


@in_loop
async def test_batches_in_flight_with_the_same_sequence_end_apart():
    server = LedAgain()
    (_, old), new = server.old, server.begin(39, 113, NEW_RANGE)
    old.written.set_result(Written(0, truncated=[(STREAM, OLD_RANGE)]))
    await asyncio.sleep(0)
    with pytest.raises(RangeSealedError):
        old.placed()
    assert list(server.in_flight.of((STREAM, WRITER))) == [server.old[0], new]
    new.written.set_result(Written(0))
    await asyncio.sleep(0)
    assert list(server.in_flight.of((STREAM, WRITER))) == [server.old[0]]
