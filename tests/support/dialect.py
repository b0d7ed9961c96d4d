"""ElasticStream's servers and clients of 2023."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import flatbuffers

from sbp_core.client import Client, FetchItem
from sbp_core.errors import StatusCode, StatusError
from sbp_core.records import peek_batch, split_envelopes
from sbp_core.wire._generated import LAYOUTS, RecordBatchMeta, RecordMeta
from sbp_core.wire.headers import (
    AppendResponse,
    AppendResult,
    CreateStreamResult,
    CreateStreamsResponse,
    DeleteStreamResult,
    DeleteStreamsResponse,
    DescribePlacementDriverClusterResponse,
    DescribeRangeResult,
    DescribeRangesRequest,
    DescribeRangesResponse,
    DescribeStreamResult,
    DescribeStreamsResponse,
    FetchInfo,
    FetchResponse,
    FetchResult,
    HeartbeatResponse,
    IdAllocationResponse,
    ListRangesResponse,
    ListRangesResult,
    PlacementDriverCluster,
    PlacementDriverNode,
    RangeCriteria,
    SealRangesResponse,
    SealRangesResult,
    Status,
    Stream,
    StreamRange,
    UpdateStreamResult,
    UpdateStreamsResponse,
    decode_header,
)
from sbp_core.wire.opcodes import Opcode
from tests.support.data.batches import NoRecordSequenceError, check_record_sequence, sequence_batch
from tests.support.scripted_peer import Exchange, ScriptedPeer, placed, silent
from tests.support.tables import decode_officially

OK: Final = Status(1200, "OK")
NO_NEW_RECORD: Final = Status(1204, "no new record")
RANGE_NOT_FOUND: Final = Status(1462, "range not found")
PM_INTERNAL: Final = Status(1500, "stream not found")
SEAL_NOT_FOUND: Final = Status(1510, "range not found")
DN_INTERNAL: Final = Status(2500, "range not found")
DESCRIBE_RANGES: Final = Opcode.CREATE_RANGE
"""The opcode 0x2004, as range servers took it then."""
APPEND_SECONDS: Final = 1_682_000_000


@dataclass
class _Held:
    """A stream: where its ranges start, the last one open, and its batches."""

    starts: list[int] = field(default_factory=lambda: [0])
    batches: list[bytes] = field(default_factory=list)

    @property
    def next_offset(self) -> int:
        return sum(peek_batch(batch).record_count for batch in self.batches)


class ElasticStreamPeer:
    """A placement manager at `driver`, its only data node at `node`; streams of record batches."""

    def __init__(self, driver: ScriptedPeer, node: ScriptedPeer, *stream_ids: int) -> None:
        self.driver = driver
        self.node = node
        self.endpoint = driver.endpoint
        self.rows = {stream_id: Stream(stream_id, 1) for stream_id in stream_ids}
        """The placement manager's row of each stream; the ranges of a deleted stream remain."""
        self.held = {stream_id: _Held() for stream_id in stream_ids}
        self.hosted_at = node.endpoint
        """Where the placement manager places ranges, on server 1."""
        self.next_server_id = 1
        for each in (driver, node):
            each.script(Opcode.HEARTBEAT, lambda it: it.answer(HeartbeatResponse(status=OK)))
        driver.script(Opcode.ALLOCATE_ID, self.allocate_id)
        driver.script(Opcode.LIST_RANGES, self.list_ranges)
        driver.script(Opcode.SEAL_RANGE, self.seal_and_open)
        driver.script(Opcode.CREATE_STREAMS, self.create_streams)
        driver.script(Opcode.DESCRIBE_STREAMS, self.describe_streams)
        driver.script(Opcode.UPDATE_STREAMS, self.update_streams)
        driver.script(Opcode.DELETE_STREAMS, self.delete_streams)
        driver.script(Opcode.DESCRIBE_PD_CLUSTER, self.describe_cluster)
        for opcode in (Opcode.TRIM_STREAMS, Opcode.REPORT_METRICS, Opcode.SYNC_RANGES):
            driver.script(opcode, _unknown_operation)
        node.script(DESCRIBE_RANGES, self.describe_ranges)
        node.script(Opcode.SEAL_RANGE, self.seal)
        node.script(Opcode.APPEND, self.append)
        node.script(Opcode.FETCH, self.fetch)
        for opcode in (Opcode.LIST_RANGES, Opcode.DELETE_STREAMS, Opcode.TRIM_STREAMS):
            node.script(opcode, silent)

    def put(self, stream_id: int, *values: bytes, delta: int | None = None) -> None:
        """Store a record sequence."""
        batch = sequence_batch(values, delta=delta, base_offset=self.next_offset(stream_id))
        self.held[stream_id].batches.append(batch)

    def next_offset(self, stream_id: int) -> int:
        """Where a stream ends."""
        return self.held[stream_id].next_offset

    def open_next_range(self, stream_id: int) -> None:
        """Seal the open range where the stream ends, and open another one there."""
        self.held[stream_id].starts.append(self.next_offset(stream_id))

    def ranges_of(self, stream_id: int) -> tuple[StreamRange, ...]:
        """The ranges of a stream, as the placement manager lists them."""
        if stream_id not in self.held:
            return ()
        starts = self.held[stream_id].starts
        ends = [*starts[1:], -1]
        return tuple(
            placed(stream_id, index, *bounds, self.hosted_at)
            for index, bounds in enumerate(zip(starts, ends, strict=True))
        )

    def fetches(self) -> list[list[tuple[int, int]]]:
        """The stream ids and offsets requested by each FETCH."""
        return [
            [
                (info.stream_range.stream_id, info.fetch_offset)
                for info in each.header.fetch_requests
            ]
            for each in self.node.seen(Opcode.FETCH)
        ]

    # The placement manager

    def allocate_id(self, exchange: Exchange) -> None:
        exchange.answer(IdAllocationResponse(self.next_server_id, OK))
        self.next_server_id += 1

    def list_ranges(self, exchange: Exchange) -> None:
        """By stream all of them; by server, or both, without those that a seal opened."""
        results = []
        for owner in exchange.header.range_owners:
            wanted = [owner.stream_id] if owner.stream_id >= 0 else list(self.held)
            ranges = [each for stream_id in wanted for each in self.ranges_of(stream_id)]
            if owner.range_server is not None:
                ranges = [each for each in ranges if not each.range_index]
            echo = RangeCriteria(owner.range_server, owner.stream_id)
            results.append(ListRangesResult(echo, tuple(ranges), OK))
        exchange.answer(ListRangesResponse(0, tuple(results), OK))

    def seal_and_open(self, exchange: Exchange) -> None:
        """The writable ranges, in the order of completion; results name no stream."""
        results = []
        for each in exchange.header.ranges:
            current = len(self.ranges_of(each.stream_id)) - 1
            if each.range_index > current:
                results.append(SealRangesResult(None, SEAL_NOT_FOUND))
                continue
            if each.range_index == current:
                self.open_next_range(each.stream_id)
            results.append(SealRangesResult(self.ranges_of(each.stream_id)[-1], OK))
        exchange.answer(SealRangesResponse(0, tuple(reversed(results)), OK))

    def create_streams(self, exchange: Exchange) -> None:
        results = []
        for wanted in exchange.header.streams:
            stream_id = max(self.held, default=-100) + 100
            self.held[stream_id] = _Held()
            stream = Stream(stream_id, wanted.replica_nums, wanted.retention_period_ms)
            self.rows[stream_id] = stream
            results.append(CreateStreamResult(stream, self.ranges_of(stream_id)[0], OK))
        exchange.answer(CreateStreamsResponse(0, tuple(results), OK))

    def describe_streams(self, exchange: Exchange) -> None:
        """One id that is unknown is an error of the whole answer; names are not looked at."""
        asked = exchange.header.stream_ids
        if any(each not in self.rows for each in asked):
            exchange.answer(DescribeStreamsResponse(0, (), PM_INTERNAL))
            return
        results = tuple(DescribeStreamResult(self.rows[each], OK) for each in reversed(asked))
        exchange.answer(DescribeStreamsResponse(0, results, OK))

    def update_streams(self, exchange: Exchange) -> None:
        """An upsert: the stream is what the request says, 0 replicas too."""
        results = []
        for each in exchange.header.streams:
            stream = Stream(each.stream_id, each.replica_nums, each.retention_period_ms)
            self.rows[each.stream_id] = stream
            results.append(UpdateStreamResult(stream, OK))
        exchange.answer(UpdateStreamsResponse(0, tuple(results), OK))

    def delete_streams(self, exchange: Exchange) -> None:
        results = []
        for each in exchange.header.streams:
            known = self.rows.pop(each.stream_id, None)
            results.append(DeleteStreamResult(known, OK if known else PM_INTERNAL))
        exchange.answer(DeleteStreamsResponse(0, tuple(results), OK))

    def describe_cluster(self, exchange: Exchange) -> None:
        node = PlacementDriverNode("pm-0", self.endpoint, is_leader=True)
        cluster = PlacementDriverCluster((node,))
        exchange.answer(DescribePlacementDriverClusterResponse(OK, cluster))

    # The data node

    def describe_ranges(self, exchange: Exchange) -> None:
        asked = decode_header(DescribeRangesRequest, exchange.frame.header).ranges
        results = []
        for each in asked:
            if each.stream_id not in self.held:
                results.append(DescribeRangeResult(each.stream_id, None, PM_INTERNAL))
                continue
            known = self.held[each.stream_id]
            ends = [*known.starts[1:], known.next_offset]
            start, tail = known.starts[each.range_index], ends[each.range_index]
            is_open = each.range_index == len(known.starts) - 1
            bounds = start, -1 if is_open else tail, "", tail
            found = placed(each.stream_id, each.range_index, *bounds)
            results.append(DescribeRangeResult(-1, found, OK))
        exchange.answer(DescribeRangesResponse(0, tuple(results), OK))

    def seal(self, exchange: Exchange) -> None:
        """Where the ranges end; the start is 0, and results name no stream."""
        results = []
        for each in exchange.header.ranges:
            if each.stream_id not in self.held:
                results.append(SealRangesResult(None, DN_INTERNAL))
                continue
            end = self.next_offset(each.stream_id)
            sealed = placed(each.stream_id, each.range_index, 0, end, "", end)
            results.append(SealRangesResult(sealed, OK))
        exchange.answer(SealRangesResponse(0, tuple(reversed(results)), OK))

    def append(self, exchange: Exchange) -> None:
        """Record sequences only: another batch fails the whole frame. Times are in seconds."""
        batches, position = [], 0
        for info in exchange.header.append_requests:
            batch = bytes(exchange.frame.payload[position : position + info.batch_length])
            position += info.batch_length
            try:
                check_record_sequence(batch)
            except NoRecordSequenceError as error:
                exchange.fail(StatusError(StatusCode.BAD_REQUEST, str(error)))
                return
            batches.append((info.stream_range.stream_id, batch))
        results = []
        for stream_id, batch in batches:
            if stream_id not in self.held:
                results.append(AppendResult(0, 0, 0, 0, RANGE_NOT_FOUND))
                continue
            offset = self.next_offset(stream_id)
            self.held[stream_id].batches.append(batch[:1] + struct.pack(">q", offset) + batch[9:])
            results.append(AppendResult(stream_id, 0, offset, APPEND_SECONDS, OK))
        exchange.answer(AppendResponse(0, tuple(results), OK))

    def fetch(self, exchange: Exchange) -> None:
        results: list[FetchResult] = []
        payload: list[bytes] = []
        for info in exchange.header.fetch_requests:
            found = self._found(info)
            if info.stream_range.stream_id not in self.held:
                results.append(FetchResult(0, 0, 0, RANGE_NOT_FOUND))
            elif found:
                results.append(FetchResult(info.stream_range.stream_id, 0, len(found), OK))
            else:
                results.append(FetchResult(0, 0, 0, NO_NEW_RECORD))
            payload += found
        exchange.answer(FetchResponse(0, tuple(results), OK), payload)

    def _found(self, info: FetchInfo) -> Sequence[bytes]:
        """Whole batches from the one that holds the offset, one at least.

        An offset within the last batch of the stream is not found, only its first one.
        """
        assert info.stream_range is not None
        held = self.held.get(info.stream_range.stream_id, _Held())
        if held.batches and info.fetch_offset > peek_batch(held.batches[-1]).base_offset:
            return []
        taken: list[bytes] = []
        for batch in held.batches:
            envelope = peek_batch(batch)
            is_enough = sum(map(len, taken)) >= info.batch_max_bytes
            if envelope.base_offset + envelope.record_count > info.fetch_offset and not is_enough:
                taken.append(batch)
        return taken


class LaterElasticStreamPeer:
    """A placement driver of July 2023, as far as one asks it what an older client would.

    Its HEARTBEAT is as before. ALLOCATE_ID and a LIST_RANGES without criteria are answered in
    tables of their own. A request with the header of a batched table ends its process.
    """

    def __init__(self, driver: ScriptedPeer) -> None:
        self.driver = driver
        self.endpoint = driver.endpoint
        self.is_dead = False
        driver.script(Opcode.HEARTBEAT, lambda it: it.answer(HeartbeatResponse(status=OK)))
        driver.script(Opcode.LIST_RANGES, self.list_ranges)
        driver.script(Opcode.ALLOCATE_ID, lambda it: it.answer(_later_answer(server_id=7)))
        for opcode in Opcode:
            if opcode not in {Opcode.HEARTBEAT, Opcode.LIST_RANGES, Opcode.ALLOCATE_ID}:
                driver.script(opcode, self.die)

    def list_ranges(self, exchange: Exchange) -> None:
        if exchange.header.range_owners:
            self.die(exchange)
        else:
            exchange.answer(_later_answer(ranges=True))

    def die(self, exchange: Exchange) -> None:
        if exchange.frame.header:
            self.is_dead = True
            self.driver.close()
        else:
            exchange.echo()


def _later_answer(*, server_id: int = 0, ranges: bool = False) -> bytes:
    """An answer of July 2023: status@0; id@1 of ALLOCATE_ID, or ranges@2, which are required."""
    builder = flatbuffers.Builder()
    message = builder.CreateString("OK")
    builder.StartObject(2)
    builder.PrependInt16Slot(0, StatusCode.OK, 0)
    builder.PrependUOffsetTRelativeSlot(1, message, 0)
    status = builder.EndObject()
    if ranges:
        builder.StartVector(4, 0, 4)
        found = builder.EndVector()
    builder.StartObject(3)
    builder.PrependUOffsetTRelativeSlot(0, status, 0)
    builder.PrependInt32Slot(1, server_id, 0)
    if ranges:
        builder.PrependUOffsetTRelativeSlot(2, found, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def _unknown_operation(exchange: Exchange) -> None:
    exchange.fail(StatusError(StatusCode.UNKNOWN_OPERATION, "unknown operation"))


HEADER_NAMES = frozenset({"Keys", "Tag", "RecordId", "CreatedAt"})
"""An enumeration there: the client fails on a header with any other name."""
_BATCH = struct.Struct(">bqi")
_RECORD = struct.Struct(">ii")


@dataclass(frozen=True)
class JavaRecord:
    offset: int
    timestamp_ms: int
    headers: dict
    properties: dict
    body: bytes


def read_batches(payload, count):
    """The first `count` batches of a payload, each (stream id, records); and what follows them."""
    batches = []
    for _ in range(count):
        batch, payload = _read_batch(payload)
        batches.append(batch)
    return batches, payload


def stored_batches(endpoint, stream_id):
    """All batches of a stream, each as its records."""
    found, offset = [], 0
    with Client(endpoint) as client:
        (bounds,) = client.stream_bounds([stream_id])
        while offset < bounds.next_offset:
            (outcome,) = client.fetch([FetchItem(stream_id, offset, None, 1 << 20)])
            payload, offset = bytes(outcome.payload), outcome.next_offset
            batches, rest = read_batches(payload, len(list(split_envelopes(payload))))
            assert rest == b""
            assert {each for each, _ in batches} == {stream_id}
            found += [records for _, records in batches]
    return found


def stored_records(endpoint, stream_id):
    """All records of a stream."""
    return [record for records in stored_batches(endpoint, stream_id) for record in records]


def _read_batch(data):
    magic, base_offset, meta_bytes = _BATCH.unpack_from(data)
    assert magic == 0x22
    meta_data, rest = _split(data[_BATCH.size :], meta_bytes)
    meta = decode_officially(LAYOUTS, RecordBatchMeta, meta_data)
    records = []
    while len(rest) >= _RECORD.size:
        record, rest = _read_record(rest, base_offset, meta.base_timestamp)
        records.append(record)
        if record.offset - base_offset >= meta.last_offset_delta:
            break
    return (meta.stream_id, records), rest


def _read_record(data, base_offset, base_ms):
    meta_bytes, body_bytes = _RECORD.unpack_from(data)
    meta_data, rest = _split(data[_RECORD.size :], meta_bytes)
    body, rest = _split(rest, body_bytes)
    meta = decode_officially(LAYOUTS, RecordMeta, meta_data)
    headers = {item.key: item.value for item in meta.headers}
    assert headers.keys() <= HEADER_NAMES, f"no such header: {headers}"
    properties = {item.key: item.value for item in meta.properties}
    record = JavaRecord(
        base_offset + meta.offset_delta, base_ms + meta.timestamp_delta, headers, properties, body
    )
    return record, rest


def _split(data, size):
    assert 0 <= size <= len(data)
    return data[:size], data[size:]
