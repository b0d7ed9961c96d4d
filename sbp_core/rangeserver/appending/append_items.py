"""What an APPEND frame asks for, item by item, and what is answered to each (SPEC "APPEND")."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from sbp_core.errors import InvalidRequestError, StatusCode
from sbp_core.log.entry import Entry
from sbp_core.log.states.writer_states import NumberedBatch
from sbp_core.rangeserver.appending.in_flight import PendingAppend
from sbp_core.rangeserver.transactions.staged_repeats import StagedRepeat
from sbp_core.wire.headers import AppendInfo, AppendResult, Status
from sbp_core.wire.status import SUCCESS


class Item(Struct, frozen=True):
    """One batch that is to be appended."""

    info: AppendInfo
    stream_id: int
    range_index: int
    batch: memoryview


Outcome = Entry | PendingAppend | NumberedBatch | StagedRepeat | Status
"""Of an item: a batch to append, without and with a number; one that was; one that is still to be
compared with what is staged; or why it is refused."""


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


def result_of(item: Item, outcome: Outcome, time_ms: int) -> AppendResult:
    """Return the answer to an item; `time_ms` is when the frame was written."""
    base_offset, status = -1, SUCCESS
    if isinstance(outcome, Entry):
        base_offset = outcome.base_offset
    elif isinstance(outcome, Status):
        status = outcome
    elif isinstance(outcome, NumberedBatch):
        base_offset, time_ms = outcome.base_offset, outcome.time_ms
    return AppendResult(
        stream_id=item.stream_id,
        request_index=item.info.request_index,
        base_offset=base_offset,
        stream_append_time_ms=time_ms,
        status=status,
    )
