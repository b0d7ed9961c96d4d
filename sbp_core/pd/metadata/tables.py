"""Records of the placement driver -> tables of the wire."""

from __future__ import annotations

from collections.abc import Mapping

from sbp_core.pd.model import RangeRecord, StreamRecord
from sbp_core.wire.headers import RangeServer, ReplicaServer, Stream, StreamRange

_FIRST_EPOCH = 0


def stream_table(stream: StreamRecord) -> Stream:
    """Return the table of a stream."""
    return Stream(
        stream_id=stream.stream_id,
        replica_nums=stream.replica_count,
        retention_period_ms=stream.retention_period_ms,
        ack_count=stream.ack_count,
        name=stream.name,
        created_at_ms=stream.created_at_ms,
        retention_bytes=stream.retention_bytes,
    )


def range_table(stream_range: RangeRecord, addresses: Mapping[int, str]) -> StreamRange:
    """Return the table of a range. Of an open one the placement driver knows the start only."""
    start, end = stream_range.start_offset, stream_range.end_offset
    return StreamRange(
        stream_id=stream_range.stream_id,
        range_index=stream_range.range_index,
        start_offset=start,
        end_offset=-1 if end is None else end,
        next_offset=start if end is None else end,
        servers=tuple(
            ReplicaServer(
                server=server_table(server_id, addresses),
                is_primary=position == 0,
            )
            for position, server_id in enumerate(stream_range.server_ids)
        ),
        epoch=_FIRST_EPOCH,
        replica_count=len(stream_range.server_ids),
        ack_count=stream_range.ack_count,
        created_at_ms=stream_range.created_at_ms,
    )


def server_table(server_id: int, addresses: Mapping[int, str]) -> RangeServer:
    """Return the table of a range server; its address is empty when it never announced one."""
    return RangeServer(server_id=server_id, advertise_addr=addresses.get(server_id, ""))
