"""Where ranges end and the next ones begin, in the store: functions on the thread of the store."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sbp_core.errors import (
    InvalidRequestError,
    NoRangeServerError,
    RangeNotFoundError,
    RangeOpenError,
    SbpError,
    StatusCode,
    StatusError,
    invalid,
)
from sbp_core.pd.metadata.store import MetadataStore
from sbp_core.pd.model import NO_SEQ, RangeRecord, SealedRange, ServerLoad, no_stream, range_table
from sbp_core.pd.placement import Placement
from sbp_core.wire.headers import RangeId, StreamRange

Opened = dict[int, StreamRange | SbpError]
"""Maps stream id to the writable range, or to the error."""

Targets = Mapping[int, Sequence[int]]
"""By stream id: the servers of its next range, the primary first."""
NO_TARGETS: Final[Targets] = {}


@dataclass(frozen=True, slots=True)
class SealPlan:
    """One item of SEAL_RANGE: refused already, answered already, or to be done.

    `open_range` is the range that its server has to seal first; without it only the next range is
    missing.
    """

    item: RangeId
    answer: StreamRange | SbpError | None = None
    open_range: StreamRange | None = None


def plan_seals(
    store: MetadataStore,
    items: Sequence[RangeId],
    servers: Sequence[ServerLoad],
    *,
    is_bounded: bool = True,
) -> list[SealPlan]:
    """Look at what SEAL_RANGE asks for, while these servers can be given new ranges.

    Sealing a range that is no longer the last one is a repeat: it has its answer already. Unless
    it `is_bounded`, a stream may get more ranges than it is to have.
    """
    addresses = store.servers.addresses()
    placement = Placement(servers, {})
    plans = []
    for item in items:
        last = store.maybe_last_range(item.stream_id)
        if last is None:
            plans.append(SealPlan(item, no_stream(item.stream_id)))
        elif item.range_index > last.range_index:
            error = RangeNotFoundError.of(
                f"stream {item.stream_id} has no range {item.range_index}; list its ranges again"
            )
            plans.append(SealPlan(item, error))
        elif last.end_offset is not None:
            plans.append(SealPlan(item))
        elif 0 <= item.range_index < last.range_index:
            plans.append(SealPlan(item, range_table(last, addresses)))
        else:
            where = range_table(last, addresses)
            plans.append(_plan_open(store, item, where, placement, is_bounded=is_bounded))
    return plans


def _plan_open(
    store: MetadataStore,
    item: RangeId,
    open_range: StreamRange,
    placement: Placement,
    *,
    is_bounded: bool,
) -> SealPlan:
    """Return the plan of a range that is open: sealed without a successor, it would end appends."""
    try:
        if is_bounded:
            store.capacity.check_ranges(item.stream_id, store.range_count(item.stream_id))
        stream = store.maybe_stream(item.stream_id)
        placement.check(1 if stream is None else max(1, stream.ack_count))
    except (InvalidRequestError, NoRangeServerError) as error:
        return SealPlan(item, error)
    return SealPlan(item, open_range=open_range)


def open_next_ranges(
    store: MetadataStore,
    stream_ids: Sequence[int],
    sealed: Sequence[SealedRange],
    servers: Sequence[ServerLoad],
    last_servers: Collection[int] = (),
    *,
    targets: Targets = NO_TARGETS,
    is_bounded: bool = True,
) -> tuple[Opened, list[StreamRange]]:
    """Record where ranges were sealed, and open the next range of each stream that has none open.

    Returns the writable range of each stream, or why it has none, and the replicated ranges that
    are sealed. The seals are recorded if no range can be opened, too. A range that was sealed
    before keeps its end. New ranges are on the servers of `targets` where possible, on the
    `last_servers` only if there are no others.
    """
    store.seal_ranges(sealed)
    addresses = store.servers.addresses()
    placement = Placement(servers, store.primary_counts(), last_servers)
    opened: Opened = {}
    news: list[RangeRecord] = []
    for stream_id in dict.fromkeys(stream_ids):
        last = store.maybe_last_range(stream_id)
        if last is not None and last.end_offset is None:
            opened[stream_id] = range_table(last, addresses)
            continue
        try:
            wanted = StreamRange(stream_id=stream_id)
            servers_wanted = targets.get(stream_id, ())
            news.append(
                _next_range(store, wanted, placement, servers_wanted, is_bounded=is_bounded)
            )
        except StatusError as error:
            opened[stream_id] = error
    for new, is_made in zip(news, store.create_ranges(news), strict=True):
        opened[new.stream_id] = range_table(new, addresses) if is_made else _overtaken(new)
    ended = (store.maybe_range(stream_id, index) for stream_id, index, *_ in sealed)
    return opened, [
        range_table(each, addresses)
        for each in ended
        if each is not None and each.end_seq != NO_SEQ
    ]


def create_range(
    store: MetadataStore, wanted: StreamRange | None, servers: Sequence[ServerLoad]
) -> StreamRange:
    """Open the next range of a stream (SPEC "CREATE_RANGE").

    Raises StatusError when the stream is unknown, its last range open, or no server alive.
    """
    if wanted is None:
        raise invalid("CREATE_RANGE names no stream; set stream_range.stream_id")
    new = _next_range(store, wanted, Placement(servers, store.primary_counts()))
    if store.create_ranges([new]) != [True]:
        raise _overtaken(new)
    return range_table(new, store.servers.addresses())


def _next_range(
    store: MetadataStore,
    wanted: StreamRange,
    placement: Placement,
    servers_wanted: Sequence[int] = (),
    *,
    is_bounded: bool = True,
) -> RangeRecord:
    stream_id = wanted.stream_id
    stream = store.maybe_stream(stream_id)
    if stream is None:
        raise no_stream(stream_id)
    last = store.maybe_last_range(stream_id)
    index, start = 0, 0
    if last is not None:
        if last.end_offset is None:
            raise RangeOpenError.of(
                f"range {last.range_index} of stream {stream_id} is open; seal it first"
            )
        index, start = last.range_index + 1, last.end_offset
    if wanted.range_index not in {-1, index}:
        raise invalid(
            f"the next range of stream {stream_id} has index {index}, not {wanted.range_index};"
            " list its ranges again"
        )
    if is_bounded:
        store.capacity.check_ranges(stream_id, store.range_count(stream_id))
    return RangeRecord(
        stream_id,
        index,
        start,
        None,
        stream.ack_count,
        placement.next_servers(stream.replica_count, stream.ack_count, servers_wanted),
        stream.created_at_ms,
    )


def _overtaken(new: RangeRecord) -> StatusError:
    return StatusError(
        StatusCode.PD_INTERNAL,
        f"range {new.range_index} of stream {new.stream_id} was created by another request; list"
        " its ranges again",
    )
