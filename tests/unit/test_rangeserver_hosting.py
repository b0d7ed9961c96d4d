"""Ranges that a range server hosts: their starts, their writers, and lookups of missing ones."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sbp_core.errors import StatusCode
from sbp_core.log.entry import Entry
from sbp_core.log.states.range_states import LoggedRange, RangeState, RangeStates
from sbp_core.log.states.writer_states import WriterStates
from sbp_core.rangeserver.fetching.batch_finder import LATEST_OFFSET, BatchFinder, item_of
from sbp_core.rangeserver.hosted_ranges import RangeTable
from sbp_core.rangeserver.hosting import PlacedRange, RangeHost, StreamWaiters
from sbp_core.rangeserver.range_handlers import RangeOperations
from sbp_core.replication import Prefix
from sbp_core.server.answers import responses_of
from sbp_core.wire.headers import (
    FetchInfo,
    LookupOffsetInfo,
    LookupOffsetsRequest,
    RangeServer,
    ReplicaServer,
    StreamRange,
    StreamRanges,
    SyncRangesRequest,
)

RANGE_COUNT = 500
PlacedRanges = dict[tuple[int, int], PlacedRange]


class CountingTable(RangeTable):
    """Counts the ranges that are looked for."""

    looked_for = 0

    def has_whole_ranges(self, stream_id: int, range_indexes: range) -> bool:
        self.looked_for += len(range_indexes)
        return super().has_whole_ranges(stream_id, range_indexes)


def host_of(*range_indexes: int) -> tuple[RangeHost, CountingTable]:
    table = CountingTable(LoggedRange(1, index, 0, 0) for index in range_indexes)
    unused: Any = None
    return RangeHost(table, unused, unused, unused, WriterStates()), table


def test_the_ranges_before_one_are_looked_for_once() -> None:
    host, table = host_of(*range(RANGE_COUNT))
    for _ in range(10):
        assert host.knows_writers(1, RANGE_COUNT - 1)
    assert table.looked_for == RANGE_COUNT - 1
    assert host.knows_writers(1, RANGE_COUNT)
    assert table.looked_for == RANGE_COUNT
    assert host.knows_writers(1, 3)


@pytest.mark.parametrize(
    ("start_offset", "listed_end", "is_hosted"),
    [(9, 9, True), (9, None, True), (8, 9, False), (10**15, 9, False), (10**15, 10**15, False)],
)
def test_a_range_starts_where_the_one_before_ends(
    start_offset: int, listed_end: int | None, is_hosted: bool
) -> None:
    table = RangeTable([LoggedRange(1, 0, 3, 9, RangeState.SEALED)])
    written: list[Entry] = []

    class Committer:
        async def submit(self, entries: Sequence[Entry]) -> None:
            written.extend(entries)

    class Placement:
        async def list_hosted_ranges(self, stream_ids: Sequence[int]) -> PlacedRanges:
            ends = {1: listed_end, 2: 5}
            return {
                (stream_id, index): PlacedRange(StreamRange(stream_id, index, start, end))
                for stream_id in stream_ids
                for index, start, end in ((0, 3, ends[stream_id]), (1, start_offset, -1))
                if end is not None
            }

    async def main() -> None:
        fakes: Any = (Committer(), StreamWaiters(), Placement())
        await RangeHost(table, *fakes, WriterStates()).learn([(1, 1), (2, 1)])

    asyncio.run(main())
    created = [(entry.stream_id, entry.base_offset) for entry in written]
    assert created == ([(1, start_offset)] if is_hosted else [])


def test_a_missing_range_is_looked_for_until_it_is_there() -> None:
    host, table = host_of(0, 1, 3)
    assert not host.knows_writers(1, 4)
    assert host.knows_writers(1, 2)
    assert not host.knows_writers(1, 4)
    table.publish(LoggedRange(1, 2, 0, 0))
    assert host.knows_writers(1, 4)


def test_a_stream_of_another_time_fails_alone_in_its_frame() -> None:
    """The server holds a stream 1 that is older than the one with that id at the PD."""
    held = LoggedRange(1, 0, 0, 4, created_at_ms=100, prefix=Prefix())
    here = (ReplicaServer(RangeServer(7)),)
    listed = {
        1: StreamRange(1, 0, 0, 2, servers=here, created_at_ms=200, end_seq=3),
        2: StreamRange(2, 0, 0, -1, servers=here, created_at_ms=300),
    }
    table, states = RangeTable([held]), RangeStates([held])

    class Committer:
        async def submit(self, entries: Sequence[Entry]) -> None:
            changed = states.after(entries)
            states.update(changed)
            host.publish(changed.values())

    class Placement:
        server_id = 7

        async def list_hosted_ranges(self, stream_ids: Sequence[int]) -> PlacedRanges:
            return {(each, 0): PlacedRange(listed[each]) for each in stream_ids}

        def self_table(self) -> RangeServer:
            return here[0].server or RangeServer()

    class Call:
        def __init__(self, request: object) -> None:
            self.request = request

        def decode(self, _: object) -> object:
            return self.request

    ended: list[StreamRange] = []
    placement: Any = Placement()
    committer: Any = Committer()

    async def main() -> tuple[Any, Any, list[Any]]:
        nonlocal host
        host = RangeHost(table, committer, StreamWaiters(), placement, WriterStates())
        host.on_ended = ended.extend
        log: Any = NoRecords()
        readers = ThreadPoolExecutor(1)
        operations = RangeOperations(host, log, placement, readers)
        items = tuple(StreamRanges(each, (listed[each],)) for each in listed)
        synced: Any = Call(SyncRangesRequest(0, items))
        asked = tuple(LookupOffsetInfo(each) for each in listed)
        looked_up: Any = Call(LookupOffsetsRequest(0, asked))
        finder = BatchFinder(table, log, readers)
        tails = [item_of(FetchInfo(stream_id=each, fetch_offset=LATEST_OFFSET)) for each in listed]
        return (
            await only_header(await operations.sync(synced)),
            await only_header(await operations.look_up(looked_up)),
            [await finder.answer(finder.at_tail(each), 0) for each in tails],
        )

    host: RangeHost
    sync, look_up, fetched = asyncio.run(main())
    for results in (sync.sync_responses, look_up.lookup_responses, fetched):
        codes = [each.status.code for each in results]
        assert codes == [StatusCode.CONFLICT, StatusCode.NONE]
    assert not ended


async def only_header(answer: Any) -> Any:
    (response,) = [each async for each in responses_of(answer)]
    return response.header


class NoRecords:
    """A log without records."""

    def maybe_since(self, *_: object) -> None:
        return None
