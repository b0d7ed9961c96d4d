"""Fetch and ListOffsets: records of streams, and where they begin and end.

A fetch session is refused by the answer 0, which means none: consumers then name all partitions in
each request. A batch of a stream goes out as one record batch, so an answer may have more bytes
than was asked for, as with a broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode

from sbp_core import limits
from sbp_core.client.types import FetchItem, FetchOutcome
from sbp_core.errors import OffsetOutOfRangeError, SbpError, invalid
from sbp_core.kafka.calls import Api, Call
from sbp_core.kafka.messages import Fields, by_topic
from sbp_core.kafka.problems import partition_code
from sbp_core.kafka.record_sets import build_record_set
from sbp_core.records.stream_decoder import StreamDecoder

ANSWER_BYTES_MAX: Final = 32 * limits.MIB
"""Bytes that are fetched for one answer, beyond the first batch."""
WAIT_MS_MAX: Final = 60_000
_LATEST: Final = -1
_EARLIEST: Final = -2
_NEWEST_TIME: Final = -3
_UNKNOWN: Final = -1


@dataclass(slots=True)
class _Partition:
    """A partition that is asked for: its place in the request, and the answer so far."""

    topic: str
    index: int
    offset: int
    bytes_max: int
    stream_id: int = 0
    code: ErrorCode = ErrorCode.none
    sets: list[bytes] = field(default_factory=list)
    next_offset: int = 0
    bounds: tuple[int, int] | None = None

    def answer(self) -> Fields:
        start, end = self.bounds or (_UNKNOWN, self.next_offset)
        is_failed = self.code is not ErrorCode.none
        high = _UNKNOWN if is_failed and self.bounds is None else max(end, self.next_offset)
        return {
            "partition_index": self.index,
            "error_code": self.code,
            "high_watermark": high,
            "last_stable_offset": high,
            "log_start_offset": start,
            "aborted_transactions": None,
            "records": b"".join(self.sets),
        }


async def fetch(call: Call) -> Fields:
    """Answer with records as soon as there are `min_bytes` of them, or `max_wait` is over."""
    body = call.body
    if getattr(body, "session_epoch", -1) > 0:
        return {"error_code": ErrorCode.fetch_session_id_not_found, "responses": []}
    wanted = [
        _Partition(topic.topic, each.partition, each.fetch_offset, each.partition_max_bytes)
        for topic in body.topics
        for each in topic.partitions
    ]
    await _find(call, wanted)
    room = min(max(body.max_bytes, 1), ANSWER_BYTES_MAX, call.memory.response_bytes)
    wait_ms = min(_ms(body.max_wait), WAIT_MS_MAX)
    bounds = asyncio.ensure_future(
        call.gateway.ends.of(call.client, [each.stream_id for each in wanted if _is_found(each)])
    )
    try:
        found = await _read(call, wanted, room, 0, 0)
        if found < body.min_bytes and wait_ms and not any(each.code for each in wanted):
            await _read(call, wanted, room, wait_ms, body.min_bytes - found)
        known = await bounds
    finally:
        bounds.cancel()
    for each in wanted:
        each.bounds = known.get(each.stream_id)
    answers = iter(wanted)
    return {
        "responses": [
            {
                "topic": topic.topic,
                "partitions": [next(answers).answer() for _ in topic.partitions],
            }
            for topic in body.topics
        ]
    }


async def _find(call: Call, wanted: list[_Partition]) -> None:
    for each in wanted:
        try:
            found = await call.gateway.topics.stream_id(call.client, each.topic, each.index)
        except SbpError as error:
            each.code = partition_code(error)
            continue
        if found is None:
            each.code = ErrorCode.unknown_topic_or_partition
        elif each.offset < 0:
            each.code = ErrorCode.offset_out_of_range
        each.stream_id = found or 0
        each.next_offset = each.offset


def _is_found(partition: _Partition) -> bool:
    return partition.code is ErrorCode.none


async def _read(
    call: Call, wanted: list[_Partition], room: int, wait_ms: int, bytes_min: int
) -> int:
    """Fetch records for partitions that have none yet; return how many bytes were found.

    With a wait, returns as soon as there are `bytes_min`.
    """
    asked = [each for each in wanted if _is_found(each) and not each.sets]
    total = 0
    if not asked:
        return total
    items = [
        FetchItem(each.stream_id, each.offset, None, max(min(each.bytes_max, room), 1))
        for each in asked
    ]
    fetched = call.client.fetch(items, max_wait_ms=wait_ms)
    async with aclosing(fetched) as outcomes:
        async for outcome in outcomes:
            partition = asked[outcome.item_index]
            if total < room:  # what is left out comes with the next request
                total += await _take(call, partition, outcome)
            if wait_ms and (total >= bytes_min or partition.code is not ErrorCode.none):
                break
    return total


async def _take(call: Call, partition: _Partition, outcome: FetchOutcome) -> int:
    """Add what was fetched to the answer; return its bytes."""
    if outcome.error is not None:
        partition.code = _fetch_code(outcome.error)
        return 0
    decoder = StreamDecoder(partition.stream_id, partition.offset)
    size_bytes = 0
    try:
        for envelope in decoder.wanted(outcome.batches.payload):
            if decoder.lacks_schema(envelope):
                versions = await call.client.describe_schemas([partition.stream_id])
                decoder.learn(each.schema for each in versions[partition.stream_id])
            records = decoder.decode(envelope)
            encoded, count = build_record_set(records, envelope.base_timestamp_ms)
            partition.sets.append(encoded)
            partition.next_offset = records.base_offset + count
            size_bytes += len(encoded)
            if count < records.rows.num_rows:
                break
    except SbpError as error:
        if not partition.sets:
            partition.code = _fetch_code(error)
    return size_bytes


def _fetch_code(error: SbpError) -> ErrorCode:
    if isinstance(error, OffsetOutOfRangeError):
        return ErrorCode.offset_out_of_range
    return partition_code(error)


def _ms(period: timedelta) -> int:
    return max(round(period.total_seconds() * 1_000), 0)


async def list_offsets(call: Call) -> Fields:
    """Return offsets by time: of the record that was appended then or later, earliest, latest."""
    topics = call.body.topics
    asked = [_listed(call, topic.name, each) for topic in topics for each in topic.partitions]
    return {"topics": by_topic(topics, await asyncio.gather(*asked))}


async def _listed(call: Call, topic: str, partition: Any) -> Mapping[str, Any]:
    answer: dict[str, Any] = {
        "partition_index": partition.partition_index,
        "error_code": ErrorCode.none,
        "timestamp": _UNKNOWN,
        "offset": _UNKNOWN,
        "leader_epoch": _UNKNOWN,
    }
    try:
        stream_id = await call.gateway.topics.stream_id(
            call.client, topic, partition.partition_index
        )
        if stream_id is None:
            return answer | {"error_code": ErrorCode.unknown_topic_or_partition}
        offset, time_ms = await _offset_at(call, stream_id, partition.timestamp)
    except SbpError as error:
        return answer | {"error_code": partition_code(error)}
    return answer | {"offset": offset, "timestamp": time_ms}


async def _offset_at(call: Call, stream_id: int, time_ms: int) -> tuple[int, int]:
    """Return the offset of a time, and when the record there was appended; -1 if there is none.

    Raises SbpError.
    """
    client = call.client
    if time_ms >= 0:
        (offset,) = (await client.lookup_offsets({stream_id: time_ms * 1_000})).values()
        appended_ms = (await client.append_times({stream_id: offset}))[stream_id]
        return (_UNKNOWN, _UNKNOWN) if appended_ms is None else (offset, appended_ms)
    (bounds,) = await client.stream_bounds([stream_id])
    if time_ms == _EARLIEST:
        return bounds.start_offset, _UNKNOWN
    if time_ms == _LATEST:
        return bounds.next_offset, _UNKNOWN
    if time_ms == _NEWEST_TIME:
        if bounds.start_offset == bounds.next_offset:
            return _UNKNOWN, _UNKNOWN
        last = bounds.next_offset - 1
        return last, (await client.append_times({stream_id: last}))[stream_id] or _UNKNOWN
    raise invalid(f"{time_ms} is no time: expected ms since 1970, or -1, -2 or -3")


APIS: Final = (Api(1, 4, 12, fetch), Api(2, 1, 7, list_offsets))
