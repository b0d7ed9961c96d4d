"""The operations of a range server besides APPEND, END_TXN and FETCH, item by item.

The operations describe, seal, trim and delete ranges, look up offsets by time, and list stagings.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from sbp_core import limits
from sbp_core.errors import (
    InvalidRequestError,
    LogError,
    NotFoundError,
    PermissionDeniedError,
    SbpError,
    invalid,
)
from sbp_core.log.durable_log import Log
from sbp_core.log.states.range_states import RangeKey, RangeState, prefix_of
from sbp_core.log.states.staged_states import Staging
from sbp_core.rangeserver.hosted_ranges import HostedRange, RangeInput, RangeTable
from sbp_core.rangeserver.hosting import RangeHost
from sbp_core.rangeserver.membership import Membership
from sbp_core.server.answers import cut, in_frames, in_parts
from sbp_core.server.dispatch import Answer, Handler, ServerCall
from sbp_core.server.trust import check_cluster, heartbeat_answer
from sbp_core.wire.headers import (
    ClientRole,
    DeleteStreamResult,
    DeleteStreamsRequest,
    DeleteStreamsResponse,
    DescribeRangeResult,
    DescribeRangesRequest,
    DescribeRangesResponse,
    DescribeTxnsRequest,
    DescribeTxnsResponse,
    HeartbeatRequest,
    LookupOffsetInfo,
    LookupOffsetResult,
    LookupOffsetsRequest,
    LookupOffsetsResponse,
    RangeId,
    ReplicaServer,
    SealRangesRequest,
    SealRangesResponse,
    SealRangesResult,
    Stream,
    StreamRange,
    StreamRanges,
    SyncRangesRequest,
    SyncRangesResponse,
    SyncRangesResult,
    TrimmedStream,
    TrimStreamResult,
    TrimStreamsRequest,
    TrimStreamsResponse,
    TxnDescription,
    TxnPart,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import SUCCESS, status_for
from sbp_core.wire.txn_id import maybe_batch_of

_FIRST_EPOCH: Final = 0


class RangeOperations:
    """Serves all operations besides APPEND, END_TXN, FETCH and those between range servers."""

    def __init__(
        self, host: RangeHost, log: Log, membership: Membership, readers: ThreadPoolExecutor
    ) -> None:
        self._host = host
        self._log = log
        self._membership = membership
        self._readers = readers

    def by_opcode(self) -> Mapping[Opcode, Handler]:
        """Return the handler of each opcode served here."""
        return {
            Opcode.HEARTBEAT: self.heartbeat,
            Opcode.DESCRIBE_RANGE: self.describe,
            Opcode.SEAL_RANGE: self._membership.only_for_driver(self.seal),
            Opcode.SYNC_RANGES: self.sync,
            Opcode.DELETE_STREAMS: self.delete,
            Opcode.TRIM_STREAMS: self.trim,
            Opcode.LOOKUP_OFFSETS: self.look_up,
            Opcode.DESCRIBE_TXNS: self.describe_txns,
        }

    async def heartbeat(self, call: ServerCall) -> Answer:
        """SPEC "HEARTBEAT": keep the connection alive, return the id of the cluster if known."""
        request = call.decode(HeartbeatRequest)
        cluster_id = self._membership.cluster_id
        status = SUCCESS
        try:
            if cluster_id is not None:
                check_cluster(request, cluster_id)
            if request.client_role == ClientRole.PD:
                self._membership.greet_driver(request, call.peer.standing)
        except (InvalidRequestError, PermissionDeniedError) as error:
            status = status_for(error)
        return await call.greet(request, heartbeat_answer(request, status, cluster_id or ""))

    async def describe(self, call: ServerCall) -> Answer:
        """SPEC "DESCRIBE_RANGE": return the bounds of ranges; `next_offset` is the high-water mark.

        The request names the ranges, or asks for those that changed since a revision.
        """
        request = call.decode(DescribeRangesRequest)
        await self._host.learn((wanted.stream_id, wanted.range_index) for wanted in request.ranges)
        revision = self._host.table.revision
        if not request.ranges and request.since_revision >= 0:
            changed = self._host.table.maybe_changed(request.since_revision, request.changed_max)
            revision = -1 if changed is None else revision
            results = [self._describe(*hosted.key) for hosted in changed or ()]
        else:
            results = [self._describe(each.stream_id, each.range_index) for each in request.ranges]
        if request.with_stored_bytes:
            loop = asyncio.get_running_loop()
            results = await loop.run_in_executor(self._readers, _with_sizes, self._log, results)
        return in_frames(results, lambda part: DescribeRangesResponse(0, part, SUCCESS, revision))

    def _describe(self, stream_id: int, range_index: int) -> DescribeRangeResult:
        try:
            hosted = self._host.table.range_at(stream_id, range_index)
            hosted.receive(RangeInput.FETCH)
            if hosted.is_incomplete_copy:
                raise hosted.unknown("where its records end")
        except SbpError as error:
            return DescribeRangeResult(stream_id=stream_id, status=status_for(error))
        return DescribeRangeResult(stream_id, self._table_of(hosted), SUCCESS)

    async def seal(self, call: ServerCall) -> Answer:
        """SPEC "SEAL_RANGE" at a range server: seal ranges, and return them.

        The primary of a range waits for a moment until accepted entries are committed: then no
        append must wait until the range is settled.
        """
        request = call.decode(SealRangesRequest)
        await self._host.learn((wanted.stream_id, wanted.range_index) for wanted in request.ranges)
        return in_frames(
            await asyncio.gather(*map(self._seal_one, request.ranges)),
            lambda part: SealRangesResponse(seal_responses=part, status=SUCCESS),
            weigh=lambda result: 1 + len(result.writers) // limits.WRITERS_PER_RESULT_BYTES,
        )

    async def _seal_one(self, wanted: RangeId) -> SealRangesResult:
        try:
            hosted = await self._host.seal(wanted.stream_id, wanted.range_index)
            await self._host.primary.complete([hosted.key], self._host.primary.is_committed)
        except SbpError as error:
            return SealRangesResult(None, status_for(error), wanted.stream_id)
        writers = self._host.writers_at_end(hosted)
        answer = SealRangesResult(self._table_of(hosted), SUCCESS, wanted.stream_id, writers)
        logged = self._log.maybe_range(hosted.key)
        if logged is None or not logged.is_replicated:
            return answer
        # The fence is durable, and so is every entry before it: the log has the answer.
        prefix = prefix_of(logged)
        assert answer.stream_range is not None
        return replace(
            answer,
            stream_range=replace(answer.stream_range, next_offset=logged.next_offset),
            seq=prefix.seq,
            digest=prefix.digest,
            is_damaged=logged.prefix is None or not logged.is_whole,
        )

    async def sync(self, call: ServerCall) -> Answer:
        """SPEC "SYNC_RANGES": host the open ranges placed on this server, settle ended copies.

        The placement driver is asked for placement and bounds, because any peer can announce.
        """
        request = call.decode(SyncRangesRequest)
        likely = [
            placed
            for item in request.stream_ranges
            for placed in item.ranges
            if self._maybe_misplaced(item.stream_id, placed) is None
        ]
        await self._host.confirm(likely)
        self._host.look_up_ended(likely)
        await self._host.learn((each.stream_id, each.range_index) for each in likely)
        return in_frames(
            list(map(self._sync_one, request.stream_ranges)),
            lambda part: SyncRangesResponse(sync_responses=part, status=SUCCESS),
        )

    def _sync_one(self, item: StreamRanges) -> SyncRangesResult:
        """Return the announced ranges of a stream, if all of them are hosted here."""
        try:
            for placed in item.ranges:
                misplaced = self._maybe_misplaced(item.stream_id, placed)
                if misplaced is not None:
                    raise misplaced
            hosted = [
                self._host.table.range_at(item.stream_id, placed.range_index)
                for placed in item.ranges
            ]
            for each in hosted:
                each.receive(RangeInput.FETCH)
        except SbpError as error:
            return SyncRangesResult(stream_id=item.stream_id, status=status_for(error))
        return SyncRangesResult(item.stream_id, tuple(map(self._table_of, hosted)), SUCCESS)

    def _maybe_misplaced(self, stream_id: int, placed: StreamRange) -> InvalidRequestError | None:
        """Return why an announced range cannot be placed on this server, None if it can."""
        my_id = self._membership.server_id
        named = f"range {placed.range_index} of stream {placed.stream_id}"
        if placed.stream_id != stream_id or stream_id < 0 or placed.range_index < 0:
            return invalid(f"{named} is listed among the ranges of stream {stream_id}")
        if not any(each.server and each.server.server_id == my_id for each in placed.servers):
            return invalid(f"{named} is not placed on this server, whose id is {my_id}")
        is_open = placed.end_offset < 0 or placed.end_seq >= 0
        if placed.start_offset < 0 or not is_open:
            return invalid(
                f"{named} has the bounds [{placed.start_offset}, {placed.end_offset}); only an"
                " open range from offset 0 or more, with end_offset -1, or the end of a copy can be"
                " hosted"
            )
        return None

    async def trim(self, call: ServerCall) -> Answer:
        """SPEC "TRIM_STREAMS" at a range server: serve no records below the offsets any more."""
        items = call.decode(TrimStreamsRequest).trimmed_streams
        await self._host.learn((item.stream_id, -1) for item in items)
        results = await asyncio.gather(*map(self._trim_one, items))
        return in_frames(results, lambda part: TrimStreamsResponse(streams=part, status=SUCCESS))

    async def _trim_one(self, item: TrimmedStream) -> TrimStreamResult:
        stream = Stream(stream_id=item.stream_id)
        try:
            if item.trim_offset < 0:
                raise invalid(f"trim_offset must be 0 or more, got {item.trim_offset}")
            smallest = await self._host.trim(item.stream_id, item.trim_offset)
        except SbpError as error:
            return TrimStreamResult(trimmed_stream=stream, status=status_for(error))
        return TrimStreamResult(stream, self._table_of(smallest), SUCCESS)

    async def delete(self, call: ServerCall) -> Answer:
        """SPEC "DELETE_STREAMS" at a range server: refuse the streams from now on."""
        streams = call.decode(DeleteStreamsRequest).streams
        await self._host.learn((stream.stream_id, -1) for stream in streams)
        results = await asyncio.gather(*map(self._delete_one, streams))
        return in_frames(
            results, lambda part: DeleteStreamsResponse(delete_responses=part, status=SUCCESS)
        )

    async def _delete_one(self, stream: Stream) -> DeleteStreamResult:
        try:
            await self._host.delete(stream.stream_id)
        except SbpError as error:
            return DeleteStreamResult(stream, status_for(error))
        return DeleteStreamResult(stream, SUCCESS)

    async def look_up(self, call: ServerCall) -> Answer:
        """SPEC "LOOKUP_OFFSETS": return the first record that was appended at a time or later.

        The time of a record is the time when the log wrote its batch. The first record by offset
        counts, also where the clock was set back: a reader that starts there misses nothing. Each
        frame of answers is looked up on a thread.
        """
        infos = call.decode(LookupOffsetsRequest).lookup_requests
        await self._host.learn((info.stream_id, -1) for info in infos)

        async def parts() -> AsyncIterator[tuple[LookupOffsetResult, ...]]:
            loop = asyncio.get_running_loop()
            for part in cut(infos):
                planned = [_plan(self._host.table, info) for info in part]
                yield await loop.run_in_executor(self._readers, _look_up, self._log, planned)

        return in_parts(
            parts(), lambda part: LookupOffsetsResponse(lookup_responses=part, status=SUCCESS)
        )

    async def describe_txns(self, call: ServerCall) -> Answer:
        """SPEC "DESCRIBE_TXNS": return the undecided stagings here, of one producer or all.

        A client that is not an administrator sees stagings in streams to which it may append.
        """
        producer = call.decode(DescribeTxnsRequest).producer
        described = map(_description, self._log.staged.stagings())
        found = [each for each in described if producer is None or each.producer == producer]
        if call.judge_again is not None and call.restricted_subject is not None and found:
            stream_ids = [part.stream_id for each in found for part in each.parts]
            judgement = await call.judge_again(stream_ids)
            for error in judgement:
                if error is not None and not isinstance(
                    error, PermissionDeniedError | NotFoundError
                ):
                    raise error  # the rights of the client are not known
            found = [one for one, error in zip(found, judgement, strict=True) if error is None]
        return in_frames(found, lambda part: DescribeTxnsResponse(txns=part, status=SUCCESS))

    def _table_of(self, hosted: HostedRange) -> StreamRange:
        end_offset = hosted.end_offset
        return StreamRange(
            stream_id=hosted.stream_id,
            range_index=hosted.range_index,
            start_offset=hosted.start_offset,
            end_offset=-1 if end_offset is None else end_offset,
            next_offset=hosted.next_offset,
            servers=(ReplicaServer(self._membership.self_table(), is_primary=True),),
            epoch=_FIRST_EPOCH,
            replica_count=1,
            ack_count=1,
        )


def _with_sizes(log: Log, results: Sequence[DescribeRangeResult]) -> list[DescribeRangeResult]:
    """Add the bytes of the ranges in the log; -1 for a range that cannot be read."""
    return [replace(each, stored_bytes=_stored_bytes(log, each.stream_range)) for each in results]


def _stored_bytes(log: Log, described: StreamRange | None) -> int:
    if described is None:
        return -1
    key = described.stream_id, described.range_index
    try:
        return log.bytes_from(key, described.start_offset)
    except LogError:
        return -1


@dataclass(frozen=True, slots=True)
class _Search:
    """A look-up in `pieces` of a stream, in order: (range, first offset, end offset)."""

    info: LookupOffsetInfo
    pieces: Sequence[tuple[RangeKey, int, int]]
    tail_offset: int


def _plan(table: RangeTable, info: LookupOffsetInfo) -> _Search | LookupOffsetResult:
    """Return the search up to the present tail, or the refusal."""
    try:
        if info.timestamp_us < 0 or info.start_offset < 0:
            raise invalid(
                "timestamp_us and start_offset must be 0 or more, got"
                f" {info.timestamp_us} and {info.start_offset}"
            )
        ranges = table.ranges_of(info.stream_id)
        ranges[0].receive(RangeInput.FETCH)
        for each in ranges:
            # A range with a successor was sealed, although this server may not know that yet.
            is_ended = each.state is RangeState.FENCED or each is not ranges[-1]
            if each.is_incomplete_copy and is_ended:
                raise each.unknown("which of its records are the first ones of a time")
    except SbpError as error:
        return LookupOffsetResult(info.stream_id, info.request_index, status=status_for(error))
    pieces = [
        (each.key, max(each.start_offset, info.start_offset), each.next_offset) for each in ranges
    ]
    return _Search(info, pieces, ranges[-1].next_offset)


def _look_up(
    log: Log, planned: Sequence[_Search | LookupOffsetResult]
) -> tuple[LookupOffsetResult, ...]:
    """Run the searches. Runs on a reader thread."""
    return tuple(_search(log, each) if isinstance(each, _Search) else each for each in planned)


def _search(log: Log, search: _Search) -> LookupOffsetResult:
    info = search.info
    offset, time_ms = search.tail_offset, -1
    try:
        for key, start_offset, end_offset in search.pieces:
            if start_offset >= end_offset:
                continue
            found = log.maybe_since(key, start_offset, info.timestamp_us // 1000)
            if found is not None and found.offset < end_offset:
                offset, time_ms = found.offset, found.time_ms
                break
    except LogError as error:
        return LookupOffsetResult(info.stream_id, info.request_index, status=status_for(error))
    return LookupOffsetResult(info.stream_id, info.request_index, offset, SUCCESS, time_ms)


def _description(staging: Staging) -> TxnDescription:
    producer, batch_number = maybe_batch_of(staging.txn_id) or (None, -1)
    record_count = staging.record_count
    part = TxnPart(
        staging.txn_id,
        staging.stream_id,
        record_count,
        staging.range_index,
        staging.batch_count,
    )
    return TxnDescription(
        producer=producer,
        batch_number=batch_number,
        parts=(part,),
        state="staged",
        record_count=record_count,
        staged_at_ms=staging.staged_at_ms,
    )
