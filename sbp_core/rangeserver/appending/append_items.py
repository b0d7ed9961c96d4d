"""The batches of APPEND: cut from their frame, and kept while they wait for the disk.

The log does not know yet the numbered batches that were taken and are not written. They are kept in
InFlight, so a repeat of one of them is answered when the original is, and never before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from msgspec import Struct

from sbp_core.errors import InvalidRequestError, StatusCode
from sbp_core.log.states.writer_states import NumberedBatch
from sbp_core.wire.headers import AppendInfo

Numberer = tuple[int, str] | tuple[int, int, str]
"""Who numbers batches: a writer of a stream, or a transaction in a range of one."""


@dataclass(slots=True, eq=False)
class PendingAppend:
    """A batch that waits for the disk; `written` ends with its time in ms.

    `base_offset` is -1 for one that is staged. `batch` are its bytes, with which a repeat is
    compared.
    """

    numberer: Numberer
    sequence: int
    base_offset: int
    record_count: int
    batch: memoryview
    written: asyncio.Future[int] | None = None

    def placed(self) -> NumberedBatch:
        """Return where it is, once it is written. Raises LogWriteError if it is not."""
        assert self.written is not None
        return NumberedBatch(self.base_offset, self.record_count, self.written.result())


class InFlight:
    """What was taken and is not written yet."""

    def __init__(self) -> None:
        self._batches: dict[Numberer, dict[int, PendingAppend]] = {}
        """Of each numberer its batches by sequence, in that order."""

    def of(self, numberer: Numberer) -> Mapping[int, PendingAppend]:
        """Return the batches of a writer or transaction by their sequences, in order."""
        return self._batches.get(numberer, {})

    def maybe_last(self, numberer: Numberer) -> int | None:
        """Return the last sequence that was taken, None if nothing of it waits."""
        batches = self._batches.get(numberer)
        return next(reversed(batches)) if batches else None

    def begin(
        self,
        numberer: Numberer,
        sequence: int,
        base_offset: int,
        record_count: int,
        batch: memoryview,
    ) -> PendingAppend:
        """Take note of the next batch, which is appended; `follow` comes next."""
        append = PendingAppend(numberer, sequence, base_offset, record_count, batch)
        self._batches.setdefault(numberer, {})[sequence] = append
        return append

    def follow(self, appends: Iterable[PendingAppend], written: asyncio.Future[int]) -> None:
        """Let the batches that were begun wait for `written`, which nobody must cancel.

        Those that wait for something else already, and second mentions, are left as they are.
        """
        begun = []
        for append in appends:
            if append.written is None:
                append.written = written
                begun.append(append)
        written.add_done_callback(partial(self._on_written, begun))

    def _on_written(self, begun: Iterable[PendingAppend], written: asyncio.Future[int]) -> None:
        """Forget what the log knows by now; after a failure nothing it knows can be relied on."""
        if written.exception() is not None:
            return
        for append in begun:
            batches = self._batches[append.numberer]
            del batches[append.sequence]
            if not batches:
                del self._batches[append.numberer]


class Item(Struct, frozen=True):
    """One batch that is to be appended."""

    info: AppendInfo
    stream_id: int
    range_index: int
    batch: memoryview


def split_payload(infos: Iterable[AppendInfo], payload: memoryview) -> Iterable[Item]:
    """Cut the payload by the lengths of the header; refuse the frame when they do not add up.

    Raises InvalidRequestError.
    """
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
        yield Item(info, stream_id, range_index, payload[position:end])
        position = end
    if position != len(payload):
        raise InvalidRequestError(
            StatusCode.INVALID_REQUEST,
            f"the batches take {position} octets, the payload has {len(payload)}; nothing of this"
            " frame was appended",
        )


def check_extensions(info: AppendInfo) -> None:
    """Refuse what this server does not honour: no guarantee is weakened silently.

    Raises InvalidRequestError.
    """
    if info.sequence >= 0 and info.writer_id is None and info.txn_id is None:
        raise InvalidRequestError(
            StatusCode.INVALID_REQUEST,
            f"sequence {info.sequence} is nobody's; append with a writer_id, or without sequence",
        )
