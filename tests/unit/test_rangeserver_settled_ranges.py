"""How many servers have to have settled a range before a repeat in it is acknowledged."""

from __future__ import annotations

import asyncio

import pytest

from sbp_core.errors import ConnectError
from sbp_core.rangeserver.replicating.settled_ranges import SettledRanges
from sbp_core.wire.headers import RangeServer, ReplicaServer, StreamRange


class Placement:
    """Lists one range: the second of stream 1, offsets 5 to 8."""

    def __init__(self, member_count, ack_count, end_offset=9, end_seq=4):
        servers = tuple(
            ReplicaServer(RangeServer(each, f"h:{each}"), is_primary=each == 1)
            for each in range(1, member_count + 1)
        )
        self.listed = [
            StreamRange(1, 1, 5, end_offset, servers=servers, ack_count=ack_count, end_seq=end_seq)
        ]

    async def list_ranges(self, stream_id):
        return self.listed


def answered(placement, settled_count, **which):
    """Whether a repeat is answered once the servers were asked whether they have settled."""

    class Servers(SettledRanges):
        async def is_settled_at(self, address, key, end_offset):
            if int(address[2:]) > settled_count:
                raise ConnectError("down")
            return (key, end_offset) == ((1, 1), 9)

    async def main():
        ranges = Servers(placement, None)
        assert not ranges.has(1, **which), "it is not known yet"
        await asyncio.gather(*ranges._asking.values())
        try:
            return ranges.has(1, **which)
        finally:
            await ranges.stop()

    return asyncio.run(main())


@pytest.mark.parametrize("which", [{"offset": 5}, {"offset": 8}, {"range_index": 1}])
@pytest.mark.parametrize(
    ("member_count", "ack_count", "needed"),
    [(2, 1, 1), (2, 2, 1), (3, 1, 1), (3, 2, 2), (3, 3, 1), (5, 3, 3), (5, 4, 2)],
)
def test_as_many_as_store_an_append_or_as_the_fence_needed(
    member_count, ack_count, needed, which
) -> None:
    placement = Placement(member_count, ack_count)
    assert answered(placement, needed, **which)
    assert not answered(placement, needed - 1, **which)


@pytest.mark.parametrize("which", [{"offset": 4}, {"range_index": 0}])
def test_what_was_trimmed_away_needs_no_disk(which) -> None:
    assert answered(Placement(3, 2), 0, **which)


def test_a_range_with_one_replica_is_where_it_was() -> None:
    assert answered(Placement(1, 1, end_seq=-1), 0, offset=5)


@pytest.mark.parametrize("which", [{"offset": 9}, {"range_index": 2}])
def test_a_range_that_is_not_listed_is_not_settled(which) -> None:
    assert not answered(Placement(3, 2), 3, **which)


def test_an_open_range_is_not_settled() -> None:
    assert not answered(Placement(3, 2, end_offset=-1, end_seq=-1), 3, range_index=1)
