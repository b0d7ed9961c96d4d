"""Servers that break a promise on purpose, to see that the simulation notices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.programs.altered_serve import forgotten_seals, no_dedupe

LATE_SECONDS = 0.1


def early_acknowledgement() -> None:
    """Appends are acknowledged before they are synced."""
    from sbp_core.log.durable_log import Log

    append = Log.append

    def append_only(log: Log, entries: Any, **options: Any) -> Any:
        return append(log, entries, **{**options, "is_durable": False})

    Log.append = append_only


def early_quorum() -> None:
    """Entries count as committed once they are durable at the primary."""
    from sbp_core.rangeserver.replicating import primary

    primary.committed_seq = lambda durable, _: max(durable)


def late_fence() -> None:
    """A replica answers the fence first, and accepts more entries until it is durable."""
    import asyncio

    from sbp_core.rangeserver.hosting import RangeHost

    fence = RangeHost._fence

    async def fence_later(host: RangeHost, hosted: Any) -> None:
        async def later() -> None:
            await asyncio.sleep(LATE_SECONDS)
            await fence(host, hosted)

        host._late_fence = asyncio.create_task(later())

    RangeHost._fence = fence_later


def uncommitted_reads() -> None:
    """Records are readable at the primary as soon as they are durable there."""
    from sbp_core.rangeserver.replicating.primary import PrimaryRanges

    on_durable = PrimaryRanges.on_durable

    def show_all(ranges: PrimaryRanges, logged: Any) -> None:
        if logged.key in ranges._led:
            ranges._show(logged)
        on_durable(ranges, logged)

    PrimaryRanges.on_durable = show_all


def damage_counts() -> None:
    """A copy that lost entries decides as a whole one does."""
    from msgspec.structs import replace

    from sbp_core.pd.streams.fencing import Fence

    add = Fence.add

    def add_whole(fence: Fence, address: str, answer: Any) -> None:
        if not isinstance(answer, Exception):
            answer = replace(answer, is_damaged=False)
        add(fence, address, answer)

    Fence.add = add_whole


MUTANTS: dict[str, Callable[[], None]] = {
    "acknowledge-before-sync": early_acknowledgement,
    "no-repeat-check": no_dedupe,
    "forgotten-seals": forgotten_seals,
}
"""By name. Each changes classes of this process for good: run one per process."""

MUTANTS_OF_REPLICAS: dict[str, Callable[[], None]] = {
    "acknowledge-before-quorum": early_quorum,
    "fence-after-answer": late_fence,
    "read-uncommitted": uncommitted_reads,
    "damaged-copy-counts": damage_counts,
}
"""Those that break a promise of ranges with copies only."""
