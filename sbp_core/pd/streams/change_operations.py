"""UPDATE_STREAMS and TRIM_STREAMS: wire items and a store in, wire results out.

The functions run on the store's thread, the Trimmer on the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from sbp_core.errors import NoRangeServerError, OffsetOutOfRangeError, SbpError
from sbp_core.pd.metadata.store import MetadataStore, StoreThread
from sbp_core.pd.model import (
    RangeRecord,
    ServerLoad,
    StreamChange,
    StreamRecord,
    no_stream,
    range_table,
    stream_table,
)
from sbp_core.pd.placement import Placement
from sbp_core.pd.streams.stream_operations import (
    apply_accepted,
    check_stream_fields,
    checked_ack_count,
    log_missing_replicas,
    properties_of,
)
from sbp_core.peers.driver_calls import Peers, server_addresses
from sbp_core.server.request_checks import check_number
from sbp_core.wire.headers import (
    DescribeRangeResult,
    Stream,
    StreamRange,
    TrimmedStream,
    TrimStreamResult,
    UpdateStreamResult,
)
from sbp_core.wire.status import SUCCESS, status_for

_UNCHANGED: Final = -1


def update_streams(
    store: MetadataStore, streams: Sequence[Stream], servers: Sequence[ServerLoad]
) -> tuple[list[UpdateStreamResult], list[int]]:
    """Change streams (SPEC "UPDATE_STREAMS"), all in one transaction, in their order.

    A field at its default leaves the stream's value, except `retention_period_ms`, which is set. A
    client that knows properties may leave that, too, with -1.
    Returns also the ids of the streams whose open range does not have the replicas any more that
    the stream is to have; servers for these are there.
    """
    found = store.streams_by_id([each.stream_id for each in streams])
    before = {each.stream_id: each for each in found if each is not None}
    placement = Placement(servers, store.primary_counts())
    planner = _ChangePlanner(before, placement)
    outcomes = apply_accepted(list(map(planner.plan, streams)), store.update_streams)
    moved = {
        each.stream_id: each
        for each in outcomes
        if isinstance(each, StreamRecord) and _copies(each) != _copies(before[each.stream_id])
    }
    log_missing_replicas(moved.values(), placement.server_count)
    return list(map(_updated, outcomes)), list(moved)


class _ChangePlanner:
    """Plans the changes of one request, in which a stream may come several times."""

    def __init__(self, before: Mapping[int, StreamRecord], placement: Placement) -> None:
        self._before = before
        self._planned = dict(before)
        self._placement = placement

    def plan(self, stream: Stream) -> StreamChange | SbpError:
        """Return the change, or the error: for example, the replicas cannot be placed now."""
        has_properties = bool(stream.properties or stream.expected_properties)
        retention_ms: int | None = stream.retention_period_ms
        if has_properties and retention_ms == _UNCHANGED:
            retention_ms, stream = None, structs.replace(stream, retention_period_ms=0)
        retention_bytes = stream.retention_bytes if stream.retention_bytes >= 0 else None
        change = StreamChange(stream.stream_id, stream.name, retention_ms, retention_bytes)
        try:
            check_stream_fields(stream)
            if has_properties:
                change = replace(
                    change,
                    properties=properties_of(stream.properties),
                    expected=properties_of(stream.expected_properties),
                )
            known = self._planned.get(stream.stream_id)
            if known is None:
                return change
            changed = _with_copies(known, stream)
            if _copies(changed) != _copies(self._before[stream.stream_id]):
                self._placement.next_servers(*_copies(changed))
        except SbpError as error:
            return error
        self._planned[stream.stream_id] = changed
        return replace(change, replica_count=changed.replica_count, ack_count=changed.ack_count)


def _with_copies(known: StreamRecord, asked: Stream) -> StreamRecord:
    """Return the stream with the replicas that are asked for. Raises InvalidRequestError."""
    replica_count = asked.replica_nums or known.replica_count
    is_same_count = replica_count == known.replica_count
    ack_count = asked.ack_count or (known.ack_count if is_same_count else 0)
    ack_count = checked_ack_count(ack_count, replica_count)
    return replace(known, replica_count=replica_count, ack_count=ack_count)


def _copies(stream: StreamRecord) -> tuple[int, int]:
    return stream.replica_count, stream.ack_count


def _updated(outcome: StreamRecord | SbpError) -> UpdateStreamResult:
    if isinstance(outcome, SbpError):
        return UpdateStreamResult(status=status_for(outcome))
    return UpdateStreamResult(updated_stream=stream_table(outcome), status=SUCCESS)


@dataclass(frozen=True, slots=True)
class TrimPlan:
    """One item of TRIM_STREAMS: refused already, or to be done.

    `open_range` is the open range whose tail, which its server knows, bounds the offset.
    """

    item: TrimmedStream
    start_offset: int = 0
    error: SbpError | None = None
    open_range: StreamRange | None = None


def plan_trims(store: MetadataStore, items: Sequence[TrimmedStream]) -> list[TrimPlan]:
    """Plan TRIM_STREAMS. Offsets are checked here where the metadata suffice for that."""
    addresses = store.servers.addresses()
    plans = []
    for item in items:
        first = store.maybe_first_range(item.stream_id)
        last = store.maybe_last_range(item.stream_id)
        try:
            check_number("trim_offset", item.trim_offset, 0)
        except SbpError as error:
            plans.append(TrimPlan(item, error=error))
            continue
        if first is None or last is None:
            plans.append(TrimPlan(item, error=no_stream(item.stream_id)))
            continue
        plan = TrimPlan(item, first.start_offset)
        if last.end_offset is not None:
            plan = check_tail(plan, last.end_offset)
        elif item.trim_offset > last.start_offset:
            plan = replace(plan, open_range=range_table(last, addresses))
        plans.append(plan)
    return plans


def check_tail(plan: TrimPlan, next_offset: int) -> TrimPlan:
    """Refuse an offset that the stream, which ends at `next_offset`, has not reached yet."""
    item = plan.item
    if item.trim_offset <= next_offset:
        return plan
    error = OffsetOutOfRangeError.of(
        f"trim_offset {item.trim_offset} of stream {item.stream_id} is beyond its tail,"
        f" {next_offset}; nothing of this stream was trimmed",
        OffsetOutOfRangeError.encode_bounds(plan.start_offset, next_offset),
    )
    return replace(plan, error=error)


def trim_streams(store: MetadataStore, plans: Sequence[TrimPlan]) -> list[TrimStreamResult]:
    """Trim what is not refused (SPEC "TRIM_STREAMS"), all in one transaction, in its order."""
    addresses = store.servers.addresses()
    planned = [plan.error or (plan.item.stream_id, plan.item.trim_offset) for plan in plans]
    outcomes = apply_accepted(planned, store.trim_streams)
    return [
        _trimmed(plan.item.stream_id, outcome, addresses)
        for plan, outcome in zip(plans, outcomes, strict=True)
    ]


def _trimmed(
    stream_id: int,
    outcome: tuple[StreamRecord, RangeRecord] | SbpError | None,
    addresses: Mapping[int, str],
) -> TrimStreamResult:
    if outcome is None:
        outcome = no_stream(stream_id)
    if isinstance(outcome, SbpError):
        return TrimStreamResult(Stream(stream_id=stream_id), status=status_for(outcome))
    stream, smallest = outcome
    return TrimStreamResult(stream_table(stream), range_table(smallest, addresses), SUCCESS)


class Trimmer:
    """Trims streams: deletes the records below an offset, never beyond the tail.

    The placement driver knows where an open range starts, and its server knows where it ends. So
    the server is asked first; until the trim is recorded the tail only moves forward.
    """

    def __init__(self, store: StoreThread, peers: Peers) -> None:
        self._store = store
        self._peers = peers

    async def trim(self, items: Sequence[TrimmedStream]) -> list[TrimStreamResult]:
        """Trim streams; return the result of each, in the order of `items`."""
        plans = await self._store.run(plan_trims, items)
        answers = await self._peers.describe(
            plan.open_range for plan in plans if plan.open_range is not None
        )
        checked = [
            plan
            if plan.open_range is None
            else _check(plan, server_addresses(plan.open_range)[0], answers[plan.item.stream_id])
            for plan in plans
        ]
        return await self._store.run(trim_streams, checked)


def _check(plan: TrimPlan, address: str, answer: DescribeRangeResult | SbpError) -> TrimPlan:
    if isinstance(answer, SbpError):
        where = f"at {address or 'an unknown address'} does not answer as expected ({answer})"
        return replace(plan, error=_silent(plan.item.stream_id, where))
    if answer.stream_range is None:
        return replace(plan, error=_silent(plan.item.stream_id, "left it out of its answer"))
    return check_tail(plan, answer.stream_range.next_offset)


def _silent(stream_id: int, what: str) -> SbpError:
    return NoRangeServerError.of(
        f"stream {stream_id} cannot be trimmed now, its tail is not known: the server of its open"
        f" range {what}; retry when it is reachable"
    )
