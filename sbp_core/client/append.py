"""The program that appends record batches (SPEC "APPEND").

Order: the batches of one stream are appended in the order given. They go to the server in that
order, in one frame where they fit; a batch that failed is tried again only while no later one of
its stream was appended, and after a final failure the stream's later batches are given up too.

A writer's batches have numbers, so they may be tried again whatever became of them. A server knows
the places of the last ones only: a frame has no more of a stream than that. A transaction numbers
its batches in each range, so those of a stream go to one range at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sbp_core import limits
from sbp_core.client.append_frame import AppendFrame
from sbp_core.client.calls import (
    Attempts,
    Context,
    answered_items,
    decode_answer,
    unanswered,
    with_message,
)
from sbp_core.client.numbering import Numbering, WriterNumbering
from sbp_core.client.placement import locate, no_server
from sbp_core.client.program import Call, Now, Program, Reply, gather, pause
from sbp_core.client.transaction import Transaction
from sbp_core.client.types import AppendItem, AppendOutcome, RangeInfo
from sbp_core.client.writer import Writer
from sbp_core.errors import ConfigurationError, Outcome, SbpError
from sbp_core.wire.headers import AppendResponse, AppendResult
from sbp_core.wire.status import maybe_error


def append(
    context: Context,
    items: Sequence[AppendItem],
    *,
    retry_unknown: bool,
    writer: Writer | None = None,
    transaction: Transaction | None = None,
) -> Program[list[AppendOutcome]]:
    """Append all batches; return where each landed, in the order of `items`.

    `retry_unknown`: also try again what may have been appended already (at least once instead of
    at most once). With a `writer` that is done too, and appends each batch once; UnsupportedError
    where a server cannot do that. So it is with a `transaction`, which stages the batches: they
    have the base offset -1. Raises ConfigurationError before anything is sent when a batch is
    unusable; otherwise the error of the first item that failed, once all items are settled. Its
    `outcome` speaks of the whole call, and of earlier ones that left batches of it in doubt:
    NOT_APPLIED only if nothing was appended.
    """
    for index, item in enumerate(items):
        _check_item(index, item)
    if writer is not None and transaction is not None:
        raise ConfigurationError("a transaction numbers its batches itself: append without writer")
    if transaction is not None:
        with transaction.staging(items) as staging:
            return (yield from _run(context, _Append(context, items, staging), is_repeatable=True))
    if writer is None:
        work = _Append(context, items, Numbering(items))
        return (yield from _run(context, work, is_repeatable=retry_unknown))
    numbering = WriterNumbering(items, writer.writer_id, writer.begin(items))
    work = _Append(context, items, numbering, writer.doubted(items))
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
        numbering: Numbering,
        uncertain: Collection[int] = (),
    ) -> None:
        self.items = items
        self.pending = list(range(len(items)))
        self.outcomes: dict[int, AppendOutcome] = {}
        self.failures: dict[int, SbpError] = {}
        self._uncertain = set(uncertain)
        self._sent: set[int] = set()
        self._numbering = numbering
        self._context = context
        self._errors: dict[int, tuple[str | None, SbpError]] = {}

    @property
    def in_doubt(self) -> set[int]:
        """Items of which it is not known whether one of the tries, of now or before, worked."""
        return self._uncertain | self._sent

    def build_frames(self, errors: dict[int, SbpError]) -> list[AppendFrame]:
        """Return the next frames, one per server; what does not fit stays for the next round."""
        frames: dict[str, AppendFrame] = {}
        blocked: set[int] = set()
        counts: dict[int, int] = {}
        ranges: dict[int, int] = {}
        for index in self.pending:
            item = self.items[index]
            counts[item.stream_id] = count = counts.get(item.stream_id, 0) + 1
            if count > self._numbering.stream_batches_max:
                blocked.add(item.stream_id)
            if item.stream_id in blocked:
                continue
            try:
                piece = self._place(index, errors.get(item.stream_id))
            except SbpError as error:
                self._errors[index] = (None, error)
                blocked.add(item.stream_id)
                continue
            frame = frames.setdefault(piece.servers[0], AppendFrame(piece.servers[0]))
            is_beside = ranges.setdefault(item.stream_id, piece.range_index) == piece.range_index
            if is_beside and frame.takes(item.batch):
                frame.add(index, item.batch, piece)
            else:
                blocked.add(item.stream_id)
        return [frame for frame in frames.values() if frame.indexes]

    def _place(self, index: int, maybe_error: SbpError | None) -> RangeInfo:
        """Return the range that a batch goes to next. Raises SbpError if there is none now."""
        if maybe_error is not None:
            raise maybe_error
        try:
            piece = self._numbering.range_for(index, self._context.router)
            if not piece.servers:
                raise no_server(piece)
        except SbpError:
            self._context.router.forget(self.items[index].stream_id)
            raise
        return piece

    def on_sent(self, frames: Sequence[AppendFrame]) -> None:
        """Note what is in doubt now, in case that nobody waits for the answers."""
        self._sent = {index for frame in frames for index in frame.indexes}

    def call(self, frame: AppendFrame) -> Call:
        """Return the call that sends a frame."""
        batches = [self.items[index].batch for index in frame.indexes]
        marks = list(map(self._numbering.marks, frame.indexes, frame.pieces))
        return frame.call(batches, marks, self._numbering.feature, self._context.timeout_ms)

    def on_reply(self, frame: AppendFrame, reply: Reply) -> None:
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
            self._numbering.on_refused(index, error)
            return
        self._numbering.on_appended(index)
        self.outcomes[index] = AppendOutcome(
            self.items[index].stream_id, result.base_offset, result.stream_append_time_ms
        )

    def settle(self, attempts: Attempts, now_ms: float, *, is_repeatable: bool) -> float:
        """Decide which failed items are tried again; return the wait in ms before that."""
        errors, self._errors = self._errors, {}
        self._sent = set()
        if not errors:
            self._give_up_rest(set())
            return 0
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
