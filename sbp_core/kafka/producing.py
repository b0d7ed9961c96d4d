"""Produce and InitProducerId: records of producers are appended to streams.

A batch is acknowledged when the stream's servers have it on disk, whatever `acks` says; with
`acks=0` there is no answer. The batches of a connection are appended to a stream in the order in
which it brought them.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from kio.schema.errors import ErrorCode

from sbp_core import limits
from sbp_core.client.types import AppendItem, StreamInfo
from sbp_core.errors import InvalidRequestError, SbpError
from sbp_core.kafka.calls import Api, Call
from sbp_core.kafka.messages import Fields
from sbp_core.kafka.problems import partition_code
from sbp_core.kafka.producers import EPOCH_MAX, Producer, Sequence, new_producer_id, origin_of
from sbp_core.kafka.record_sets import (
    OldFormatError,
    ProducerBatch,
    TooLargeError,
    TransactionalError,
    read_producer_batch,
)
from sbp_core.records import StreamSchema, encode_columns, encode_rows

_CODE_OF: Final[dict[type[SbpError], ErrorCode]] = {
    OldFormatError: ErrorCode.unsupported_for_message_format,
    TransactionalError: ErrorCode.invalid_txn_state,
    TooLargeError: ErrorCode.message_too_large,
    InvalidRequestError: ErrorCode.out_of_order_sequence_number,
}
"""Errors of a batch, beside those that any partition may have."""
_NO_ACKS: Final = 0
_NO_PRODUCER: Final = -1


async def produce(call: Call) -> Fields | None:
    """Append the record batch of each partition."""
    body = call.body
    asked = [(topic.name, each) for topic in body.topic_data for each in topic.partition_data]
    done = iter(await asyncio.gather(*(_produced(call, *each) for each in asked)))
    if body.acks == _NO_ACKS:
        return None
    responses = [
        {"name": topic.name, "partition_responses": [next(done) for _ in topic.partition_data]}
        for topic in body.topic_data
    ]
    return {"responses": responses}


async def _produced(call: Call, topic: str, partition: Any) -> Fields:
    """Return the response about one partition."""
    failed: dict[str, Any] = {"index": partition.index, "base_offset": -1}
    if call.body.transactional_id is not None:
        return failed | {"error_code": ErrorCode.transactional_id_authorization_failed}
    try:
        async with call.turn:  # batches wait in the order of the connection until here
            stream = await call.gateway.topics.maybe_stream(call.client, topic, partition.index)
            if stream is None:
                return failed | {"error_code": ErrorCode.unknown_topic_or_partition}
            schema = await call.gateway.schemas.newest(call.client, stream.stream_id)
            await call.memory.claim(0)  # records may be much larger than the request
        offset = await _append(call, stream, schema, partition.records or b"")
    except SbpError as error:
        code = _CODE_OF.get(type(error)) or partition_code(error)
        return failed | {"error_code": code, "error_message": str(error)}
    return {"index": partition.index, "error_code": ErrorCode.none, "base_offset": offset}


async def _append(call: Call, stream: StreamInfo, schema: StreamSchema | None, data: bytes) -> int:
    """Append a record batch of Kafka; return its offset.

    The first step that waits is for the lock that keeps the order of batches.
    """
    item, sequence, producer = _read(call, stream, schema, data)
    with call.memory.holding(len(item.batch)):
        if producer is not None:
            return await producer.append(call.client, item, sequence)
        async with call.orders[stream.stream_id]:
            (outcome,) = await call.client.append([item])
    return outcome.base_offset


def _read(
    call: Call, stream: StreamInfo, schema: StreamSchema | None, data: bytes
) -> tuple[AppendItem, Sequence, Producer | None]:
    """Return a record batch as it is appended, and its producer if that is idempotent."""
    batch = read_producer_batch(data, schema)
    sequence = Sequence(batch.base_sequence, batch.record_count)
    origin = producer = None
    if batch.producer_id != _NO_PRODUCER:
        key = (stream.stream_id, batch.producer_id, batch.producer_epoch)
        producer = call.gateway.producers.get(*key)
        origin = origin_of(batch.producer_id, batch.producer_epoch, sequence)
    encoded = _encoded(stream, schema, batch, origin)
    if len(encoded) > limits.BATCH_BYTES_MAX:
        raise TooLargeError(
            f"{batch.record_count} records have {len(encoded)} bytes as a record batch; at most"
            f" {limits.BATCH_BYTES_MAX} are allowed: send fewer at a time"
        )
    return AppendItem(stream.stream_id, encoded), sequence, producer


def _encoded(
    stream: StreamInfo, schema: StreamSchema | None, batch: ProducerBatch, origin: str | None
) -> bytes:
    """Return the bytes of a record batch: the same ones each time that a producer sends it."""
    time_ms = max(batch.first_time_ms, 0)
    if schema is None:
        return encode_rows(
            batch.rows, stream_id=stream.stream_id, timestamp_ms=time_ms, origin=origin
        )
    return encode_columns(
        batch.rows, schema, stream_id=stream.stream_id, timestamp_ms=time_ms, origin=origin
    )


async def init_producer_id(call: Call) -> Fields:
    """Give a producer an id; a producer that has one gets the next epoch."""
    body = call.body
    if body.transactional_id is not None:
        return {
            "error_code": ErrorCode.transactional_id_authorization_failed,
            "producer_id": -1,
            "producer_epoch": -1,
        }
    known = getattr(body, "producer_id", _NO_PRODUCER)
    epoch = getattr(body, "producer_epoch", -1)
    if known >= 0 and 0 <= epoch < EPOCH_MAX:
        return {"error_code": ErrorCode.none, "producer_id": known, "producer_epoch": epoch + 1}
    return {"error_code": ErrorCode.none, "producer_id": new_producer_id(), "producer_epoch": 0}


APIS: Final = (Api(0, 3, 12, produce), Api(22, 0, 4, init_producer_id))
