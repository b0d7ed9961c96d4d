"""The operations of a range server that read or change its ranges, batch by batch."""

from __future__ import annotations

from collections.abc import Mapping

from sbp_core.errors import SbpError
from sbp_core.rangeserver.hosting import RangeHost
from sbp_core.rangeserver.membership import Membership
from sbp_core.rangeserver.ranges import HostedRange, RangeInput
from sbp_core.server.dispatch import Handler, ServerCall
from sbp_core.wire.headers import (
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
    StreamRange,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import SUCCESS, status_for


class RangeOperations:
    """HEARTBEAT, DESCRIBE_RANGE, SEAL_RANGE and DELETE_STREAMS at a range server."""

    def __init__(self, host: RangeHost, membership: Membership) -> None:
        self._host = host
        self._membership = membership

    def handlers(self) -> Mapping[Opcode, Handler]:
        """Return the handler of each opcode served here."""
        return {
            Opcode.HEARTBEAT: self.heartbeat,
            Opcode.DESCRIBE_RANGE: self.describe,
            Opcode.SEAL_RANGE: self.seal,
            Opcode.DELETE_STREAMS: self.delete,
        }

    async def heartbeat(self, call: ServerCall) -> None:
        """SPEC "HEARTBEAT": keep the connection alive."""
        request = call.decode(HeartbeatRequest)
        await call.respond(
            HeartbeatResponse(
                client_id=request.client_id,
                client_role=request.client_role,
                range_server=request.range_server,
                status=SUCCESS,
            )
        )

    async def describe(self, call: ServerCall) -> None:
        """SPEC "DESCRIBE_RANGES": bounds of ranges, `next_offset` is what is durable now."""
        request = call.decode(DescribeRangesRequest)
        await self._host.learn((wanted.stream_id, wanted.range_index) for wanted in request.ranges)
        await call.respond(
            DescribeRangesResponse(
                describe_responses=tuple(self._describe(wanted) for wanted in request.ranges),
                status=SUCCESS,
            )
        )

    def _describe(self, wanted: RangeId) -> DescribeRangeResult:
        try:
            hosted = self._host.table.range_at(wanted.stream_id, wanted.range_index)
            hosted.receive(RangeInput.FETCH)
        except SbpError as error:
            return DescribeRangeResult(stream_id=wanted.stream_id, status=status_for(error))
        return DescribeRangeResult(wanted.stream_id, self._table_of(hosted), SUCCESS)

    async def seal(self, call: ServerCall) -> None:
        """SPEC "SEAL_RANGES" at a range server: seal for ever, answer the sealed range."""
        request = call.decode(SealRangesRequest)
        results = []
        for wanted in request.ranges:
            try:
                hosted = await self._host.seal(wanted.stream_id, wanted.range_index)
                sealed, status = self._table_of(hosted), SUCCESS
            except SbpError as error:
                sealed, status = None, status_for(error)
            results.append(SealRangesResult(sealed, status, wanted.stream_id))
        await call.respond(SealRangesResponse(seal_responses=tuple(results), status=SUCCESS))

    async def delete(self, call: ServerCall) -> None:
        """SPEC "DELETE_STREAMS" at a range server: refuse the streams from now on."""
        request = call.decode(DeleteStreamsRequest)
        results = []
        for stream in request.streams:
            status = SUCCESS
            try:
                await self._host.delete(stream.stream_id)
            except SbpError as error:
                status = status_for(error)
            results.append(DeleteStreamResult(stream, status))
        await call.respond(DeleteStreamsResponse(delete_responses=tuple(results), status=SUCCESS))

    def _table_of(self, hosted: HostedRange) -> StreamRange:
        end_offset = hosted.maybe_end_offset
        return StreamRange(
            stream_id=hosted.stream_id,
            range_index=hosted.range_index,
            start_offset=hosted.start_offset,
            end_offset=-1 if end_offset is None else end_offset,
            next_offset=hosted.next_offset,
            servers=(ReplicaServer(self._membership.self_table(), is_primary=True),),
            replica_count=1,
            ack_count=1,
        )
