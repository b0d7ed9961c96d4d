"""The calls of a range server to other servers that have replicas of its ranges.

REPLICATE has connections of its own, which send one frame after the other (see
`rangeserver/replicating/peer_link.py`).
"""

from __future__ import annotations

from typing import Final

from sbp_core.client.operations.open_calls import Call
from sbp_core.errors import ProtocolError
from sbp_core.log.entry import Entry
from sbp_core.log.portable import decode_portable
from sbp_core.log.states.range_states import RangeKey
from sbp_core.peers.links import Caller
from sbp_core.session.negotiation import FeatureName
from sbp_core.wire.headers import (
    DescribeRangesRequest,
    DescribeRangesResponse,
    RangeId,
    ReadEntriesRequest,
    ReadEntriesResponse,
    decode_header,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import check_status

READ_TIMEOUT_MS: Final = 10_000
"""The time for an answer: the server may have to read a segment to find the entries."""
ASK_TIMEOUT_MS: Final = 1_000


async def read_entries(
    caller: Caller,
    address: str,
    key: RangeKey,
    *,
    after_seq: int,
    upto_seq: int,
    bytes_max: int,
    from_offset: int,
) -> tuple[ReadEntriesResponse, list[Entry]]:
    """Read entries of a range from another server (SPEC "READ_ENTRIES").

    Raises SbpError, ProtocolError for entries of another range.
    """
    request = ReadEntriesRequest(READ_TIMEOUT_MS, *key, after_seq, upto_seq, bytes_max, from_offset)
    feature = FeatureName.REPLICATION
    call = Call(address, Opcode.READ_ENTRIES, request, READ_TIMEOUT_MS, feature=feature)
    (frame,) = await caller.exchange(call)
    response = decode_header(ReadEntriesResponse, frame.header)
    check_status(response.status)
    entries = decode_portable(memoryview(frame.payload))
    if any((entry.stream_id, entry.range_index) != key for entry in entries):
        raise ProtocolError(f"{address} answers with entries of another range")
    return response, entries


async def is_settled_at(caller: Caller, address: str, key: RangeKey, end_offset: int) -> bool:
    """Whether a server has settled a range with this end (SPEC "DESCRIBE_RANGE").

    Raises SbpError.
    """
    request = DescribeRangesRequest(ASK_TIMEOUT_MS, (RangeId(*key),))
    call = Call(address, Opcode.DESCRIBE_RANGE, request, ASK_TIMEOUT_MS)
    for frame in await caller.exchange(call):
        response = decode_header(DescribeRangesResponse, frame.header)
        check_status(response.status)
        for result in response.describe_responses:
            check_status(result.status)
            where = result.stream_range
            if where is not None and (where.stream_id, where.range_index) == key:
                return where.end_offset == end_offset
    return False
