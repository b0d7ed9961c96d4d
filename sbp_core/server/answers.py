"""Answers in several frames: as many as the results take, the last one with the end flag."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from sbp_core import limits
from sbp_core.client.operations.range_placement import chunks, cut_by_weight
from sbp_core.server.dispatch import Answer, Response
from sbp_core.wire.headers import RESULT_FIELDS
from sbp_core.wire.status import SUCCESS

T = TypeVar("T")


async def in_parts(
    parts: AsyncIterator[tuple[T, ...]], make: Callable[[tuple[T, ...]], object]
) -> AsyncGenerator[Response]:
    """Yield one frame for each part; without parts an empty one."""
    pending: tuple[T, ...] | None = None
    async for part in parts:
        if pending is not None:
            yield Response(make(pending), is_end=False)
            await asyncio.sleep(0)
        pending = part
    yield Response(make(pending or ()))


def in_frames(
    results: Sequence[T],
    make: Callable[[tuple[T, ...]], object],
    *,
    weigh: Callable[[T], int] | None = None,
) -> Answer:
    """Return results, RESULTS_PER_FRAME in each frame; `weigh` says for how many each counts."""
    if len(results) <= limits.RESULTS_PER_FRAME and weigh is None:
        return Response(make(tuple(results)))
    return in_parts(each_of(cut(results) if weigh is None else cut_by_weight(results, weigh)), make)


def with_results(table: type[Any], results: Sequence[Any]) -> Answer:
    """Return a successful answer, a response `table`, with a result for each item."""
    field = RESULT_FIELDS[table]
    return in_frames(results, lambda part: table(**{field: part}, status=SUCCESS))


async def each_of(parts: Iterable[Sequence[T]]) -> AsyncIterator[tuple[T, ...]]:
    """Yield the parts of an answer that are all known."""
    for part in parts:
        yield tuple(part)


async def responses_of(answer: Answer) -> AsyncGenerator[Response]:
    """Yield the frames of an answer."""
    if isinstance(answer, Response):
        yield answer
        return
    async with aclosing(answer) as responses:
        async for each in responses:
            yield each


def cut(items: Sequence[T]) -> list[Sequence[T]]:
    """Cut into parts of one frame each."""
    return list(chunks(items, limits.RESULTS_PER_FRAME))
