"""Records go when their time is over, or when there are too many, and the disk is free again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from sbp_core.client import EARLIEST, AppendItem, FetchItem, StreamSpec
from sbp_core.errors import ConnectError, LogCorruptionError, OffsetOutOfRangeError
from sbp_core.rangeserver.fetching.batch_finder import BatchFinder
from sbp_core.rangeserver.membership import Membership
from sbp_core.server.runtime import SystemClock
from tests.support.cluster import CoreCluster, allow_small_segments, core_cluster, rows_batch

HOUR_MS = 3_600_000
BATCH_BYTES = 10_000


class ShiftedClock(SystemClock):
    """The machine's clock; its wall clock is ahead by so much."""

    shift_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.shift_ms


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_small_segments(monkeypatch)


BELIEVED_SOON = {"clock_even_ms": 0}
"""A wall clock is believed at the second look."""


def cluster_on(
    folder: Path, clock: SystemClock | None = None, bounds: dict[str, int] | None = None
):
    return core_cluster(
        folder,
        clock=clock,
        segment_bytes=10 * BATCH_BYTES,
        retention_check_interval_ms=20,
        bounds=bounds,
    )


async def create(cluster: CoreCluster, **retention: int) -> int:
    (info,) = await cluster.client.create_streams([StreamSpec(None, **retention)])
    return info.stream_id


async def append(cluster: CoreCluster, stream_id: int, count: int, size: int = BATCH_BYTES) -> None:
    for _ in range(count):
        await cluster.client.append([AppendItem(stream_id, rows_batch([bytes(size)], stream_id))])


async def start_of(cluster: CoreCluster, stream_id: int) -> int:
    (bounds,) = await cluster.client.stream_bounds([stream_id])
    return bounds.start_offset


async def start_at_pd(cluster: CoreCluster, stream_id: int) -> int:
    return (await cluster.client.list_ranges([stream_id]))[stream_id][0].start_offset


async def until(holds: Callable[[], object], wanted: object) -> None:
    give_up_at = time.monotonic() + 30
    while True:
        found = holds()
        found = await found if asyncio.iscoroutine(found) else found
        if found == wanted:
            return
        assert time.monotonic() < give_up_at, f"{found}, not {wanted}"
        await asyncio.sleep(0.02)


def blocks(folder: Path) -> int:
    """Bytes that the log uses on the disk; files may appear and vanish while it counts."""
    used_bytes = 0
    for path in (folder / "rs" / "log").glob("*.*"):
        with suppress(FileNotFoundError):
            used_bytes += path.stat().st_blocks * 512
    return used_bytes


async def check_begins_at(cluster: CoreCluster, stream_id: int, start: int, tail: int) -> None:
    await until(lambda: start_of(cluster, stream_id), start)
    await until(lambda: start_at_pd(cluster, stream_id), start)
    with pytest.raises(OffsetOutOfRangeError) as caught:
        await cluster.read(stream_id, 0)
    assert caught.value.bounds == (start, tail)
    assert [at for at, _ in await cluster.read(stream_id, start)] == list(range(start, tail))


def test_records_go_after_their_time_and_free_the_disk(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ShiftedClock()
        async with cluster_on(tmp_path, clock, BELIEVED_SOON) as cluster:
            short = await create(cluster, retention_period_ms=HOUR_MS)
            kept = await create(cluster)
            for _ in range(10):
                await append(cluster, short, 10)
                await append(cluster, kept, 1, 10)
            before = blocks(tmp_path)
            clock.shift_ms = HOUR_MS // 2
            await append(cluster, short, 1)
            assert await start_of(cluster, short) == 0
            clock.shift_ms = HOUR_MS + 60_000
            await check_begins_at(cluster, short, 100, 101)
            await until(lambda: blocks(tmp_path) < before / 3, True)
            assert len(await cluster.read(kept)) == 10
            clock.shift_ms = 3 * HOUR_MS
            await check_begins_at(cluster, short, 101, 101)
            await append(cluster, short, 1)
            assert [at for at, _ in await cluster.read(short, 101)] == [101]
        async with cluster_on(tmp_path, clock, BELIEVED_SOON) as cluster:
            assert await start_of(cluster, short) == 101
            assert len(await cluster.read(kept)) == 10

    asyncio.run(main())


class LeapingClock(SystemClock):
    """The wall clock is ten days ahead where it `is_ahead`; time may be skipped on both clocks."""

    is_ahead = False
    skipped_ms = 0
    look_count = 0

    def monotonic(self) -> float:
        return super().monotonic() + self.skipped_ms / 1000

    def wall_ms(self) -> int:
        self.look_count += 1
        return super().wall_ms() + self.skipped_ms + 240 * HOUR_MS * self.is_ahead


async def look(cluster: CoreCluster, clock: LeapingClock, stream_id: int) -> None:
    """Let the server look at its clock often: nothing is removed."""
    wanted = clock.look_count + 30
    await until(lambda: clock.look_count > wanted, True)
    assert await start_of(cluster, stream_id) == 0


def test_the_placement_driver_learns_of_it_also_after_it_was_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = Membership.report_trims
    refused = 0

    async def refuse_twice(self: Membership, offsets: dict[int, int]) -> None:
        nonlocal refused
        if refused < 2:
            refused += 1
            raise ConnectError("down")
        await report(self, offsets)

    monkeypatch.setattr(Membership, "report_trims", refuse_twice)

    async def main() -> None:
        clock = ShiftedClock()
        async with cluster_on(tmp_path, clock, BELIEVED_SOON) as cluster:
            stream_id = await create(cluster, retention_period_ms=HOUR_MS)
            await append(cluster, stream_id, 3)
            clock.shift_ms = 2 * HOUR_MS
            await check_begins_at(cluster, stream_id, 3, 3)
        assert refused == 2

    asyncio.run(main())


def test_records_trimmed_during_a_lookup_are_not_reported_as_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = BatchFinder._find

    async def main() -> None:
        async with cluster_on(tmp_path) as cluster:
            stream_id = await create(cluster)
            await append(cluster, stream_id, 3)
            offset = 0

            async def find_after_a_trim(*args: object) -> object:
                nonlocal offset
                offset += 1
                await cluster.client.trim_streams({stream_id: offset})
                monkeypatch.setattr(BatchFinder, "_find", find)
                raise LogCorruptionError("gone")

            monkeypatch.setattr(BatchFinder, "_find", find_after_a_trim)
            with pytest.raises(OffsetOutOfRangeError) as caught:
                await cluster.read(stream_id, 0)
            assert caught.value.bounds == (1, 3)
            monkeypatch.setattr(BatchFinder, "_find", find_after_a_trim)
            items = [FetchItem(stream_id, EARLIEST, None, 1)]
            (outcome,) = [outcome async for outcome in cluster.client.fetch(items)]
            assert (outcome.error, outcome.next_offset) == (None, 3)

    asyncio.run(main())


def test_streams_are_measured_and_retention_says_how_long_it_is_overdue(tmp_path: Path) -> None:
    async def main() -> None:
        clock = LeapingClock()
        async with cluster_on(tmp_path, clock) as cluster:
            stream_id = await create(cluster, retention_period_ms=HOUR_MS)
            await append(cluster, stream_id, 10)

            async def found(name: str) -> float:
                readings = await cluster.server.read_metrics()
                values = [each.value for each in readings if each.metric.name == name]
                return values[0] if values else -1

            async def is_overdue() -> bool:
                return await found("sbp_retention_overdue_seconds") >= 300

            clock.skipped_ms += 300_000
            await until(is_overdue, True)
            clock.skipped_ms += 300_000
            await until(is_overdue, False)

            async def has_size() -> bool:  # batches may have been merged
                size = await found("sbp_stream_bytes")
                return 10 * BATCH_BYTES < size < 11 * BATCH_BYTES

            await until(has_size, True)

    asyncio.run(main())
