"""The program that appends record batches (SPEC "APPEND").

Order: the batches of one stream are appended in the order given. They go to the server in that
order, in one frame where they fit; a batch that failed is tried again only while no later one of
its stream was appended, and after a final failure the stream's later batches are given up too.

A writer's batches have numbers, so they may be tried again whatever became of them. A server knows
the places of the last ones only: a frame has no more of a stream than that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from sbp_core import limits
from sbp_core.client.calls import (
    Attempts,
    Context,
    answered_items,
    decode_answer,
    unanswered,
    with_message,
)
from sbp_core.client.placement import locate, no_server
from sbp_core.client.program import Call, Now, Program, Reply, gather, pause
from sbp_core.client.types import AppendItem, AppendOutcome, RangeInfo
from sbp_core.client.writer import Writer
from sbp_core.errors import ConfigurationError, Outcome, RangeSealedError, SbpError, StatusCode
from sbp_core.wire.headers import (
    AppendInfo,
    AppendRequest,
    AppendResponse,
    AppendResult,
    StreamRange,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error

_ITEM_HEADER_BYTES: Final = 320
"""What an AppendInfo takes in a header, rounded up."""
_FRAME_ITEMS_MAX: Final = limits.HEADER_BYTES_MAX // _ITEM_HEADER_BYTES - 1


@dataclass(slots=True)
class _Frame:
    """The items that go to one server in one frame."""

    endpoint: str
    indexes: list[int]
    pieces: list[RangeInfo]
    frame_bytes: int = limits.FRAME_BYTES_MIN + _ITEM_HEADER_BYTES

    def takes(self, batch: bytes) -> bool:
        """Whether one more batch fits."""
        frame_bytes = self.frame_bytes + len(batch) + _ITEM_HEADER_BYTES
        return frame_bytes <= limits.FRAME_BYTES_MAX and len(self.indexes) < _FRAME_ITEMS_MAX

    def add(self, index: int, batch: bytes, piece: RangeInfo) -> None:
        """Put an item in."""
        self.indexes.append(index)
        self.pieces.append(piece)
        self.frame_bytes += len(batch) + _ITEM_HEADER_BYTES


def append(
    context: Context,
    items: Sequence[AppendItem],
    *,
    retry_unknown: bool,
    writer: Writer | None = None,
) -> Program[list[AppendOutcome]]:
    """Append all batches; return where each landed, in the order of `items`.

    `retry_unknown`: also try again what may have been appended already (at least once instead of
    at most once). With a `writer` that is done too, and appends each batch once; UnsupportedError
    where a server cannot do that. Raises ConfigurationError before anything is sent when a batch is
    unusable; otherwise the error of the first item that failed, once all items are settled. Its
    `outcome` speaks of the whole call, and of earlier ones that left batches of it in doubt:
    NOT_APPLIED only if nothing was appended.
    """
    for index, item in enumerate(items):
        _check_item(index, item)
    if writer is None:
        return (yield from _run(context, _Append(context, items), is_repeatable=retry_unknown))
    sequences = writer.begin(items)
    work = _Append(context, items, writer.writer_id, sequences, writer.doubted(items))
    try:
        return (yield from _run(context, work, is_repeatable=True))
    finally:
        writer.end(items, work.outcomes, work.in_doubt)


def _run(context: Context, work: _Append, *, is_repeatable: bool) -> Program[list[AppendOutcome]]:
    items = work.items
    attempts = Attempts(context, (yield Now()))
    while work.pending:
        errors = yield from locate(context, [items[index].stream_id for index in work.pending])
        frames = work.build_frames(errors)
        work.on_sent(frames)
        replies = yield from gather([work.call(frame) for frame in frames])
        applied_count = len(work.outcomes)
        for frame, reply in zip(frames, replies, strict=True):
            work.on_reply(frame, reply)
        now_ms: float = yield Now()
        if len(work.outcomes) > applied_count:
            attempts.on_progress(now_ms)
        wait_ms = work.settle(attempts, now_ms, is_repeatable=is_repeatable)
        if wait_ms:
            yield from pause(wait_ms)
    if work.failures:
        raise work.error()
    return [work.outcomes[index] for index in range(len(items))]


class _Append:
    """The state of one append: each item is pending, appended or failed."""

    def __init__(
        self,
        context: Context,
        items: Sequence[AppendItem],
        writer_id: str | None = None,
        sequences: Sequence[int] = (),
        uncertain: Collection[int] = (),
    ) -> None:
        self.items = items
        self.pending = list(range(len(items)))
        self.outcomes: dict[int, AppendOutcome] = {}
        self.failures: dict[int, SbpError] = {}
        self._uncertain = set(uncertain)
        self._sent: set[int] = set()
        self._writer_id = writer_id
        self._sequences = sequences
        self._context = context
        self._errors: dict[int, tuple[str | None, SbpError]] = {}

    @property
    def in_doubt(self) -> set[int]:
        """Items of which it is not known whether one of the tries, of now or before, worked."""
        return self._uncertain | self._sent

    def build_frames(self, errors: dict[int, SbpError]) -> list[_Frame]:
        """Return the next frames, one per server; what does not fit stays for the next round."""
        frames: dict[str, _Frame] = {}
        blocked: set[int] = set()
        counts: Counter[int] = Counter()
        for index in self.pending:
            item = self.items[index]
            if item.stream_id in blocked:
                continue
            if self._writer_id is not None:
                counts[item.stream_id] += 1
                if counts[item.stream_id] > limits.WRITER_BATCHES_KEPT:
                    blocked.add(item.stream_id)
                    continue
            piece = self._context.router.maybe_open_range(item.stream_id)
            error = errors.get(item.stream_id)
            if error is None and (piece is None or not piece.servers):
                error = no_server(piece) if piece else _no_open_range(item.stream_id)
                self._context.router.forget(item.stream_id)
            if error is not None or piece is None:
                assert error is not None
                self._errors[index] = (None, error)
                blocked.add(item.stream_id)
                continue
            frame = frames.setdefault(piece.servers[0], _Frame(piece.servers[0], [], []))
            if frame.takes(item.batch):
                frame.add(index, item.batch, piece)
            else:
                blocked.add(item.stream_id)
        return list(frames.values())

    def on_sent(self, frames: Sequence[_Frame]) -> None:
        """Note what is in doubt now, in case that nobody waits for the answers."""
        self._sent = {index for frame in frames for index in frame.indexes}

    def call(self, frame: _Frame) -> Call:
        """Return the call that sends a frame."""
        batches = tuple(self.items[index].batch for index in frame.indexes)
        header = AppendRequest(
            timeout_ms=self._context.timeout_ms,
            append_requests=tuple(
                AppendInfo(
                    stream_range=StreamRange(
                        stream_id=piece.stream_id,
                        range_index=piece.range_index,
                        start_offset=piece.start_offset,
                        end_offset=-1,
                    ),
                    request_index=request_index,
                    batch_length=len(batch),
                    stream_id=piece.stream_id,
                    writer_id=self._writer_id,
                    sequence=self._sequences[index] if self._sequences else -1,
                )
                for request_index, (index, piece, batch) in enumerate(
                    zip(frame.indexes, frame.pieces, batches, strict=True)
                )
            ),
        )
        return Call(
            frame.endpoint,
            Opcode.APPEND,
            header,
            self._context.timeout_ms,
            batches,
            is_idempotent_append=self._writer_id is not None,
        )

    def on_reply(self, frame: _Frame, reply: Reply) -> None:
        """Note what became of each item of a frame."""
        missing = dict(enumerate(frame.indexes))
        failure = reply.error
        for part in reply.frames:
            try:
                answer = decode_answer(part, AppendResponse)
                answered = answered_items(answer, answer.append_responses, missing)
            except SbpError as error:
                failure = error
                break
            for request_index, result in answered:
                index = missing.get(request_index)
                if index is None or not self._is_about(result, index):
                    continue
                del missing[request_index]
                self._on_result(index, frame.endpoint, result, answer.throttle_time_ms)
        for index in missing.values():
            silence = unanswered(f"the batch for stream {self.items[index].stream_id}")
            self._errors[index] = (frame.endpoint, failure or silence)

    def _is_about(self, result: AppendResult, index: int) -> bool:
        """Whether a result speaks of an item's stream; ElasticStream's failures name stream 0."""
        is_named = result.stream_id in {self.items[index].stream_id, -1}
        return is_named or (result.stream_id == 0 and maybe_error(result.status) is not None)

    def _on_result(
        self, index: int, endpoint: str, result: AppendResult, throttle_time_ms: int
    ) -> None:
        error = maybe_error(result.status)
        if error is not None:
            error.throttle_time_ms = max(throttle_time_ms, 0)
            self._errors[index] = (endpoint, error)
            return
        self.outcomes[index] = AppendOutcome(
            self.items[index].stream_id, result.base_offset, result.stream_append_time_ms
        )

    def settle(self, attempts: Attempts, now_ms: float, *, is_repeatable: bool) -> float:
        """Decide which failed items are tried again; return the wait in ms before that."""
        errors, self._errors = self._errors, {}
        self._sent = set()
        if errors:
            attempts.on_failure()
        last_applied = {self.items[index].stream_id: index for index in sorted(self.outcomes)}
        given_up: set[int] = set()
        longest_ms = 0.0
        for index in sorted(errors):
            endpoint, error = errors[index]
            stream_id = self.items[index].stream_id
            if error.outcome is not Outcome.NOT_APPLIED:
                self._uncertain.add(index)
            if error.refreshes_placement:
                self._context.router.forget(stream_id)
            wait_ms = attempts.maybe_wait_ms(error, now_ms, is_repeatable=is_repeatable)
            is_overtaken = last_applied.get(stream_id, -1) > index
            if wait_ms is None or is_overtaken or stream_id in given_up:
                given_up.add(stream_id)
                self.failures[index] = attempts.explain(error, "APPEND", endpoint)
            else:
                longest_ms = max(longest_ms, wait_ms)
        self._give_up_rest(given_up)
        return longest_ms

    def _give_up_rest(self, stream_ids: set[int]) -> None:
        """Drop what is settled from `pending`; a stream with a failed item is over."""
        pending = []
        for index in self.pending:
            if index in self.outcomes or index in self.failures:
                continue
            if self.items[index].stream_id in stream_ids:
                self.failures[index] = SbpError("not sent: an earlier batch of the stream failed")
            else:
                pending.append(index)
        self.pending = pending

    def error(self) -> SbpError:
        """Return the first item's error, with the outcome of the whole call."""
        index = min(self.failures)
        total = len(self.items)
        before = f"item {index} of {total} (stream {self.items[index].stream_id}): "
        after = f" ({len(self.outcomes)} of {total} batches were appended)" if total > 1 else ""
        error = with_message(self.failures[index], before, after)
        is_untouched = not self.outcomes and not self._uncertain
        error.outcome = Outcome.NOT_APPLIED if is_untouched else Outcome.UNKNOWN
        return error


def _check_item(index: int, item: AppendItem) -> None:
    if not 0 < len(item.batch) <= limits.BATCH_BYTES_MAX:
        raise ConfigurationError(
            f"the batch of item {index} (stream {item.stream_id}) has {len(item.batch)} octets;"
            f" expected 1 to {limits.BATCH_BYTES_MAX}: write smaller batches"
        )


def _no_open_range(stream_id: int) -> RangeSealedError:
    return RangeSealedError(
        StatusCode.RANGE_ALREADY_SEALED,
        f"stream {stream_id} has no open range at the moment",
    )
