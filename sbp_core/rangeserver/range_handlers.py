"""The operations of a range server that read or change its ranges, batch by batch."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from sbp_core import limits
from sbp_core.errors import (
    InvalidRequestError,
    PermissionDeniedError,
    SbpError,
    StatusCode,
)
from sbp_core.rangeserver.hosted_ranges import HostedRange, RangeInput
from sbp_core.rangeserver.hosting import RangeHost
from sbp_core.rangeserver.membership import Membership
from sbp_core.server.answers import respond_all
from sbp_core.server.dispatch import Handler, ServerCall
from sbp_core.server.trust import check_cluster
from sbp_core.wire.headers import (
    ClientRole,
    DeleteStreamResult,
    DeleteStreamsRequest,
    DeleteStreamsResponse,
    DescribeRangeResult,
    DescribeRangesRequest,
    DescribeRangesResponse,
    HeartbeatRequest,
    HeartbeatResponse,
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
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import SUCCESS, status_for

_FIRST_EPOCH: Final = 0


class RangeOperations:
    """What a range server serves but for APPEND and FETCH."""

    def __init__(self, host: RangeHost, membership: Membership) -> None:
        self._host = host
        self._membership = membership

    def handlers(self) -> Mapping[Opcode, Handler]:
        """Return the handler of each opcode served here."""
        return {
            Opcode.HEARTBEAT: self.heartbeat,
            Opcode.DESCRIBE_RANGE: self.describe,
            Opcode.SEAL_RANGE: self._membership.only_for_driver(self.seal),
            Opcode.SYNC_RANGES: self.sync,
            Opcode.DELETE_STREAMS: self.delete,
            Opcode.TRIM_STREAMS: self.trim,
        }

    async def heartbeat(self, call: ServerCall) -> None:
        """SPEC "HEARTBEAT": keep the connection alive, tell the cluster's id, empty if unknown."""
        request = call.decode(HeartbeatRequest)
        cluster_id = self._membership.maybe_cluster_id
        status = SUCCESS
        try:
            if cluster_id is not None:
                is_server = request.client_role in {ClientRole.RANGE_SERVER, ClientRole.PD}
                check_cluster(
                    request.cluster_id,
                    cluster_id,
                    is_required=is_server and not call.is_one_frame,
                )
            if request.client_role == ClientRole.PD:
                self._membership.greet_driver(request, call.standing)
        except (InvalidRequestError, PermissionDeniedError) as error:
            status = status_for(error)
        await call.greet(
            request,
            HeartbeatResponse(
                client_id=request.client_id,
                client_role=request.client_role,
                range_server=request.range_server,
                status=status,
                cluster_id=cluster_id or "",
            ),
        )

    async def describe(self, call: ServerCall) -> None:
        """SPEC "DESCRIBE_RANGES": bounds of ranges, `next_offset` is what is durable now.

        Of those that are named, or of those that changed since a revision.
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
        await respond_all(
            call, results, lambda part: DescribeRangesResponse(0, part, SUCCESS, revision)
        )

    def _describe(self, stream_id: int, range_index: int) -> DescribeRangeResult:
        try:
            hosted = self._host.table.range_at(stream_id, range_index)
            hosted.receive(RangeInput.FETCH)
        except SbpError as error:
            return DescribeRangeResult(stream_id=stream_id, status=status_for(error))
        return DescribeRangeResult(stream_id, self._table_of(hosted), SUCCESS)

    async def seal(self, call: ServerCall) -> None:
        """SPEC "SEAL_RANGES" at a range server: seal for ever, answer the sealed range."""
        request = call.decode(SealRangesRequest)
        await self._host.learn((wanted.stream_id, wanted.range_index) for wanted in request.ranges)
        await respond_all(
            call,
            await asyncio.gather(*map(self._seal_one, request.ranges)),
            lambda part: SealRangesResponse(seal_responses=part, status=SUCCESS),
            weigh=lambda result: 1 + len(result.writers) // limits.WRITERS_PER_RESULT_BYTES,
        )

    async def _seal_one(self, wanted: RangeId) -> SealRangesResult:
        try:
            hosted = await self._host.seal(wanted.stream_id, wanted.range_index)
        except SbpError as error:
            return SealRangesResult(None, status_for(error), wanted.stream_id)
        writers = self._host.writers_at_end(hosted)
        return SealRangesResult(self._table_of(hosted), SUCCESS, wanted.stream_id, writers)

    async def sync(self, call: ServerCall) -> None:
        """SPEC "SYNC_RANGES": host the open ranges that are placed on this server.

        Whether they are, and where they start, the placement driver is asked.
        """
        request = call.decode(SyncRangesRequest)
        likely = [
            placed
            for item in request.stream_ranges
            for placed in item.ranges
            if self._maybe_misplaced(item.stream_id, placed) is None
        ]
        await self._host.confirm(likely)
        await self._host.learn((each.stream_id, each.range_index) for each in likely)
        await respond_all(
            call,
            list(map(self._sync_one, request.stream_ranges)),
            lambda part: SyncRangesResponse(sync_responses=part, status=SUCCESS),
        )

    def _sync_one(self, item: StreamRanges) -> SyncRangesResult:
        """Return the ranges of a stream, if all of them are hosted here by now."""
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
        """Return why a range cannot be one of this server's, by what is announced of it."""
        my_id = self._membership.server_id
        named = f"range {placed.range_index} of stream {placed.stream_id}"
        if placed.stream_id != stream_id or stream_id < 0 or placed.range_index < 0:
            return _invalid(f"{named} stands among the ranges of stream {stream_id}")
        if not any(each.server and each.server.server_id == my_id for each in placed.servers):
            return _invalid(f"{named} is not placed on this server, whose id is {my_id}")
        if placed.start_offset < 0 or placed.end_offset >= 0:
            return _invalid(
                f"{named} has the bounds [{placed.start_offset}, {placed.end_offset}); only an"
                " open range from offset 0 or more, with end_offset -1, can be hosted"
            )
        return None

    async def trim(self, call: ServerCall) -> None:
        """SPEC "TRIM_STREAMS" at a range server: no longer serve what lies below the offsets."""
        request = call.decode(TrimStreamsRequest)
        await self._host.learn((item.stream_id, -1) for item in request.trimmed_streams)
        await respond_all(
            call,
            await asyncio.gather(*map(self._trim_one, request.trimmed_streams)),
            lambda part: TrimStreamsResponse(streams=part, status=SUCCESS),
        )

    async def _trim_one(self, item: TrimmedStream) -> TrimStreamResult:
        stream = Stream(stream_id=item.stream_id)
        try:
            if item.trim_offset < 0:
                raise _invalid(f"trim_offset must be 0 or more, got {item.trim_offset}")
            smallest = await self._host.trim(item.stream_id, item.trim_offset)
        except SbpError as error:
            return TrimStreamResult(trimmed_stream=stream, status=status_for(error))
        return TrimStreamResult(stream, self._table_of(smallest), SUCCESS)

    async def delete(self, call: ServerCall) -> None:
        """SPEC "DELETE_STREAMS" at a range server: refuse the streams from now on."""
        request = call.decode(DeleteStreamsRequest)
        await self._host.learn((stream.stream_id, -1) for stream in request.streams)
        await respond_all(
            call,
            await asyncio.gather(*map(self._delete_one, request.streams)),
            lambda part: DeleteStreamsResponse(delete_responses=part, status=SUCCESS),
        )

    async def _delete_one(self, stream: Stream) -> DeleteStreamResult:
        try:
            await self._host.delete(stream.stream_id)
        except SbpError as error:
            return DeleteStreamResult(stream, status_for(error))
        return DeleteStreamResult(stream, SUCCESS)

    def _table_of(self, hosted: HostedRange) -> StreamRange:
        end_offset = hosted.maybe_end_offset
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


def _invalid(message: str) -> InvalidRequestError:
    return InvalidRequestError(StatusCode.INVALID_REQUEST, message)
