"""APPEND: check each batch, give it its offsets, answer when it is on disk (SPEC "APPEND")."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from sbp_core import limits
from sbp_core.errors import (
    DiskFullError,
    InvalidRequestError,
    LogWriteError,
    RangeNotFoundError,
    RangeSealedError,
    RecordBatchError,
    SbpError,
    StatusCode,
    StatusError,
    ThrottledError,
)
from sbp_core.log.entry import Entry, EntryKind
from sbp_core.rangeserver.commit import GroupCommitter
from sbp_core.rangeserver.disk_space import DiskSpace
from sbp_core.rangeserver.hosting import RangeHost
from sbp_core.rangeserver.metrics import Metrics
from sbp_core.rangeserver.ranges import HostedRange
from sbp_core.records import peek_batch, write_base_offset
from sbp_core.server.answers import respond_all
from sbp_core.server.clock import Clock
from sbp_core.server.dispatch import PromptHandler, Rest, ServerCall
from sbp_core.wire.headers import (
    AppendInfo,
    AppendRequest,
    AppendResponse,
    AppendResult,
    Status,
)
from sbp_core.wire.status import SUCCESS, status_for


@dataclass(frozen=True, slots=True)
class _Item:
    info: AppendInfo
    stream_id: int
    range_index: int
    batch: memoryview


@dataclass(frozen=True, slots=True)
class _AppendFrame:
    """A frame that is being served; `began_at` is when it came."""

    call: ServerCall
    items: Sequence[_Item]
    began_at: float

    @property
    def places(self) -> list[tuple[int, int]]:
        """The ranges to append to, (stream id, range index)."""
        return [(item.stream_id, item.range_index) for item in self.items]


class AppendHandler(PromptHandler):
    """Serves APPEND. Every batch of a frame succeeds or fails by itself."""

    def __init__(
        self,
        host: RangeHost,
        committer: GroupCommitter,
        disk_space: DiskSpace,
        *,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._host = host
        self._committer = committer
        self._disk_space = disk_space
        self._clock = clock
        self._metrics = metrics

    def begin(self, call: ServerCall) -> Rest:
        """Take one APPEND frame; the rest is to wait until its batches are durable, or refused."""
        began_at = self._metrics.now()
        request = call.decode(AppendRequest)
        items = list(_split_payload(request.append_requests, call.payload))
        frame = _AppendFrame(call, items, began_at)
        lacking = self._host.lacking(frame.places, is_append=True)
        if lacking:
            return partial(self._learn, frame, lacking)
        return self._append(frame)

    async def _learn(self, frame: _AppendFrame, lacking: Sequence[tuple[int, int]]) -> None:
        await self._host.learn(lacking, is_append=True)
        await self._append(frame)()

    def _append(self, frame: _AppendFrame) -> Rest:
        items = frame.items
        try:
            # For the frame as a whole: a small batch must not overtake an earlier, larger one.
            self._committer.check_room(frame.call.memory_bytes)
            self._disk_space.let_in(len(frame.call.payload))
        except (ThrottledError, DiskFullError) as error:
            refusals = [status_for(error)] * len(items)
            self._count(frame, ())
            return partial(self._respond, frame, refusals, throttle_time_ms=limits.THROTTLE_MS)
        accepted = [self._accept(item) for item in items]
        entries = [each for each in accepted if isinstance(each, Entry)]
        written = None
        if entries:
            written = self._committer.submit(entries, frame.call.memory_bytes)
        return partial(self._finish, frame, accepted, written)

    async def _finish(
        self,
        frame: _AppendFrame,
        accepted: Sequence[Entry | Status],
        written: asyncio.Future[int] | None,
    ) -> None:
        entries = [each for each in accepted if isinstance(each, Entry)]
        time_ms = None
        if written is not None:
            try:
                time_ms = await written
            except LogWriteError as error:
                self._count(frame, ())
                raise StatusError(StatusCode.RS_INTERNAL, str(error)) from error
        self._count(frame, entries)
        await self._respond(frame, accepted, time_ms)

    def _count(self, frame: _AppendFrame, appended: Sequence[Entry]) -> None:
        item_count = len(frame.items)
        self._metrics.appends.add(
            item_count,
            item_count - len(appended),
            sum([entry.length for entry in appended]),
            self._metrics.now() - frame.began_at,
        )
        self._metrics.touch([(entry.stream_id, entry.range_index) for entry in appended])

    def _accept(self, item: _Item) -> Entry | Status:
        """Give one batch its offsets, or say why not."""
        try:
            _check_extensions(item.info)
            record_count = peek_batch(item.batch).record_count
            if len(item.batch) > limits.BATCH_BYTES_MAX:
                raise RecordBatchError(
                    f"a batch of {len(item.batch)} octets passes the limit of"
                    f" {limits.BATCH_BYTES_MAX}; send smaller batches"
                )
            hosted = self._host.table.range_at(item.stream_id, -1)
            _check_range_index(hosted, item.range_index)
            base_offset = hosted.assign(record_count)
        except SbpError as error:
            return status_for(error)
        write_base_offset(item.batch, base_offset)
        return Entry(
            EntryKind.BATCH,
            item.stream_id,
            hosted.range_index,
            base_offset,
            record_count,
            item.batch,
        )

    async def _respond(
        self,
        frame: _AppendFrame,
        outcomes: Sequence[Entry | Status],
        maybe_time_ms: int | None = None,
        *,
        throttle_time_ms: int = 0,
    ) -> None:
        time_ms = self._clock.wall_ms() if maybe_time_ms is None else maybe_time_ms
        await respond_all(
            frame.call,
            [
                _result(item, each, time_ms)
                for item, each in zip(frame.items, outcomes, strict=True)
            ],
            lambda part: AppendResponse(throttle_time_ms, part, SUCCESS),
        )


def _result(item: _Item, outcome: Entry | Status, time_ms: int) -> AppendResult:
    base_offset, status = -1, SUCCESS
    if isinstance(outcome, Entry):
        base_offset = outcome.base_offset
    else:
        status = outcome
    return AppendResult(
        stream_id=item.stream_id,
        request_index=item.info.request_index,
        base_offset=base_offset,
        stream_append_time_ms=time_ms,
        status=status,
    )


def _split_payload(infos: Iterable[AppendInfo], payload: memoryview) -> Iterable[_Item]:
    """Cut the payload by the lengths of the header; refuse the frame when they do not add up."""
    position = 0
    for info in infos:
        end = position + info.batch_length
        if info.batch_length < 0 or end > len(payload):
            raise InvalidRequestError(
                StatusCode.INVALID_REQUEST,
                f"the batch of request {info.request_index} takes octets {position}..{end} of a"
                f" payload of {len(payload)}; nothing of this frame was appended",
            )
        stream_range = info.stream_range
        stream_id = info.stream_id
        if stream_id < 0 and stream_range is not None:
            stream_id = stream_range.stream_id
        range_index = stream_range.range_index if stream_range is not None else -1
        yield _Item(info, stream_id, range_index, payload[position:end])
        position = end
    if position != len(payload):
        raise InvalidRequestError(
            StatusCode.INVALID_REQUEST,
            f"the batches take {position} octets, the payload has {len(payload)}; nothing of this"
            " frame was appended",
        )


def _check_extensions(info: AppendInfo) -> None:
    """Refuse what this server does not honour: no guarantee is weakened silently."""
    if info.writer_id is not None or info.sequence >= 0 or info.txn_id is not None:
        raise InvalidRequestError(
            StatusCode.INVALID_REQUEST,
            "idempotent and staged appends are not available on this server; append without"
            " writer_id, sequence and txn_id",
        )


def _check_range_index(hosted: HostedRange, range_index: int) -> None:
    if range_index < 0 or range_index == hosted.range_index:
        return
    if range_index < hosted.range_index:
        raise RangeSealedError(
            StatusCode.RANGE_ALREADY_SEALED,
            f"range {range_index} of stream {hosted.stream_id} is not the open one, which is"
            f" {hosted.range_index}",
        )
    raise RangeNotFoundError(
        StatusCode.RANGE_NOT_FOUND,
        f"range {range_index} of stream {hosted.stream_id} is not hosted here",
    )
