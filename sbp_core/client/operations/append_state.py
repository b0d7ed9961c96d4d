"""The state of an append: the outcomes of batches, and the frames for the other batches.

Pure: appending.py sends the frames, and passes the answers in.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sbp_core import limits
from sbp_core.client.operations.calls import Attempts, Context, decode_answer, unanswered
from sbp_core.client.operations.numbering import Marks, Numbering
from sbp_core.client.operations.open_calls import Call, Reply
from sbp_core.client.operations.range_placement import no_server
from sbp_core.client.operations.replicas import Turn
from sbp_core.client.types import AppendItem, AppendOutcome, RangeInfo
from sbp_core.errors import (
    ConfigurationError,
    ConnectError,
    DeadlineExceededError,
    Outcome,
    RangeSealedError,
    SbpError,
    ThrottledError,
    WriterGapError,
    WriterUnknownError,
)
from sbp_core.record_sizes import LARGEST
from sbp_core.session.negotiation import FeatureName
from sbp_core.wire.headers import (
    AppendInfo,
    AppendRequest,
    AppendResponse,
    AppendResult,
    StreamRange,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error, with_message

_ITEM_HEADER_BYTES: Final = 320
"""Bytes of an AppendInfo in a header, rounded up."""
_ITEMS_MAX: Final = limits.HEADER_BYTES_MAX // _ITEM_HEADER_BYTES - 1


@dataclass(slots=True)
class AppendFrame:
    """Items, by their indexes in an append, each with the range that it goes to."""

    endpoint: str
    indexes: list[int] = field(default_factory=list)
    pieces: list[RangeInfo] = field(default_factory=list)
    frame_bytes: int = limits.FRAME_BYTES_MIN + _ITEM_HEADER_BYTES

    def takes(self, batch: bytes) -> bool:
        """Whether a batch fits. A batch larger than FRAME_BYTES_MAX has a frame of its own."""
        frame_bytes = self.frame_bytes + len(batch) + _ITEM_HEADER_BYTES
        is_fitting = frame_bytes <= limits.FRAME_BYTES_MAX and len(self.indexes) < _ITEMS_MAX
        return is_fitting or not self.indexes

    def add(self, index: int, batch: bytes, piece: RangeInfo) -> None:
        """Put an item in."""
        self.indexes.append(index)
        self.pieces.append(piece)
        self.frame_bytes += len(batch) + _ITEM_HEADER_BYTES

    def call(
        self,
        batches: Sequence[bytes],
        marks: Sequence[Marks],
        feature: FeatureName | None,
        timeout_ms: int,
    ) -> Call:
        """Return the call that sends the batches of the frame and their marks (SPEC "APPEND")."""
        infos = map(_info, range(len(batches)), self.pieces, batches, marks)
        header = AppendRequest(timeout_ms=timeout_ms, append_requests=tuple(infos))
        return Call(
            self.endpoint, Opcode.APPEND, header, timeout_ms, tuple(batches), feature=feature
        )


def _info(request_index: int, piece: RangeInfo, batch: bytes, marks: Marks) -> AppendInfo:
    return AppendInfo(
        stream_range=StreamRange(
            stream_id=piece.stream_id,
            range_index=piece.range_index,
            start_offset=piece.start_offset,
            end_offset=-1,
        ),
        request_index=request_index,
        batch_length=len(batch),
        stream_id=piece.stream_id,
        writer_id=marks.writer_id,
        sequence=marks.sequence,
        txn_id=marks.txn_id,
    )


_GAPS: Final = (WriterGapError, WriterUnknownError)
"""Errors of a batch that arrived before an earlier batch, or before the first of its writer."""


_LOST: Final = (ConnectError, DeadlineExceededError, RangeSealedError)
"""Errors after which a primary may not come back, or is no longer the primary of the range."""


def _may_be_lost(piece: RangeInfo, error: SbpError) -> bool:
    """Whether the range may have to end: its primary is lost, or its server has sealed it.

    In the second case the placement driver was stopped after it began the seal, and before it
    recorded the seal.
    """
    if isinstance(error, RangeSealedError):
        return piece.end_offset is None
    return piece.is_open_and_replicated and isinstance(error, _LOST)


class _Failure(NamedTuple):
    """The error of a batch, with the server and the range if the batch was sent."""

    error: SbpError
    endpoint: str | None = None
    piece: RangeInfo | None = None


@dataclass(slots=True)
class _Batch:
    """A batch; `position` counts the batches of its stream.

    A batch in flight has the `range_index` that it was sent to, any other batch None. `is_behind`:
    earlier batches of the stream were not appended when it was sent.
    """

    item: AppendItem
    position: int
    range_index: int | None = None
    is_behind: bool = False
    is_appended: bool = False


class AppendState:
    """The state of one append: each batch is pending, in flight, appended or failed.

    Batches are known by their index, in the order in which they were added. An appended batch is
    forgotten once all earlier batches of its stream are appended.
    """

    def __init__(self, context: Context, numbering: Numbering) -> None:
        self.appended_count = 0
        self.outcomes: dict[int, AppendOutcome] = {}
        self.failures: dict[int, SbpError] = {}
        self.given_up: set[int] = set()
        """Streams that failed while the other streams went on."""
        self.is_throttled = False
        """Whether a server had no room for several frames at a time."""
        self._context = context
        self._numbering = numbering
        self._count = 0
        self._batches: dict[int, _Batch] = {}
        self._by_stream: dict[int, deque[int]] = {}
        self._positions: Counter[int] = Counter()
        self._last_applied: dict[int, int] = {}
        self._uncertain: set[int] = set()
        self._errors: dict[int, _Failure] = {}
        self._turns: dict[int, Turn] = {}
        """By stream: the replicas of a sealed range that are asked about a staged batch."""
        self._has_gap = False

    def add(self, items: Sequence[AppendItem]) -> None:
        """Accept batches, in order within a stream.

        Raises ConfigurationError for an unusable batch, and what the numbering raises. None of the
        batches is accepted then.
        """
        for index, item in enumerate(items, start=self._count):
            _check_item(index, item)
            if item.stream_id in self.given_up:
                raise ConfigurationError(
                    f"an earlier batch of stream {item.stream_id} failed in this appender: begin"
                    " another one"
                )
        self._uncertain.update(self._numbering.add(items))
        known = self._numbering.known if not self._count else {}
        self.outcomes |= known
        self.appended_count += len(known)
        for index, item in enumerate(items, start=self._count):
            if index in known:
                continue
            self._batches[index] = _Batch(item, self._positions[item.stream_id])
            self._by_stream.setdefault(item.stream_id, deque()).append(index)
            self._positions[item.stream_id] += 1
        self._count += len(items)

    @property
    def unsent(self) -> list[int]:
        """The batches to send."""
        return [index for index, batch in self._pending() if batch.range_index is None]

    @property
    def has_trouble(self) -> bool:
        """Whether batches failed or were refused, so that `settle` comes before the next frames."""
        return bool(self._errors) or self._has_gap

    @property
    def unacknowledged(self) -> list[AppendItem]:
        """The batches from the first one of each stream on that is not known to be appended."""
        return [batch.item for batch in self._batches.values()]

    @property
    def in_doubt(self) -> set[int]:
        """Batches that one of the tries, of this append or an earlier one, may have appended."""
        on_way = {index for index, batch in self._batches.items() if batch.range_index is not None}
        return self._uncertain | on_way

    def stream_ids(self, indexes: Collection[int]) -> list[int]:
        """Return the streams of batches."""
        return [self._batches[index].item.stream_id for index in indexes]

    def build_frames(
        self, errors: dict[int, SbpError], busy: Collection[str], now_ms: float
    ) -> list[AppendFrame]:
        """Return the next frames, one per server; batches that do not fit wait for the next frames.

        `errors` are of streams that cannot be found. `busy` servers get nothing. A batch is sent
        while earlier batches of its stream are in flight only if its number keeps the order.
        """
        frames: dict[str, AppendFrame] = {}
        blocked: set[int] = set()
        ranges: dict[int, int] = {}
        firsts: dict[int, int] = {}
        for index, batch in self._pending():
            stream_id = batch.item.stream_id
            is_far = (
                batch.position - firsts.setdefault(stream_id, batch.position)
                >= self._numbering.stream_batches_max
            )
            if batch.range_index is not None:
                ranges[stream_id] = batch.range_index
                if not self._numbering.is_ordered:
                    blocked.add(stream_id)
                continue
            if is_far:
                blocked.add(stream_id)
            if stream_id in blocked:
                continue
            try:
                piece = self._place(index, stream_id, errors.get(stream_id))
            except SbpError as error:
                self._errors[index] = _Failure(error)
                blocked.add(stream_id)
                continue
            turn = self._turns.setdefault(stream_id, Turn())
            server, _ = turn.at(self._context.replicas, piece, now_ms)
            frame = frames.setdefault(server, AppendFrame(server))
            is_beside = ranges.setdefault(stream_id, piece.range_index) == piece.range_index
            if is_beside and server not in busy and frame.takes(batch.item.batch):
                frame.add(index, batch.item.batch, piece)
            else:
                blocked.add(stream_id)
        return [frame for frame in frames.values() if frame.indexes]

    def _pending(self) -> list[tuple[int, _Batch]]:
        """Return the batches that are waiting or in flight."""
        return [
            (index, batch)
            for index, batch in self._batches.items()
            if not batch.is_appended and index not in self.failures
        ]

    def _place(self, index: int, stream_id: int, error: SbpError | None) -> RangeInfo:
        """Return the range that a batch goes to next.

        Raises SbpError if there is none now, or if no server takes the batch.
        """
        if error is not None:
            raise error
        try:
            piece = self._numbering.range_for(index, stream_id, self._context.router)
            if not piece.servers:
                raise no_server(piece)
        except SbpError:
            self._context.router.forget(stream_id)
            raise
        return piece

    def on_sent(self, frames: Sequence[AppendFrame]) -> list[Call]:
        """Record that frames are sent now; return their calls."""
        calls = []
        for frame in frames:
            for index, piece in zip(frame.indexes, frame.pieces, strict=True):
                batch = self._batches[index]
                batch.range_index = piece.range_index
                batch.is_behind = self._by_stream[batch.item.stream_id][0] != index
            batches = [self._batches[index].item.batch for index in frame.indexes]
            marks = list(map(self._numbering.marks, frame.indexes, frame.pieces))
            feature = self._numbering.feature
            calls.append(frame.call(batches, marks, feature, self._context.timeout_ms))
        return calls

    def on_reply(self, frame: AppendFrame, reply: Reply) -> None:
        """Record the outcome of each batch of a frame."""
        pieces = dict(zip(frame.indexes, frame.pieces, strict=True))
        for sent_index in frame.indexes:
            self._batches[sent_index].range_index = None
        missing = dict(enumerate(frame.indexes))
        failure = reply.error
        for part in reply.frames:
            try:
                answer = decode_answer(part, AppendResponse)
            except SbpError as unusable:
                failure = unusable
                break
            for result in answer.append_responses:
                index = missing.get(result.request_index)
                if index is None or not self._is_about(result, index):
                    continue
                del missing[result.request_index]
                error = maybe_error(result.status)
                if error is None:
                    self._on_appended(index, result)
                else:
                    error.throttle_time_ms = max(answer.throttle_time_ms, 0)
                    self._on_refused(index, _Failure(error, frame.endpoint, pieces[index]))
        for silent_index in missing.values():
            stream_id = self._batches[silent_index].item.stream_id
            silence = unanswered(f"the batch for stream {stream_id}")
            self._errors[silent_index] = _Failure(
                failure or silence, frame.endpoint, pieces[silent_index]
            )

    def _is_about(self, result: AppendResult, index: int) -> bool:
        """Whether a result is of the stream of a batch."""
        return result.stream_id in {self._batches[index].item.stream_id, -1}

    def _on_refused(self, index: int, failure: _Failure) -> None:
        if isinstance(failure.error, _GAPS) and self._batches[index].is_behind:
            self._has_gap = True  # the batch is sent again after the earlier ones
        else:
            self._errors[index] = failure
            piece = failure.piece
            # A restarted primary may lack batches that the other replicas committed: only a sealed
            # replica knows that a batch in doubt was not appended.
            is_sure = index not in self._uncertain or (piece and not piece.is_open_and_replicated)
            if is_sure:
                self._numbering.on_refused(index, failure.error)

    def _on_appended(self, index: int, result: AppendResult) -> None:
        batch = self._batches[index]
        batch.is_appended = True
        stream_id = batch.item.stream_id
        outcome = self.outcomes[index] = AppendOutcome(
            stream_id, result.base_offset, result.stream_append_time_ms
        )
        self._numbering.on_appended(index, outcome)
        self._uncertain.discard(index)
        self.appended_count += 1
        self._last_applied[stream_id] = max(index, self._last_applied.get(stream_id, -1))
        ordered = self._by_stream[stream_id]
        while ordered and self._batches[ordered[0]].is_appended:
            del self._batches[ordered.popleft()]

    def settle(self, attempts: Attempts, now_ms: float, *, is_repeatable: bool) -> float:
        """Decide which batches to send again, when no frame is in flight; return the wait in ms.

        A batch that arrived before an earlier one is sent again. If a batch has failed finally, the
        later batches of its stream are given up.
        """
        errors, self._errors, self._has_gap = self._errors, {}, False
        if errors:
            attempts.on_failure()
        given_up: dict[int, int] = {}
        longest_ms = 0.0
        for index in sorted(errors):
            error, endpoint, piece = errors[index]
            stream_id = self._batches[index].item.stream_id
            if endpoint is not None and piece is not None:
                replicas = self._context.replicas
                failed = self._turns[stream_id].after(replicas, piece, endpoint, error, now_ms)
                if failed is None:  # the next frame asks another replica for the batch
                    continue
                endpoint, error = failed
            self.is_throttled = self.is_throttled or isinstance(error, ThrottledError)
            if error.outcome is not Outcome.NOT_APPLIED:
                self._uncertain.add(index)
            if error.refreshes_placement:
                self._context.router.forget(stream_id)
            wait_ms = attempts.maybe_wait_ms(
                error, "APPEND", endpoint, now_ms, is_repeatable=is_repeatable
            )
            is_overtaken = (
                not self._numbering.is_ordered and self._last_applied.get(stream_id, -1) > index
            )
            if piece is not None and _may_be_lost(piece, error):
                self._context.replicas.suspect(piece, error)
            if wait_ms is None or is_overtaken or stream_id in given_up:
                given_up.setdefault(stream_id, index)
                self.failures[index] = attempts.explain(error, "APPEND", endpoint)
            else:
                longest_ms = max(longest_ms, wait_ms)
        for index, batch in self._pending():
            if index > given_up.get(batch.item.stream_id, index):
                self.failures[index] = SbpError("not sent: an earlier batch of the stream failed")
        return longest_ms

    def take_suspects(self) -> list[tuple[RangeInfo, SbpError]]:
        """Return the ranges that may have to end, with the errors, and forget them.

        The failures are of this append, and of other appends of the client. Ranges that the
        placement driver has sealed or moved since are left out.
        """
        router = self._context.router
        return [
            (piece, error)
            for piece, error in self._context.replicas.take_suspects(self._by_stream)
            if (known := router.maybe_open_range(piece.stream_id)) is not None
            and (known.range_index, known.servers[0]) == (piece.range_index, piece.servers[0])
        ]

    def give_up_failed(self) -> dict[int, SbpError]:
        """Forget the streams with failed batches; return the first failure of each."""
        failed: dict[int, SbpError] = {}
        for index in sorted(self.failures):
            stream_id = self._batches[index].item.stream_id
            if stream_id not in failed:
                failed[stream_id] = self.failures[index]
        self.failures.clear()
        for stream_id, error in failed.items():
            indexes = self._by_stream.pop(stream_id)
            is_sure = self._uncertain.isdisjoint(indexes)
            error.outcome = Outcome.NOT_APPLIED if is_sure else Outcome.UNKNOWN
            for index in indexes:
                del self._batches[index]
        self.given_up |= failed.keys()
        return failed

    def check(self) -> None:
        """Raise the first failure, if there is one, with the outcome of the whole append."""
        if not self.failures:
            return
        index = min(self.failures)
        stream_id = self._batches[index].item.stream_id
        before = f"stream {stream_id}: "
        if self._count > 1:
            before = f"item {index} of {self._count} (stream {stream_id}): "
        after = f" ({self.appended_count} of {self._count} batches were appended)"
        error = with_message(self.failures[index], before, after if self._count > 1 else "")
        is_untouched = not self.appended_count and not self._uncertain
        error.outcome = Outcome.NOT_APPLIED if is_untouched else Outcome.UNKNOWN
        raise error


def _check_item(index: int, item: AppendItem) -> None:
    if not 0 < len(item.batch) <= LARGEST.batch_bytes:
        raise ConfigurationError(
            f"the batch of item {index} (stream {item.stream_id}) has {len(item.batch)} bytes;"
            f" expected 1 to {LARGEST.batch_bytes}: write smaller batches"
        )
