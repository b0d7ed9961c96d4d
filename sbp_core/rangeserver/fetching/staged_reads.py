"""FETCH of what is staged under a transaction, to stage it again elsewhere (SPEC "FETCH").

Here `fetch_offset` and `next_offset` count the batches of the transaction in a range. Nobody waits
for more of them: what is there is the answer, and at the end it is empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from sbp_core import limits
from sbp_core.errors import (
    InvalidRequestError,
    LogError,
    NotFoundError,
    SbpError,
    StatusCode,
)
from sbp_core.log.durable_log import Log
from sbp_core.log.segment_rows import Slot
from sbp_core.log.states.staged_states import Staging
from sbp_core.rangeserver.fetching.fetch_items import Item, item_of
from sbp_core.rangeserver.fetching.read_scheduler import ReadClass, ReadJob, ReadScheduler
from sbp_core.rangeserver.fetching.slot_reading import read_slots
from sbp_core.rangeserver.hosting import RangeHost
from sbp_core.rangeserver.metrics import Metrics
from sbp_core.server.dispatch import ServerCall
from sbp_core.session.connection import Payload
from sbp_core.wire.checksum import Octets
from sbp_core.wire.headers import FetchInfo, FetchRequest, FetchResponse, FetchResult
from sbp_core.wire.status import SUCCESS, shown, status_for


def is_of_staged(request: FetchRequest) -> bool:
    """Whether a FETCH asks for what is staged."""
    return any(info.txn_id is not None for info in request.fetch_requests)


@dataclass(frozen=True, slots=True)
class _Read:
    """What was read for an item."""

    result: FetchResult
    payload: Payload


class StagedReads:
    """Serves the FETCH frames that ask for what is staged, one item after the other."""

    def __init__(self, host: RangeHost, log: Log, reads: ReadScheduler, metrics: Metrics) -> None:
        self._host = host
        self._log = log
        self._reads = reads
        self._metrics = metrics

    async def answer(self, call: ServerCall, request: FetchRequest, began_at: float) -> None:
        """Answer one frame by a frame for each item.

        Raises InvalidRequestError for more than one in a dialect of one frame per answer.
        """
        if call.is_one_frame and len(request.fetch_requests) > 1:
            raise _invalid("ask for what is staged under one transaction at a time")
        items = map(item_of, request.fetch_requests)
        await self._host.learn((item.stream_id, item.range_index) for item in items)
        last = len(request.fetch_requests) - 1
        for at, info in enumerate(request.fetch_requests):
            await self._answer(call, info, began_at, is_end=at == last)

    async def _answer(
        self, call: ServerCall, info: FetchInfo, began_at: float, *, is_end: bool
    ) -> None:
        item = item_of(info)
        try:
            staging = self._staging_for(item, info.txn_id)
        except SbpError as error:
            self._metrics.fetches.add(1, 1, 0, self._metrics.now() - began_at)
            refusal = FetchResult(item.stream_id, item.request_index, status=status_for(error))
            await call.respond(FetchResponse(fetch_responses=(refusal,)), is_end=is_end)
            return
        job = ReadJob(ReadClass(call.agreement.isolation, is_tail=False), item.max_bytes)
        read = partial(_read, self._log, call, item, staging)
        async with call.reserve(item.max_bytes), self._reads.read(job, read) as found:
            result = found.result
            self._metrics.fetches.add(
                1,
                result.status is not SUCCESS,
                result.batch_length,
                self._metrics.now() - began_at,
            )
            header = FetchResponse(fetch_responses=(result,), status=SUCCESS)
            call.respond_now(header, found.payload, is_end=is_end)

    def _staging_for(self, item: Item, txn_id: str | None) -> Staging:
        """Return what an item is to be answered from. Raises SbpError if there is none.

        NotFoundError says that nothing is staged in a range that is here, RangeNotFoundError that
        this server knows nothing of it.
        """
        if txn_id is None:
            raise _invalid("a frame asks for what is staged, or for what is not, never for both")
        if item.range_index < 0:
            raise _invalid("what is staged is read range by range: name a range_index")
        self._host.table.range_at(item.stream_id, item.range_index)
        staging = self._log.staged.maybe_staging(item.stream_id, item.range_index, txn_id)
        if staging is None:
            raise NotFoundError(
                StatusCode.NOT_FOUND,
                f"nothing is staged under {shown(txn_id)} in range {item.range_index} of stream"
                f" {item.stream_id}",
            )
        if not 0 <= item.fetch_offset <= staging.batch_count:
            raise _invalid(
                f"{staging.batch_count} batches are staged under {txn_id}, and batch"
                f" {item.fetch_offset} is asked for"
            )
        return staging


def _read(log: Log, call: ServerCall, item: Item, staging: Staging) -> _Read:
    """Read batches from the one that is asked for on, up to one that cannot be read.

    Runs on a reader thread.
    """
    status, buffers, slot_count = SUCCESS, tuple[Octets, ...](), 0
    try:
        slots = list(_slots(log, item, staging))
        bodies = read_slots(log, (item.stream_id, item.range_index), slots)
        buffers, slot_count = bodies.buffers, bodies.slot_count
        if bodies.error is not None and not slot_count:
            raise bodies.error
    except LogError as error:
        status = status_for(error)
    result = FetchResult(
        stream_id=item.stream_id,
        request_index=item.request_index,
        batch_count=slot_count,
        status=status,
        batch_length=sum(map(len, buffers)),
        next_offset=item.fetch_offset + slot_count,
    )
    return _Read(result, call.pack(buffers))


def _slots(log: Log, item: Item, staging: Staging) -> Iterator[Slot]:
    """Yield where the batches of an answer are, one at least if there is one."""
    taken_bytes = 0
    for taken_count, slot in enumerate(log.staged_from(staging, item.fetch_offset)):
        taken_bytes += slot.body_length
        is_too_much = taken_bytes > item.max_bytes or taken_count >= limits.RESULTS_PER_FRAME
        if taken_count and is_too_much:
            return
        yield slot


def _invalid(message: str) -> InvalidRequestError:
    return InvalidRequestError(StatusCode.INVALID_REQUEST, message)
