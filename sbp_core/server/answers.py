"""Long answers: as many response frames as the results take, the last one with the end flag."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

from sbp_core import limits
from sbp_core.client.operations.range_placement import chunks, cut_by_weight
from sbp_core.server.dispatch import ServerCall

T = TypeVar("T")


async def respond_in_parts(
    call: ServerCall,
    parts: AsyncIterator[tuple[T, ...]],
    make: Callable[[tuple[T, ...]], object],
) -> None:
    """Send one frame per part; without parts an empty one."""
    pending: tuple[T, ...] | None = None
    async for part in parts:
        if pending is not None:
            await call.respond(make(pending), is_end=False)
            await asyncio.sleep(0)
        pending = part
    await call.respond(make(pending or ()))


async def respond_all(
    call: ServerCall,
    results: Sequence[T],
    make: Callable[[tuple[T, ...]], object],
    *,
    weigh: Callable[[T], int] | None = None,
) -> None:
    """Send results, RESULTS_PER_FRAME in each frame; `weigh` says for how many each counts."""
    if len(results) <= limits.RESULTS_PER_FRAME and weigh is None:
        await call.respond(make(tuple(results)))
        return

    async def parts() -> AsyncIterator[tuple[T, ...]]:
        for part in cut(results) if weigh is None else cut_by_weight(results, weigh):
            yield tuple(part)

    await respond_in_parts(call, parts(), make)


def cut(items: Sequence[T]) -> list[Sequence[T]]:
    """Cut into parts of one frame each."""
    return list(chunks(items, limits.RESULTS_PER_FRAME))
