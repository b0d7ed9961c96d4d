"""How many bytes streams take on the disks of range servers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sbp_core.client.operations.bounds import describe_call
from sbp_core.client.operations.calls import Context, decode_reply
from sbp_core.client.operations.open_calls import Reply, gather
from sbp_core.client.operations.range_placement import check_errors, chunks, revalidate
from sbp_core.client.types import RangeInfo
from sbp_core.errors import SbpError
from sbp_core.wire.headers import DescribeRangesResponse
from sbp_core.wire.status import maybe_error

_Key = tuple[int, int]
"""A range: the id of its stream, and its index."""


async def stored_bytes(
    context: Context, stream_ids: Sequence[int], *, timeout_ms: int
) -> dict[int, int]:
    """Return the bytes that each stream, by id, takes in the log of one replica.

    Streams with a range whose servers do not answer within `timeout_ms`, or do not know, are
    left out. Raises NotFoundError naming the missing streams.
    """
    # SPEC "DESCRIBE_RANGE"
    check_errors(await revalidate(context, stream_ids))
    ranges = {each: context.router.maybe_ranges(each) or () for each in stream_ids}
    known: dict[_Key, int] = {}
    rank = 0
    pieces = [each for whole in ranges.values() for each in whole]
    while questions := _questions(pieces, known, rank):
        calls = [describe_call(*each, timeout_ms, with_stored_bytes=True) for each in questions]
        for reply in await gather(context.open_calls, calls):
            known.update(_sizes(reply))
        rank += 1
    return {
        stream_id: sum(known[_key(each)] for each in whole)
        for stream_id, whole in ranges.items()
        if all(_key(each) in known for each in whole)
    }


def _key(piece: RangeInfo) -> _Key:
    return piece.stream_id, piece.range_index


def _questions(
    ranges: Iterable[RangeInfo], known: dict[_Key, int], rank: int
) -> list[tuple[str, Sequence[RangeInfo]]]:
    """Return which of their servers to ask about ranges: the first one at rank 0."""
    groups: dict[str, list[RangeInfo]] = {}
    for each in ranges:
        if _key(each) not in known and rank < len(each.servers):
            groups.setdefault(each.servers[rank], []).append(each)
    return [(server, part) for server, whole in groups.items() for part in chunks(whole)]


def _sizes(reply: Reply) -> dict[_Key, int]:
    """Return what a server says of its ranges; nothing if it failed."""
    try:
        answers = decode_reply(reply, DescribeRangesResponse)
    except SbpError:
        return {}
    return {
        (each.stream_range.stream_id, each.stream_range.range_index): each.stored_bytes
        for answer in answers
        for each in answer.describe_responses
        if maybe_error(each.status) is None
        and each.stream_range is not None
        and each.stored_bytes >= 0
    }
