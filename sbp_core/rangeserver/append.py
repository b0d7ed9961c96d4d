"""APPEND: check each batch, give it its offsets, answer when it is on disk (SPEC "APPEND")."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

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
from sbp_core.server.dispatch import ServerCall
from sbp_core.wire.headers import AppendInfo, AppendRequest, AppendResponse, AppendResult
from sbp_core.wire.status import SUCCESS, status_for


@dataclass(frozen=True, slots=True)
class _Item:
    info: AppendInfo
    stream_id: int
    range_index: int
    batch: memoryview


class AppendHandler:
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

    async def __call__(self, call: ServerCall) -> None:
        """Answer one APPEND frame, once all its batches are durable or refused."""
        began_at = self._metrics.now()
        request = call.decode(AppendRequest)
        items = list(_split_payload(request.append_requests, call.payload))
        await self._host.learn(
            ((item.stream_id, item.range_index) for item in items), is_append=True
        )
        try:
            # For the frame as a whole: a small batch must not overtake an earlier, larger one.
            self._committer.check_room(call.memory_bytes)
            self._disk_space.let_in(len(call.payload))
        except (ThrottledError, DiskFullError) as error:
            refusal = status_for(error)
            results = [replace(_unanswered(item), status=refusal) for item in items]
            self._count(began_at, len(items), ())
            await self._respond(call, results, throttle_time_ms=limits.THROTTLE_MS)
            return
        accepted = [self._accept(item) for item in items]
        entries = [entry for _, entry in accepted if entry is not None]
        if entries:
            try:
                await asyncio.shield(self._committer.submit(entries, call.memory_bytes))
            except LogWriteError as error:
                self._count(began_at, len(items), ())
                raise StatusError(StatusCode.RS_INTERNAL, str(error)) from error
        self._count(began_at, len(items), entries)
        await self._respond(call, [result for result, _ in accepted])

    def _count(self, began_at: float, item_count: int, appended: Sequence[Entry]) -> None:
        self._metrics.appends.add(
            item_count,
            item_count - len(appended),
            sum(entry.length for entry in appended),
            self._metrics.now() - began_at,
        )
        self._metrics.touch((entry.stream_id, entry.range_index) for entry in appended)

    def _accept(self, item: _Item) -> tuple[AppendResult, Entry | None]:
        """Give one batch its offsets, or say why not."""
        result = _unanswered(item)
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
            return replace(result, status=status_for(error)), None
        write_base_offset(item.batch, base_offset)
        entry = Entry(
            EntryKind.BATCH,
            item.stream_id,
            hosted.range_index,
            base_offset,
            record_count,
            item.batch,
        )
        return replace(result, base_offset=base_offset, status=SUCCESS), entry

    async def _respond(
        self, call: ServerCall, results: Iterable[AppendResult], *, throttle_time_ms: int = 0
    ) -> None:
        now_ms = self._clock.wall_ms()
        await respond_all(
            call,
            [replace(result, stream_append_time_ms=now_ms) for result in results],
            lambda part: AppendResponse(throttle_time_ms, part, SUCCESS),
        )


def _unanswered(item: _Item) -> AppendResult:
    return AppendResult(
        stream_id=item.stream_id, request_index=item.info.request_index, base_offset=-1
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
