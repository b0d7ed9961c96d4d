"""Sealing ranges and opening the next ones, on the metadata: wire items in, wire results out.

It runs on the store's thread as what is in stream_operations.py does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sbp_core.errors import (
    InvalidRequestError,
    RangeNotFoundError,
    RangeOpenError,
    SbpError,
    StatusCode,
    StatusError,
)
from sbp_core.pd.metadata.store import MetadataStore
from sbp_core.pd.model import RangeRecord, SealedRange, ServerLoad, range_table
from sbp_core.pd.servers.registry import Placement
from sbp_core.pd.streams.stream_operations import no_stream
from sbp_core.wire.headers import RangeId, StreamRange


@dataclass(frozen=True, slots=True)
class SealPlan:
    """One item of SEAL_RANGE: refused already, answered already, or to be done.

    `maybe_open` is the range that its server has to seal first; without it only the next range is
    lacking.
    """

    item: RangeId
    maybe_error: SbpError | None = None
    maybe_answer: StreamRange | None = None
    maybe_open: StreamRange | None = None

    @property
    def is_settled(self) -> bool:
        """Whether nothing is to be done any more."""
        return self.maybe_error is not None or self.maybe_answer is not None


def plan_seals(store: MetadataStore, items: Sequence[RangeId]) -> list[SealPlan]:
    """Look at what SEAL_RANGE asks for.

    Sealing a range that is not the last one any more is a repeat: it has its answer already.
    """
    addresses = store.server_addresses()
    plans = []
    for item in items:
        last = store.maybe_last_range(item.stream_id)
        if last is None:
            plans.append(SealPlan(item, maybe_error=no_stream(item.stream_id)))
        elif item.range_index > last.range_index:
            error = RangeNotFoundError(
                StatusCode.RANGE_NOT_FOUND,
                f"stream {item.stream_id} has no range {item.range_index}; list its ranges again",
            )
            plans.append(SealPlan(item, maybe_error=error))
        elif last.end_offset is not None:
            plans.append(SealPlan(item))
        elif 0 <= item.range_index < last.range_index:
            plans.append(SealPlan(item, maybe_answer=range_table(last, addresses)))
        else:
            plans.append(_plan_open(store, item, range_table(last, addresses)))
    return plans


def _plan_open(store: MetadataStore, item: RangeId, open_range: StreamRange) -> SealPlan:
    """Return the plan of a range that is open: sealed without a successor, it would end appends."""
    try:
        store.capacity.check_ranges(item.stream_id, store.range_count(item.stream_id))
    except InvalidRequestError as error:
        return SealPlan(item, maybe_error=error)
    return SealPlan(item, maybe_open=open_range)


def open_next_ranges(
    store: MetadataStore,
    stream_ids: Sequence[int],
    sealed: Sequence[SealedRange],
    servers: Sequence[ServerLoad],
) -> dict[int, StreamRange | SbpError]:
    """Record where ranges were sealed, and open the next range of each stream that has none open.

    Returns the writable range of each stream, or why it has none; the seals are recorded
    nevertheless.
    """
    store.seal_ranges(sealed)
    addresses = store.server_addresses()
    placement = Placement(servers, store.open_range_counts())
    opened: dict[int, StreamRange | SbpError] = {}
    news: list[RangeRecord] = []
    for stream_id in dict.fromkeys(stream_ids):
        last = store.maybe_last_range(stream_id)
        if last is not None and last.end_offset is None:
            opened[stream_id] = range_table(last, addresses)
            continue
        try:
            news.append(_next_range(store, StreamRange(stream_id=stream_id), placement))
        except StatusError as error:
            opened[stream_id] = error
    for new, is_made in zip(news, store.create_ranges(news), strict=True):
        opened[new.stream_id] = range_table(new, addresses) if is_made else _overtaken(new)
    return opened


def create_range(
    store: MetadataStore, wanted: StreamRange | None, servers: Sequence[ServerLoad]
) -> StreamRange:
    """Open the next range of a stream (SPEC "Frame Definitions", 0x2004).

    Raises StatusError when the stream is unknown, its last range open, or no server alive.
    """
    if wanted is None:
        raise _invalid("CREATE_RANGE names no stream; set stream_range.stream_id")
    new = _next_range(store, wanted, Placement(servers, store.open_range_counts()))
    if store.create_ranges([new]) != [True]:
        raise _overtaken(new)
    return range_table(new, store.server_addresses())


def _next_range(store: MetadataStore, wanted: StreamRange, placement: Placement) -> RangeRecord:
    stream_id = wanted.stream_id
    (stream,) = store.streams_by_id([stream_id])
    if stream is None:
        raise no_stream(stream_id)
    last = store.maybe_last_range(stream_id)
    index, start = 0, 0
    if last is not None:
        if last.end_offset is None:
            raise RangeOpenError(
                StatusCode.CREATE_RANGE_BEFORE_SEAL,
                f"range {last.range_index} of stream {stream_id} is open; seal it first",
            )
        index, start = last.range_index + 1, last.end_offset
    if wanted.range_index not in {-1, index}:
        raise _invalid(
            f"the next range of stream {stream_id} has index {index}, not {wanted.range_index};"
            " list its ranges again"
        )
    store.capacity.check_ranges(stream_id, store.range_count(stream_id))
    return RangeRecord(
        stream_id,
        index,
        start,
        None,
        stream.ack_count,
        (placement.next_server(),),
        stream.created_at_ms,
    )


def _overtaken(new: RangeRecord) -> StatusError:
    return StatusError(
        StatusCode.PD_INTERNAL,
        f"range {new.range_index} of stream {new.stream_id} was made by somebody else; list its"
        " ranges again",
    )


def _invalid(message: str) -> InvalidRequestError:
    return InvalidRequestError(StatusCode.INVALID_REQUEST, message)
