"""Operations that find records by the time when they were appended (SPEC "LOOKUP_OFFSETS")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sbp_core import limits
from sbp_core.client.operations.calls import Attempts, Context, decode_reply, unanswered
from sbp_core.client.operations.open_calls import Call, Reply, gather, pause
from sbp_core.client.operations.range_placement import (
    check_errors,
    chunks,
    endless,
    locate,
    no_server,
    revalidate,
)
from sbp_core.client.operations.replicas import Turn
from sbp_core.client.types import RangeInfo
from sbp_core.errors import ConfigurationError, ProtocolError, RangeNotFoundError, SbpError
from sbp_core.wire.headers import (
    LookupOffsetInfo,
    LookupOffsetResult,
    LookupOffsetsRequest,
    LookupOffsetsResponse,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error


@dataclass(frozen=True, slots=True)
class TimedOffset:
    """A record's offset, and when it was appended; None at the tail, where no record is yet."""

    offset: int
    time_ms: int | None


async def lookup_offsets(
    context: Context,
    timestamps: Mapping[int, int],
    *,
    start_offsets: Mapping[int, int] | None = None,
    timeout_ms: int | None = None,
) -> dict[int, int]:
    """Return for each stream, by id, the offset of the first record appended at a time or later.

    Times are in us (UTC), by the clocks of the range servers, which count in ms. Without such a
    record the answer is the tail. A look-up begins at the offset in `start_offsets`, and asks only
    the servers of ranges that end behind it. With a `timeout_ms` streams whose servers take longer
    are left out.
    """
    start_offsets = start_offsets or {}
    wanted = {
        stream_id: LookupOffsetInfo(
            stream_id=stream_id,
            timestamp_us=_check(timestamp_us, "time"),
            start_offset=_check(start_offsets.get(stream_id, 0), "offset"),
        )
        for stream_id, timestamp_us in timestamps.items()
    }
    found = await _look_up(context, wanted, timeout_ms)
    return {stream_id: each.offset for stream_id, each in found.items()}


async def append_times(
    context: Context, offsets: Mapping[int, int], *, timeout_ms: int | None = None
) -> dict[int, int | None]:
    """Return for each stream, by id, when the record at an offset was appended, in ms (UTC).

    A trimmed record gets the time of the first record left; None at the tail and beyond.
    With a `timeout_ms` streams whose servers take longer are left out.
    """
    wanted = {
        stream_id: LookupOffsetInfo(stream_id=stream_id, start_offset=_check(offset, "offset"))
        for stream_id, offset in offsets.items()
    }
    found = await _look_up(context, wanted, timeout_ms)
    return {stream_id: each.time_ms for stream_id, each in found.items()}


def _check(number: int, what: str) -> int:
    if not 0 <= number < 2**63:
        raise ConfigurationError(f"{number} is no {what}, which is 0 or more")
    return number


async def _look_up(
    context: Context, wanted: Mapping[int, LookupOffsetInfo], timeout_ms: int | None
) -> dict[int, TimedOffset]:
    """Ask the servers of all ranges that end behind the start offsets for the first record.

    If a stream has a new range since its placement was looked up, it is asked for again, because a
    server of both ranges may have found the record in the later one. With a `timeout_ms` no server
    is waited for longer or asked again: streams with ranges on such a server are left out.
    """
    attempts = Attempts(context, context.now_ms())
    lookups = _Lookups(context, wanted)
    call_ms = context.timeout_ms if timeout_ms is None else timeout_ms
    pending = list(wanted)
    look_count = 0
    while pending:
        look_count += 1
        if look_count > limits.CHANGES_FOLLOWED_MAX:
            raise endless("where records are by their time")
        check_errors(await locate(context, pending))
        questions = lookups.questions(pending, context.now_ms())
        replies = await gather(
            context.open_calls,
            [
                Call(
                    server,
                    Opcode.LOOKUP_OFFSETS,
                    LookupOffsetsRequest(call_ms, tuple(wanted[each] for each in part)),
                    call_ms,
                )
                for server, part in questions
            ],
        )
        now_ms = context.now_ms()
        for (server, part), reply in zip(questions, replies, strict=True):
            lookups.on_reply(server, part, reply, now_ms)
        check_errors(await revalidate(context, lookups.answered()))
        lookups.settle()
        pending = [each for each in pending if each not in lookups.found]
        if not lookups.failures:
            continue
        attempts.on_failure()
        endpoint, error = lookups.worst_failure()
        if timeout_ms is not None and error.retriable:
            pending = [each for each in pending if each not in lookups.failures]
            continue
        wait_ms = attempts.maybe_wait_ms(error, "LOOKUP_OFFSETS", endpoint, context.now_ms())
        if wait_ms is None:
            raise attempts.explain(error, "LOOKUP_OFFSETS", endpoint) from error
        await pause(context.open_calls, wait_ms)
    return {
        stream_id: lookups.found[stream_id] for stream_id in wanted if stream_id in lookups.found
    }


class _Lookups:
    """The state of `_look_up`: the ranges of each stream, and the answers of their servers.

    `failures` has the server and the error of each stream that failed in the last questions.
    """

    def __init__(self, context: Context, wanted: Mapping[int, LookupOffsetInfo]) -> None:
        self.found: dict[int, TimedOffset] = {}
        self.failures: dict[int, tuple[str | None, SbpError]] = {}
        self._router = context.router
        self._replicas = context.replicas
        self._wanted = wanted
        self._asked: dict[int, tuple[RangeInfo, ...]] = {}
        self._answers: dict[int, dict[str, TimedOffset]] = {}
        self._turns: dict[tuple[int, int], Turn] = {}
        self._servers: dict[int, dict[int, str]] = {}
        """By stream id and range index: the server that is asked."""

    def questions(
        self, stream_ids: Sequence[int], now_ms: float
    ) -> list[tuple[str, Sequence[int]]]:
        """Return which server to ask for which streams."""
        self.failures = {}
        self._asked = {each: self._router.maybe_ranges(each) or () for each in stream_ids}
        self._answers = {stream_id: {} for stream_id in stream_ids}
        hosted: dict[str, list[int]] = {}
        for stream_id in stream_ids:
            servers = self._servers[stream_id] = {}
            for piece in self._ahead(stream_id):
                if piece.servers:
                    turn = self._turns.setdefault((stream_id, piece.range_index), Turn())
                    servers[piece.range_index], _ = turn.at(self._replicas, piece, now_ms)
                else:
                    self._on_failure(stream_id, None, no_server(piece))
            for server in dict.fromkeys(servers.values()):
                hosted.setdefault(server, []).append(stream_id)
        return [(server, part) for server, whole in hosted.items() for part in chunks(whole)]

    def on_reply(self, server: str, stream_ids: Sequence[int], reply: Reply, now_ms: float) -> None:
        """Record the answer of a server about the ranges that it hosts."""
        answered: dict[int, LookupOffsetResult] = {}
        try:
            for answer in decode_reply(reply, LookupOffsetsResponse):
                answered.update((each.stream_id, each) for each in answer.lookup_responses)
        except SbpError as error:
            for stream_id in stream_ids:
                self._on_error(stream_id, server, error, now_ms)
            return
        for stream_id in stream_ids:
            result = answered.get(stream_id)
            if result is None:
                self._on_error(stream_id, server, unanswered(f"stream {stream_id}"), now_ms)
            elif (failure := maybe_error(result.status)) is not None:
                self._on_error(stream_id, server, failure, now_ms)
            elif not 0 <= result.offset <= limits.OFFSET_PLAUSIBLE_MAX:
                implausible = _implausible(stream_id, server, result.offset)
                self._on_error(stream_id, server, implausible, now_ms)
            elif result.append_time_ms < 0 and result.offset < (
                end := self._end(stream_id, server)
            ):
                self._on_error(stream_id, server, _lacking(stream_id, result.offset, end), now_ms)
            else:
                time_ms = result.append_time_ms if result.append_time_ms >= 0 else None
                self._answers[stream_id][server] = TimedOffset(result.offset, time_ms)

    def answered(self) -> list[int]:
        """Return the streams whose servers have all answered."""
        return [
            stream_id
            for stream_id in self._asked
            if self._router.maybe_ranges(stream_id) is not None
            and all(
                self._servers[stream_id].get(piece.range_index) in self._answers[stream_id]
                for piece in self._ahead(stream_id)
            )
        ]

    def settle(self) -> None:
        """Settle the streams whose ranges have not changed since their servers were asked."""
        for stream_id in self.answered():
            ranges = self._asked[stream_id]
            if ranges == self._router.maybe_ranges(stream_id):
                self.found[stream_id] = first_found(ranges, self._answers[stream_id])

    def worst_failure(self) -> tuple[str | None, SbpError]:
        """Return a failure that no wait cures, or else any failure."""
        return min(self.failures.values(), key=lambda each: each[1].retriable)

    def _ahead(self, stream_id: int) -> list[RangeInfo]:
        start_offset = self._wanted[stream_id].start_offset
        return [each for each in self._asked[stream_id] if each.is_ahead_of(start_offset)]

    def _end(self, stream_id: int, server: str) -> int:
        """Return the end of the last sealed range that a replica was asked for, -1 without one.

        A replica that found nothing up to a lower offset lacks records of a sealed range.
        """
        asked = self._servers[stream_id]
        ends = [
            -1 if piece.end_offset is None else piece.end_offset
            for piece in self._ahead(stream_id)
            if piece.is_replicated and asked.get(piece.range_index) == server
        ]
        return max(ends, default=-1)

    def _on_error(self, stream_id: int, server: str, error: SbpError, now_ms: float) -> None:
        """Ask other replicas for the ranges of a failed server, or let the stream fail."""
        for piece in self._ahead(stream_id):
            if self._servers[stream_id].get(piece.range_index) == server:
                turn = self._turns[stream_id, piece.range_index]
                failed = turn.after(self._replicas, piece, server, error, now_ms)
                if failed is not None:
                    self._on_failure(stream_id, *failed)

    def _on_failure(self, stream_id: int, endpoint: str | None, error: SbpError) -> None:
        self.failures[stream_id] = endpoint, error
        self._router.forget(stream_id)


def _implausible(stream_id: int, server: str, offset: int) -> ProtocolError:
    return ProtocolError(
        f"the server at {server} found offset {offset} in stream {stream_id}; offsets are from 0 to"
        f" {limits.OFFSET_PLAUSIBLE_MAX}"
    )


def _lacking(stream_id: int, offset: int, end_offset: int) -> RangeNotFoundError:
    return RangeNotFoundError.of(
        f"the server has stream {stream_id} up to offset {offset}, although a range that it stores"
        f" ends at {end_offset}"
    )


def first_found(ranges: Sequence[RangeInfo], answers: Mapping[str, TimedOffset]) -> TimedOffset:
    """Return the first record that a server found, or the stream's tail.

    A server that found nothing answers the end of its last range. For the tail only the answer of
    the last range's server counts: records that were appended there since then must not be skipped.
    """
    if not ranges:
        return TimedOffset(0, None)
    first, last = ranges[0], ranges[-1]
    tail_offset = last.end_offset
    if tail_offset is None:
        tail_offset = max(answers[last.servers[0]].offset, last.start_offset)
    records = [answer for answer in answers.values() if answer.time_ms is not None]
    found = min([*records, TimedOffset(tail_offset, None)], key=lambda each: each.offset)
    return TimedOffset(max(found.offset, first.start_offset), found.time_ms)
