"""Record batches as ElasticStream's Java client of April 2023 reads them.

The rules are that client's, and FlatBuffers' own runtime reads the tables.
"""

import struct
from dataclasses import dataclass

from official_flatbuffers import decode_officially

from sbp_core.client import Client, FetchItem
from sbp_core.records import split_envelopes
from sbp_core.wire._generated import LAYOUTS, RecordBatchMeta, RecordMeta

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
