"""A scripted server that sends what ElasticStream's servers of April 2023 sent, and nothing else.

No extension: every request_index is 0, results stand in the order of the requests, batches are
counted, nobody waits for data, unknown streams are left out. Placement driver and range server are
one endpoint.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from foreign_batches import sequence_batch
from scripted_peer import Exchange, ScriptedPeer, placed

from sbp_core.records import peek_batch
from sbp_core.wire.headers import (
    AppendResponse,
    AppendResult,
    CreateStreamResult,
    CreateStreamsResponse,
    DescribeRangeResult,
    DescribeRangesRequest,
    DescribeRangesResponse,
    DescribeStreamResult,
    DescribeStreamsResponse,
    FetchInfo,
    FetchResponse,
    FetchResult,
    HeartbeatResponse,
    ListRangesResponse,
    ListRangesResult,
    RangeCriteria,
    Status,
    Stream,
    decode_header,
)
from sbp_core.wire.opcodes import Opcode

OK = Status(1200, "OK")
NO_NEW_RECORD = Status(1204, "no new record")
RANGE_NOT_FOUND = Status(1462, "range not found")
DESCRIBE_RANGES = Opcode.CREATE_RANGE
"""The opcode 0x2004, as range servers took it then."""


class ElasticStreamPeer:
    """Streams of record batches, behind a ScriptedPeer."""

    def __init__(self, peer: ScriptedPeer, *stream_ids: int) -> None:
        self.peer = peer
        self.endpoint = peer.endpoint
        self.batches: dict[int, list[bytes]] = {stream_id: [] for stream_id in stream_ids}
        peer.script(Opcode.HEARTBEAT, lambda each: each.answer(HeartbeatResponse(status=OK)))
        peer.script(Opcode.LIST_RANGES, self.list_ranges)
        peer.script(Opcode.CREATE_STREAMS, self.create_streams)
        peer.script(Opcode.DESCRIBE_STREAMS, self.describe_streams)
        peer.script(DESCRIBE_RANGES, self.describe_ranges)
        peer.script(Opcode.APPEND, self.append)
        peer.script(Opcode.FETCH, self.fetch)

    def put(self, stream_id: int, *values: bytes, delta: int | None = None) -> None:
        """Store a record sequence."""
        batch = sequence_batch(values, delta=delta, base_offset=self.next_offset(stream_id))
        self.batches[stream_id].append(batch)

    def next_offset(self, stream_id: int) -> int:
        """Where a stream ends."""
        return sum(peek_batch(batch).record_count for batch in self.batches[stream_id])

    def fetches(self) -> list[list[tuple[int, int]]]:
        """What each FETCH asked for: stream ids and offsets."""
        return [
            [
                (info.stream_range.stream_id, info.fetch_offset)
                for info in each.header.fetch_requests
            ]
            for each in self.peer.seen(Opcode.FETCH)
        ]

    def list_ranges(self, exchange: Exchange) -> None:
        results = []
        for owner in exchange.header.range_owners:
            is_known = owner.stream_id in self.batches
            ranges = (placed(owner.stream_id, 0, 0, -1, self.endpoint),) if is_known else ()
            echo = RangeCriteria(stream_id=owner.stream_id)
            results.append(ListRangesResult(echo, ranges, OK))
        exchange.answer(ListRangesResponse(0, tuple(results), OK))

    def create_streams(self, exchange: Exchange) -> None:
        results = []
        for wanted in exchange.header.streams:
            stream_id = max(self.batches, default=0) + 100
            self.batches[stream_id] = []
            stream = Stream(stream_id, wanted.replica_nums, wanted.retention_period_ms)
            first = placed(stream_id, 0, 0, -1, self.endpoint)
            results.append(CreateStreamResult(stream, first, OK))
        exchange.answer(CreateStreamsResponse(0, tuple(results), OK))

    def describe_streams(self, exchange: Exchange) -> None:
        known = [each for each in exchange.header.stream_ids if each in self.batches]
        results = tuple(DescribeStreamResult(Stream(each, 1), OK) for each in reversed(known))
        exchange.answer(DescribeStreamsResponse(0, results, OK))

    def describe_ranges(self, exchange: Exchange) -> None:
        asked = decode_header(DescribeRangesRequest, exchange.frame.header).ranges
        results = []
        for each in asked:
            tail = self.next_offset(each.stream_id)
            found = placed(each.stream_id, each.range_index, 0, -1, self.endpoint, tail)
            results.append(DescribeRangeResult(each.stream_id, found, OK))
        exchange.answer(DescribeRangesResponse(0, tuple(results), OK))

    def append(self, exchange: Exchange) -> None:
        results, position = [], 0
        for info in exchange.header.append_requests:
            stream_id = info.stream_range.stream_id
            batch = bytes(exchange.frame.payload[position : position + info.batch_length])
            position += info.batch_length
            if stream_id not in self.batches:
                results.append(AppendResult(0, 0, 0, 0, RANGE_NOT_FOUND))
                continue
            offset = self.next_offset(stream_id)
            self.batches[stream_id].append(batch[:1] + struct.pack(">q", offset) + batch[9:])
            results.append(AppendResult(stream_id, 0, offset, 1_682_000_000, OK))
        exchange.answer(AppendResponse(0, tuple(results), OK))

    def fetch(self, exchange: Exchange) -> None:
        results: list[FetchResult] = []
        payload: list[bytes] = []
        for info in exchange.header.fetch_requests:
            found = self._found(info)
            if info.stream_range.stream_id not in self.batches:
                results.append(FetchResult(0, 0, 0, RANGE_NOT_FOUND))
            elif found:
                results.append(FetchResult(info.stream_range.stream_id, 0, len(found), OK))
            else:
                results.append(FetchResult(0, 0, 0, NO_NEW_RECORD))
            payload += found
        exchange.answer(FetchResponse(0, tuple(results), OK), payload)

    def _found(self, info: FetchInfo) -> Sequence[bytes]:
        """Whole batches from the one that holds the offset, one at least."""
        assert info.stream_range is not None
        taken: list[bytes] = []
        for batch in self.batches.get(info.stream_range.stream_id, ()):
            envelope = peek_batch(batch)
            is_enough = sum(map(len, taken)) >= info.batch_max_bytes
            if envelope.base_offset + envelope.record_count > info.fetch_offset and not is_enough:
                taken.append(batch)
        return taken
