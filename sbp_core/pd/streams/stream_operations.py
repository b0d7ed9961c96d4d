"""The operations on metadata: wire items and a store in, wire results out.

Each runs on the store's thread, so nothing else uses the store between its calls. An item that
fails gets a status of its own, and does not affect the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from sbp_core import limits
from sbp_core.client.operations.range_placement import chunks
from sbp_core.errors import AlreadyExistsError, NotFoundError, SbpError, StatusError, invalid
from sbp_core.pd.capacity import Capacity
from sbp_core.pd.metadata.store import MetadataStore
from sbp_core.pd.model import (
    BEFORE_RANGES,
    NO_PROPERTIES,
    NewStream,
    RangeKey,
    RangeRecord,
    ServerLoad,
    StreamRecord,
    check_stream_name,
    no_stream,
    range_table,
    server_table,
    stream_table,
)
from sbp_core.pd.placement import Placement
from sbp_core.properties import PROPERTIES_MAX, checked_properties
from sbp_core.server.request_checks import NOT_GIVEN, check_number
from sbp_core.wire.headers import (
    CreateStreamResult,
    DeleteStreamResult,
    DescribeStreamResult,
    DescribeStreamsRequest,
    ListRangesResult,
    RangeCriteria,
    Stream,
    StreamProperty,
)
from sbp_core.wire.status import SUCCESS, shown, status_for

_LOG: Final = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

_UNSET = -1
"""The default of the wire schema: the peer did not set the id."""


def create_streams(
    store: MetadataStore,
    streams: Sequence[Stream],
    servers: Sequence[ServerLoad],
    created_at_ms: int,
) -> list[CreateStreamResult]:
    """Create streams with their first ranges (SPEC "CREATE_STREAMS"), all in one transaction."""
    placement = Placement(servers, store.primary_counts())
    planned: list[NewStream | SbpError] = []
    new_count = 0
    for asked in streams:
        planned.append(_plan_stream(asked, placement, store.capacity, new_count))
        new_count += isinstance(planned[-1], NewStream)
    outcomes = apply_accepted(planned, lambda news: store.create_streams(news, created_at_ms))
    log_missing_replicas(
        [each[0] for each in outcomes if isinstance(each, tuple)], placement.server_count
    )
    addresses = store.servers.addresses()
    return [_created(*each, addresses) for each in zip(streams, outcomes, strict=True)]


def log_missing_replicas(streams: Iterable[StreamRecord], server_count: int) -> None:
    """Log which streams get fewer replicas than they are to have, in one line."""
    lacking = [each for each in streams if each.replica_count > server_count]
    if lacking:
        _LOG.warning(
            "replicas missing streams=%d first=%d wanted=%d range_servers=%d: start more range"
            " servers; streams then go on in a new range with all replicas",
            *(len(lacking), lacking[0].stream_id, lacking[0].replica_count, server_count),
        )


def apply_accepted(
    planned: Sequence[T | SbpError], work: Callable[[Sequence[T]], Iterable[R]]
) -> list[R | SbpError]:
    """Do what is not refused, all in one transaction; return its results and the refusals."""
    accepted = [each for each in planned if not isinstance(each, SbpError)]
    results = iter(work(accepted) if accepted else ())
    return [each if isinstance(each, SbpError) else next(results) for each in planned]


def _created(
    asked: Stream,
    outcome: tuple[StreamRecord, RangeRecord] | SbpError | None,
    addresses: Mapping[int, str],
) -> CreateStreamResult:
    if outcome is None:
        outcome = AlreadyExistsError.of(
            f"a stream named {shown(asked.name or '')} exists already;"
            " use it, choose another name, or delete it first"
        )
    if isinstance(outcome, SbpError):
        return CreateStreamResult(status=status_for(outcome))
    stream, first = outcome
    return CreateStreamResult(stream_table(stream), range_table(first, addresses), SUCCESS)


def _plan_stream(
    stream: Stream, placement: Placement, capacity: Capacity, planned_count: int
) -> NewStream | SbpError:
    try:
        check_stream_fields(stream)
        capacity.check("streams", planned_count + 1)
        replica_count = stream.replica_nums or 1
        ack_count = checked_ack_count(stream.ack_count, replica_count)
        return NewStream(
            name=stream.name,
            replica_count=replica_count,
            ack_count=ack_count,
            retention_period_ms=stream.retention_period_ms,
            server_ids=placement.next_servers(replica_count, ack_count),
            retention_bytes=max(0, stream.retention_bytes),
            properties=_new_properties(stream),
        )
    except SbpError as error:
        return error


def properties_of(
    tables: Sequence[StreamProperty], count_max: int = 2 * PROPERTIES_MAX
) -> dict[str, str | None]:
    """Return properties by key, None where there is to be none. Raises InvalidRequestError."""
    return checked_properties(((each.key or "", each.value) for each in tables), count_max)


def _new_properties(stream: Stream) -> dict[str, str]:
    """Return the properties of a stream to create. Raises InvalidRequestError."""
    found = properties_of(stream.properties, PROPERTIES_MAX).items()
    present = {key: value for key, value in found if value is not None}
    if len(present) < len(found) or stream.expected_properties:
        raise invalid("a new stream has no properties to remove or to expect")
    return present


def check_stream_fields(stream: Stream) -> None:
    """Raise InvalidRequestError for fields that no stream can have; defaults may be left out."""
    check_number("replica_nums", stream.replica_nums, 1, limits.REPLICAS_MAX, also={0: NOT_GIVEN})
    check_number("retention_period_ms", stream.retention_period_ms, 0)
    check_number("retention_bytes", stream.retention_bytes, 0, also={-1: NOT_GIVEN})
    if stream.name is not None:
        check_stream_name(stream.name)


def checked_ack_count(ack_count: int, replica_count: int) -> int:
    """Return how many replicas have to store an append; 0 stands for the majority.

    Raises InvalidRequestError if there are not as many.
    """
    check_number("ack_count", ack_count, 1, replica_count, also={0: NOT_GIVEN})
    return ack_count or replica_count // 2 + 1


def delete_streams(store: MetadataStore, streams: Sequence[Stream]) -> list[DeleteStreamResult]:
    """Delete streams and their ranges (SPEC "DELETE_STREAMS"), all in one transaction."""
    stream_ids = [stream.stream_id for stream in streams]
    return [
        DeleteStreamResult(status=status_for(no_stream(stream_id)))
        if deleted is None
        else DeleteStreamResult(deleted_stream=stream_table(deleted), status=SUCCESS)
        for stream_id, deleted in zip(stream_ids, store.delete_streams(stream_ids), strict=True)
    ]


def descriptions(
    request: DescribeStreamsRequest,
) -> Iterator[Callable[[MetadataStore], list[DescribeStreamResult]]]:
    """Yield the work for each frame of an answer: properties let fewer streams fit into one."""
    describe = partial(_describe, with_properties=request.with_properties)
    count_max = limits.RESULTS_PER_FRAME // (PROPERTIES_MAX if request.with_properties else 1)
    for ids in chunks(request.stream_ids, count_max):
        yield partial(describe, stream_ids=ids)
    for names in chunks(request.names, count_max):
        yield partial(describe, names=names)


def _describe(
    store: MetadataStore,
    *,
    stream_ids: Sequence[int] = (),
    names: Sequence[str] = (),
    with_properties: bool,
) -> list[DescribeStreamResult]:
    """Describe streams (SPEC "DESCRIBE_STREAMS") by id, then by name."""
    found = store.streams_by_id(stream_ids) + store.streams_by_name(names)
    lacking = [(no_stream(each), each) for each in stream_ids] + [
        (NotFoundError.of(f"no stream is named {shown(each)}"), _UNSET) for each in names
    ]
    results = []
    for stream, (error, stream_id) in zip(found, lacking, strict=True):
        if stream is None:
            results.append(DescribeStreamResult(status=status_for(error), stream_id=stream_id))
        elif with_properties:
            results.append(_described(stream, store.properties.of_stream(stream.stream_id)))
        else:
            results.append(_described(stream))
    return results


def describe_after(store: MetadataStore, stream_id: int) -> list[DescribeStreamResult]:
    """Describe the next streams beyond a stream id, one frame's worth of them."""
    return [_described(found) for found in store.streams_after(stream_id, limits.RESULTS_PER_FRAME)]


def _described(
    found: StreamRecord, properties: Mapping[str, str] = NO_PROPERTIES
) -> DescribeStreamResult:
    return DescribeStreamResult(
        stream=stream_table(found, properties), status=SUCCESS, stream_id=found.stream_id
    )


@dataclass(frozen=True, slots=True)
class ListCursor:
    """How far an answer to LIST_RANGES is: the current owner, and its last range sent."""

    owner_index: int = 0
    after: RangeKey = BEFORE_RANGES


def list_ranges(
    store: MetadataStore, owners: Sequence[RangeCriteria], cursor: ListCursor
) -> tuple[list[ListRangesResult], ListCursor | None]:
    """List the ranges of owners (SPEC "LIST_RANGES") from `cursor`, one frame's worth of them.

    An owner with more ranges than fit into a frame has several results, in order. Returns where to
    continue, None at the end.
    """
    addresses = store.servers.addresses()
    results: list[ListRangesResult] = []
    room = limits.RESULTS_PER_FRAME
    owner_index, after = cursor.owner_index, cursor.after
    ahead = _ranges_ahead(store, owners[owner_index : owner_index + room], room)
    while room > 0 and owner_index < len(owners):
        owner = owners[owner_index]
        echo = RangeCriteria(
            stream_id=owner.stream_id,
            range_server=owner.range_server
            and server_table(owner.range_server.server_id, addresses),
        )
        try:
            found = _ranges_of(store, owner, after, room + 1, ahead)
        except StatusError as error:
            found = []
            result = ListRangesResult(
                range_owner=echo, status=status_for(error), stream_id=owner.stream_id
            )
        else:
            result = ListRangesResult(
                range_owner=echo,
                ranges=tuple(range_table(each, addresses) for each in found[:room]),
                status=SUCCESS,
                stream_id=owner.stream_id,
                writers=_writers_for(store, owner, found[:room]),
            )
        weight = len(result.writers) // limits.WRITERS_PER_RESULT_BYTES
        if weight > room and results:
            break
        results.append(result)
        if len(found) > room:
            last = found[room - 1]
            return results, ListCursor(owner_index, last.key)
        room -= len(found) + 1 + weight
        owner_index, after = owner_index + 1, BEFORE_RANGES
    return results, ListCursor(owner_index) if owner_index < len(owners) else None


def _writers_for(
    store: MetadataStore, owner: RangeCriteria, listed: Sequence[RangeRecord]
) -> bytes:
    """Return the writers before the open range among those `listed`, for a server that hosts it."""
    if owner.range_server is None or owner.stream_id == _UNSET:
        return b""
    if not listed or listed[-1].end_offset is not None:
        return b""
    return store.writers_before(listed[-1].stream_id, listed[-1].range_index)


def _ranges_ahead(
    store: MetadataStore, owners: Sequence[RangeCriteria], room: int
) -> dict[int, list[RangeRecord]]:
    """Return all ranges of the streams that owners name, by one statement in place of many."""
    stream_ids = [each.stream_id for each in owners if each.range_server is None]
    return store.ranges_of(stream_ids, room + 1) if len(stream_ids) > 1 else {}


def _ranges_of(
    store: MetadataStore,
    owner: RangeCriteria,
    after: RangeKey,
    count_max: int,
    ahead: Mapping[int, list[RangeRecord]],
) -> list[RangeRecord]:
    stream_id = owner.stream_id if owner.stream_id != _UNSET else None
    server = owner.range_server
    server_id = server.server_id if server and server.server_id != _UNSET else None
    if stream_id is None and server_id is None:
        raise invalid("a range owner names neither a stream nor a range server; set one or both")
    if server is None and after == BEFORE_RANGES and owner.stream_id in ahead:
        return ahead[owner.stream_id][:count_max]
    found = store.ranges_after(after, count_max, stream_id=stream_id, server_id=server_id)
    if not found and stream_id is not None and store.maybe_stream(stream_id) is None:
        raise no_stream(stream_id)
    return found
