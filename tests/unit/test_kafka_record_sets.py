"""Record batches of Kafka: any records survive, damage is refused, and so are bombs."""

import gzip
import struct
import tracemalloc

import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from crc32c import crc32c
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sbp_core import limits
from sbp_core.errors import RecordBatchError
from sbp_core.kafka.record_sets import (
    OldFormatError,
    TransactionalError,
    build_record_set,
    read_producer_batch,
)
from sbp_core.records import StreamSchema, decode_envelope, encode_rows
from sbp_core.records.stream_decoder import StreamDecoder
from tests.support.clock import examples

HEAD_BYTES, CRC_AT, ATTRIBUTES_AT, COUNT_AT = 61, 17, 21, 57
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
TIME_MS = 1_700_000_000_000
BYTES = st.binary(max_size=20)
RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.none() | BYTES,
            "value": st.none() | BYTES,
            "headers": st.lists(st.tuples(st.text(max_size=5), st.none() | BYTES), max_size=3),
            "timestamp": st.integers(0, 2**43),
        }
    ),
    min_size=1,
    max_size=8,
)


def built(records, codec=0, *, producer=(-1, -1, -1), is_transactional=False):
    """The bytes that a producer sends."""
    builder = DefaultRecordBatchBuilder(2, codec, is_transactional, *producer, 1 << 30)
    for at, each in enumerate(records):
        headers = each["headers"]
        assert builder.append(at, each["timestamp"], each["key"], each["value"], headers)
    return bytes(builder.build())


def mended(data):
    """The bytes with the length and the checksum that they should have."""
    data = bytearray(data)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">I", data, CRC_AT, crc32c(bytes(data[ATTRIBUTES_AT:])))
    return bytes(data)


def with_body(body, codec, count=1):
    """A sound head in front of any compressed records."""
    data = bytearray(built([RECORD])[:HEAD_BYTES])
    data[ATTRIBUTES_AT + 1] = codec
    struct.pack_into(">i", data, 23, count - 1)
    struct.pack_into(">i", data, COUNT_AT, count)
    return mended(bytes(data) + body)


RECORD = {"key": b"k", "value": b"v", "headers": [("h", b"1")], "timestamp": TIME_MS}


def as_read(rows):
    times = rows.column("timestamp").cast(pa.int64())
    return [
        each
        | {
            "headers": [tuple(pair) for pair in each["headers"] or []],
            "timestamp": None if each["timestamp"] is None else each["timestamp"] // 1_000,
        }
        for each in rows.set_column(3, "timestamp", times).to_pylist()
    ]


@given(records=RECORDS, codec=st.sampled_from(sorted(CODECS.values())))
@settings(max_examples=examples(100))
def test_any_records_of_a_producer_are_read(records, codec):
    batch = read_producer_batch(built(records, codec, producer=(77, 3, 5)), None)
    assert as_read(batch.rows) == records
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (77, 3, 5)
    assert (batch.record_count, batch.first_time_ms) == (len(records), records[0]["timestamp"])


@given(records=RECORDS, base_offset=st.integers(0, 2**62))
@settings(max_examples=examples(100))
def test_any_records_of_a_stream_are_read_by_consumers(records, base_offset):
    rows = read_producer_batch(built(records), None).rows
    encoded = encode_rows(rows, stream_id=1, timestamp_ms=TIME_MS, base_offset=base_offset)
    decoded = StreamDecoder(1, base_offset).decode(decode_envelope(encoded))
    found, count = build_record_set(decoded, TIME_MS)
    assert count == len(records)
    batch = DefaultRecordBatch(found)
    assert batch.validate_crc()
    read = [
        {"key": x.key, "value": x.value, "headers": list(x.headers), "timestamp": x.timestamp}
        for x in batch
    ]
    assert read == records
    offsets = [x.offset for x in DefaultRecordBatch(found)]
    assert offsets == list(range(base_offset, base_offset + count))


def test_a_large_batch_of_a_stream_comes_in_parts():
    value = bytes(1 << 20)
    rows = read_producer_batch(built([RECORD | {"value": value}] * 9), None).rows
    encoded = encode_rows(rows, stream_id=1, timestamp_ms=TIME_MS)
    decoded = StreamDecoder(1, 0).decode(decode_envelope(encoded))
    found, count = build_record_set(decoded, TIME_MS)
    assert 1 <= count < 9
    assert len(list(DefaultRecordBatch(found))) == count
    _, rest = build_record_set(StreamDecoder(1, count).decode(decode_envelope(encoded)), TIME_MS)
    assert count + rest == 9


def test_a_record_as_large_as_any_is_read():
    rows = read_producer_batch(built([RECORD | {"value": bytes(9 << 20)}]), None).rows
    encoded = encode_rows(rows, stream_id=1, timestamp_ms=TIME_MS)
    found, count = build_record_set(StreamDecoder(1, 0).decode(decode_envelope(encoded)), TIME_MS)
    assert count == 1
    assert [len(each.value) for each in DefaultRecordBatch(found)] == [9 << 20]


SOUND = [
    built([RECORD, RECORD | {"value": None}, RECORD | {"key": None, "headers": []}] * 5, codec)
    for codec in CODECS.values()
]


@given(
    data=st.sampled_from(SOUND),
    edits=st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=9)), min_size=1, max_size=4),
    cut=st.integers(0, 3),
    is_mended=st.booleans(),
)
@settings(max_examples=examples(500))
def test_damaged_bytes_are_refused_or_read(data, edits, cut, is_mended):
    for at, edit in edits:
        data = data[:at] + edit + data[at + len(edit) :]
    data = data[: len(data) - cut]
    assume(len(data) > HEAD_BYTES or not is_mended)
    try:
        batch = read_producer_batch(mended(data) if is_mended else data, None)
    except RecordBatchError:
        return
    assert batch.rows.num_rows == batch.record_count


@given(body=st.binary(max_size=60), codec=st.integers(0, 7))
@settings(max_examples=examples(300))
def test_any_bytes_under_a_sound_checksum_are_refused_or_read(body, codec):
    try:
        batch = read_producer_batch(with_body(body, codec), None)
    except RecordBatchError:
        return
    assert batch.rows.num_rows == 1


def test_a_wrong_checksum_is_refused():
    data = bytearray(SOUND[0])
    data[-1] ^= 1
    with pytest.raises(RecordBatchError, match="checksum"):
        read_producer_batch(bytes(data), None)


BOMB_BYTES = 64 << 20


def gzip_bomb():
    return gzip.compress(bytes(BOMB_BYTES), 9)


def lz4_bomb():
    return pa.compress(bytes(BOMB_BYTES), "lz4", asbytes=True)


def zstd_bomb():
    return pa.compress(bytes(BOMB_BYTES), "zstd", asbytes=True)


def snappy_bomb():
    return pa.compress(bytes(BOMB_BYTES), "snappy", asbytes=True)


def snappy_in_many_blocks():
    block = pa.compress(bytes(1 << 20), "snappy", asbytes=True)
    head = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    return head + (len(block).to_bytes(4, "big") + block) * 64


@pytest.mark.parametrize(
    ("make", "codec"),
    [
        (gzip_bomb, "gzip"),
        (lz4_bomb, "lz4"),
        (zstd_bomb, "zstd"),
        (snappy_bomb, "snappy"),
        (snappy_in_many_blocks, "snappy"),
    ],
)
def test_a_bomb_is_refused_before_it_is_in_memory(make, codec):
    data = with_body(make(), CODECS[codec])
    tracemalloc.start()
    with pytest.raises(RecordBatchError, match=f"more than {limits.BATCH_BYTES_MAX} bytes"):
        read_producer_batch(data, None)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 3 * limits.BATCH_BYTES_MAX


def test_a_snappy_block_that_declares_too_much_is_refused():
    with pytest.raises(RecordBatchError, match="more than"):
        read_producer_batch(with_body(b"\xff\xff\xff\xff\x7f" + bytes(20), 2), None)


def test_the_snappy_of_java_is_read():
    plain = built([RECORD] * 3)[HEAD_BYTES:]
    blocks = [pa.compress(part, "snappy", asbytes=True) for part in (plain[:10], plain[10:])]
    body = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    body += b"".join(len(each).to_bytes(4, "big") + each for each in blocks)
    assert as_read(read_producer_batch(with_body(body, 2, count=3), None).rows) == [RECORD] * 3


@pytest.mark.parametrize("count", [0, -1, 2, 2**31 - 1])
def test_a_count_that_is_wrong_is_refused(count):
    data = bytearray(built([RECORD]))
    struct.pack_into(">i", data, COUNT_AT, count)
    struct.pack_into(">i", data, 23, count - 1 if count > 0 else 0)
    with pytest.raises(RecordBatchError):
        read_producer_batch(mended(data), None)


def test_what_is_no_batch_of_now_is_refused_with_the_reason():
    old = bytearray(SOUND[0])
    old[16] = 1
    for data in (bytes(old), bytes(old[:40])):
        with pytest.raises(OldFormatError):
            read_producer_batch(data, None)
    for data in (built([RECORD], is_transactional=True), with_body(b"", 0x20)):
        with pytest.raises(TransactionalError):
            read_producer_batch(data, None)
    for data in (b"", SOUND[0][:60], SOUND[0] * 2, SOUND[0] + b"x", with_body(b"", 5)):
        with pytest.raises(RecordBatchError):
            read_producer_batch(data, None)


SCHEMA = StreamSchema.of(pa.schema([pa.field("id", pa.int64(), nullable=False)]))
OBJECT = RECORD | {"value": b'{"id": 1}', "key": None, "headers": []}


@pytest.mark.parametrize("value", [b"{}", b"[]", b"{", b"", b"\xff", b'{"id": 1.5}', b"1", None])
def test_a_value_that_does_not_fit_the_schema_is_refused(value):
    records = [OBJECT, OBJECT | {"value": value}]
    with pytest.raises(RecordBatchError, match="record 1 does not fit"):
        read_producer_batch(built(records), SCHEMA)


@pytest.mark.parametrize("lost", [{"key": b"k"}, {"headers": [("name", b"text")]}])
def test_a_key_or_header_that_no_column_keeps_is_refused(lost):
    with pytest.raises(RecordBatchError, match=r"record 1 .* send them as columns"):
        read_producer_batch(built([OBJECT, OBJECT | lost]), SCHEMA)


@given(lines=st.lists(st.binary(max_size=30), min_size=1, max_size=3))
@settings(max_examples=examples(100))
def test_any_values_fit_the_schema_or_are_refused(lines):
    try:
        batch = read_producer_batch(built([OBJECT | {"value": each} for each in lines]), SCHEMA)
    except RecordBatchError:
        return
    assert batch.rows.num_rows == len(lines)
