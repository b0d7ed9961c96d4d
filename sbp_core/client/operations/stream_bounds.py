"""Where streams begin and end now, and how many bytes they take on the disks of range servers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from sbp_core import limits
from sbp_core.client.operations.calls import Attempts, Context, decode_reply, unanswered
from sbp_core.client.operations.open_calls import Call, Reply, gather, pause
from sbp_core.client.operations.range_placement import (
    check_errors,
    checked_range,
    chunks,
    endless,
    locate,
    no_server,
    revalidate,
)
from sbp_core.client.operations.router import Router
from sbp_core.client.types import RangeInfo, StreamBounds
from sbp_core.errors import DeadlineExceededError, ProtocolError, SbpError
from sbp_core.wire.headers import DescribeRangesRequest, DescribeRangesResponse, RangeId
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error

_Key = tuple[int, int]
"""A range: the id of its stream, and its index."""


async def ended(context: Context, pieces: Iterable[RangeInfo]) -> set[int]:
    """Return the streams, by id, whose given ranges are no longer open.

    The result is empty if the placement driver does not answer soon.
    """
    indexes = {each.stream_id: each.range_index for each in pieces}
    if not indexes:
        return set()
    errors = await revalidate(context.impatient(), list(indexes))
    found = set()
    for stream_id, index in indexes.items():
        known = context.router.maybe_open_range(stream_id)
        if stream_id not in errors and (known is None or known.range_index > index):
            found.add(stream_id)
    return found


def unanswered_at_end(server: str) -> DeadlineExceededError:
    """Return the error of a call to a primary that is silent, while its range has ended."""
    return DeadlineExceededError(
        f"{server} did not answer for {limits.PRIMARY_PATIENCE_MS} ms, and its range has ended"
    )


async def _describe_open(
    context: Context, questions: Sequence[tuple[str, Sequence[RangeInfo]]], timeout_ms: int
) -> list[Reply]:
    """Ask servers about their ranges. A silent server is given up once a range of it has ended."""

    async def on_silence(silent: Collection[int]) -> dict[int, SbpError]:
        asked = [piece for index in silent for piece in questions[index][1]]
        over = await ended(context, [each for each in asked if each.is_open_and_replicated])
        return {
            index: unanswered_at_end(questions[index][0])
            for index in silent
            if any(each.stream_id in over for each in questions[index][1])
        }

    calls = [describe_call(*each, timeout_ms) for each in questions]
    return await gather(context.open_calls, calls, on_silence)


async def stream_bounds(context: Context, stream_ids: Sequence[int]) -> list[StreamBounds]:
    """Return where each stream begins and ends now, in the order of `stream_ids`."""
    # SPEC "DESCRIBE_RANGE"
    check_errors(await revalidate(context, stream_ids))
    attempts = Attempts(context, context.now_ms())
    bounds = Bounds(context.router)
    while pending := bounds.missing(stream_ids):
        bounds.count_look()
        check_errors(await locate(context, pending))
        questions = bounds.questions(pending)
        timeout_ms = context.timeout_ms
        if attempts.is_first and any(each.is_replicated for _, part in questions for each in part):
            timeout_ms = min(timeout_ms, limits.REPLICA_TIMEOUT_MS)  # there may be a new primary
        replies = await _describe_open(context, questions, timeout_ms)
        for (server, pieces), reply in zip(questions, replies, strict=True):
            bounds.on_reply(server, pieces, reply)
        if not bounds.failures:
            continue
        for stream_id in bounds.failures:
            context.router.forget(stream_id)
        endpoint, error = list(bounds.failures.values())[-1]
        attempts.on_failure()
        wait_ms = attempts.maybe_wait_ms(error, "DESCRIBE_RANGE", endpoint, context.now_ms())
        if wait_ms is None:
            raise attempts.explain(error, "DESCRIBE_RANGE", endpoint) from error
        await pause(context.open_calls, wait_ms)
    return [bounds.found[stream_id] for stream_id in stream_ids]


class Bounds:
    """The known bounds of streams, while their servers are asked.

    `failures` has the server and the error of each stream that failed in the last questions.
    """

    def __init__(self, router: Router) -> None:
        self.found: dict[int, StreamBounds] = {}
        self.failures: dict[int, tuple[str | None, SbpError]] = {}
        self._router = router
        self._sealed: dict[int, RangeInfo] = {}
        self._look_count = 0

    def count_look(self) -> None:
        """Raise ProtocolError if the placement and the range servers never agree."""
        self._look_count += 1
        if self._look_count > limits.CHANGES_FOLLOWED_MAX:
            raise endless("where the streams end")

    def missing(self, stream_ids: Sequence[int]) -> list[int]:
        """Return the streams that have no bounds yet, each once."""
        return [each for each in dict.fromkeys(stream_ids) if each not in self.found]

    def questions(self, stream_ids: Sequence[int]) -> list[tuple[str, Sequence[RangeInfo]]]:
        """Return which ranges to ask which server about; settle streams without an open range."""
        self.failures = {}
        groups: dict[str, list[RangeInfo]] = {}
        for stream_id in stream_ids:
            ranges = self._router.maybe_ranges(stream_id) or ()
            last = ranges[-1] if ranges else None
            sealed = self._sealed.get(stream_id)
            if last is None:
                self.found[stream_id] = StreamBounds(stream_id, 0, 0)
            elif last.end_offset is not None:
                self._settle(stream_id, last, last.end_offset)
            elif sealed is not None and sealed.range_index >= last.range_index:
                self._settle(stream_id, sealed, sealed.end_offset or 0)
            elif last.servers:
                groups.setdefault(last.servers[0], []).append(last)
            else:
                self.failures[stream_id] = None, no_server(last)
        return [(server, piece) for server, whole in groups.items() for piece in chunks(whole)]

    def on_reply(self, server: str, pieces: Sequence[RangeInfo], reply: Reply) -> None:
        """Record the answer of a server about its open ranges."""
        described = _described(reply, pieces, server)
        for stream_id, tail in described.items():
            if isinstance(tail, SbpError):
                self.failures[stream_id] = server, tail
            elif tail.end_offset is None:
                self._settle(stream_id, tail, tail.next_offset)
            else:
                # The range was sealed after the look-up, so a newer range may exist. If the next
                # look-up shows no newer range, the stream ends with this one.
                self._sealed[stream_id] = tail
                self._router.forget(stream_id)

    def first_offset(self, stream_id: int) -> int:
        """Return the first offset of a stream that the placement driver knows."""
        ranges = self._router.maybe_ranges(stream_id)
        return ranges[0].start_offset if ranges else 0

    def _settle(self, stream_id: int, tail: RangeInfo, next_offset: int) -> None:
        first = (self._router.maybe_ranges(stream_id) or (tail,))[0]
        self.found[stream_id] = bounds_between(first, tail, next_offset)


def bounds_between(first: RangeInfo, tail: RangeInfo, next_offset: int) -> StreamBounds:
    """Return the bounds of a stream from its first range to `next_offset`, in its range `tail`.

    A range server may have trimmed its range further than the placement driver knows.
    """
    start_offset = first.start_offset
    if first.range_index == tail.range_index:
        start_offset = max(start_offset, tail.start_offset)
    return StreamBounds(tail.stream_id, start_offset, max(start_offset, next_offset))


def describe_call(
    server: str, pieces: Sequence[RangeInfo], timeout_ms: int, *, with_stored_bytes: bool = False
) -> Call:
    """Return the call that asks a server about ranges (SPEC "DESCRIBE_RANGE")."""
    header = DescribeRangesRequest(
        timeout_ms=timeout_ms,
        ranges=tuple(RangeId(each.stream_id, each.range_index) for each in pieces),
        with_stored_bytes=with_stored_bytes,
    )
    return Call(server, Opcode.DESCRIBE_RANGE, header, timeout_ms)


def _described(
    reply: Reply, pieces: Sequence[RangeInfo], server: str
) -> dict[int, RangeInfo | SbpError]:
    """Return the answer of a server for each stream."""
    try:
        answers = decode_reply(reply, DescribeRangesResponse)
    except SbpError as error:
        return {piece.stream_id: error for piece in pieces}
    described: dict[int, RangeInfo | SbpError] = {
        piece.stream_id: unanswered(f"stream {piece.stream_id}") for piece in pieces
    }
    for result in (each for answer in answers for each in answer.describe_responses):
        piece = result.stream_range
        stream_id = result.stream_id
        failure = maybe_error(result.status)
        if stream_id not in described:
            continue
        if failure is not None:
            described[stream_id] = failure
        elif piece is not None:
            try:
                described[stream_id] = checked_range(piece, server)
            except ProtocolError as error:
                described[stream_id] = error
    return described


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
    pieces = [each for whole in ranges.values() for each in whole]
    known = await range_bytes(context, pieces, timeout_ms=timeout_ms)
    return {
        stream_id: sum(known[_key(each)] for each in whole)
        for stream_id, whole in ranges.items()
        if all(_key(each) in known for each in whole)
    }


async def range_bytes(
    context: Context, pieces: Sequence[RangeInfo], *, timeout_ms: int
) -> dict[tuple[int, int], int]:
    """Return the bytes of ranges in the log of one replica, by stream id and range index.

    One server of each range is asked, then the others. Ranges whose servers do not answer within
    `timeout_ms`, or do not know, are left out.
    """
    known: dict[_Key, int] = {}
    rank = 0
    while questions := _questions(pieces, known, rank):
        calls = [describe_call(*each, timeout_ms, with_stored_bytes=True) for each in questions]
        for reply in await gather(context.open_calls, calls):
            known.update(_sizes(reply))
        rank += 1
    return known


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
