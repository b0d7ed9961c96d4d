"""Rows inside a record batch: Arrow bodies, honest and hostile."""

import datetime as dt
import struct

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from sbp_core import limits
from sbp_core.errors import RecordBatchError
from sbp_core.record_sizes import LARGEST
from sbp_core.records import (
    ROWS_SCHEMA,
    decode_batch,
    decode_envelope,
    encode_envelope,
    encode_rows,
    offsets_array,
)
from sbp_core.records.arrow_message import (
    MESSAGE_SCHEMA,
    BodyCompression,
    Message,
    check_record_batch_message,
)

COMPRESSIONS = ["none", "lz4", "zstd"]
NOON = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
ROWS = [
    {"key": b"a", "value": b"1", "headers": [("h", b"x"), ("i", None)], "timestamp": NOON},
    {"key": None, "value": None, "headers": None, "timestamp": None},
    {"key": b"", "value": b"\xff\0", "headers": [], "timestamp": NOON},
    {"key": b"c" * 300, "value": b"3", "headers": [("", b"")], "timestamp": NOON},
]


def rows(values=ROWS):
    return pa.RecordBatch.from_pylist(values, schema=ROWS_SCHEMA)


def encoded(batch=None, compression="none"):
    return encode_rows(
        rows() if batch is None else batch, stream_id=9, timestamp_ms=17, compression=compression
    )


def wrap(body, record_count=4):
    return decode_envelope(
        encode_envelope(
            [body], stream_id=9, record_count=record_count, base_timestamp_ms=0, encoding="rows"
        )
    )


def message_parts(body):
    """The Message table of an encapsulated message, and the buffers after it."""
    (metadata_bytes,) = struct.unpack_from("<i", body, 4)
    return (
        MESSAGE_SCHEMA.decode(Message, body[8 : 8 + metadata_bytes]),
        bytes(body[8 + metadata_bytes :]),
    )


def make_message(message, buffers, *, continuation=0xFFFFFFFF):
    metadata = MESSAGE_SCHEMA.encode(message)
    metadata += bytes(-len(metadata) % 8)
    return struct.pack("<Ii", continuation, len(metadata)) + metadata + buffers


def forged(compression="none", *, header=(), **changes):
    """A batch whose Arrow metadata contradicts its buffers."""
    message, buffers = message_parts(decode_envelope(encoded(compression=compression)).body)
    changed = replace(message, header=replace(message.header, **dict(header)), **changes)
    return wrap(make_message(changed, buffers))


def test_a_forgery_that_changes_nothing_is_read():
    for compression in COMPRESSIONS:
        assert decode_batch(forged(compression)).to_pylist() == ROWS


def test_uncompressed_columns_are_views_of_the_body():
    data = bytearray(encoded())
    value = decode_batch(decode_envelope(data)).column("value")
    start = pa.py_buffer(data).address
    assert start <= value.buffers()[2].address < start + len(data)


def test_a_slice_is_written_without_its_parent():
    value = b"v" * 1000
    parent = rows([{"key": b"k", "value": value, "headers": [("h", value)]}] * 1000)
    data = encoded(parent.slice(500, 2))
    assert len(data) < 6000
    assert decode_batch(decode_envelope(data)).to_pylist() == parent.slice(500, 2).to_pylist()


def test_a_slice_without_headers_is_written_without_those_of_its_parent():
    with_headers = [{"headers": [("h", b"x")] * 100}] * 100
    parent = rows([*with_headers, {"value": b"v"}, *with_headers])
    assert len(encoded(parent.slice(100, 1))) < 2000


def test_names_inside_the_map_and_schema_metadata_do_not_matter():
    entries = pa.map_(pa.field("k", pa.string(), nullable=False), pa.field("v", pa.binary()))
    schema = ROWS_SCHEMA.set(2, pa.field("headers", entries)).with_metadata({"a": "b"})
    batch = pa.RecordBatch.from_pylist(ROWS, schema=schema)
    assert decode_batch(decode_envelope(encoded(batch))).to_pylist() == ROWS


@pytest.mark.parametrize(
    "schema",
    [
        ROWS_SCHEMA.remove(3),
        ROWS_SCHEMA.set(1, pa.field("value", pa.string())),
        ROWS_SCHEMA.set(1, pa.field("value", pa.large_binary())),
        ROWS_SCHEMA.set(0, pa.field("key", pa.binary(), nullable=False)),
    ],
)
def test_rows_of_another_schema_are_not_encoded(schema):
    batch = pa.RecordBatch.from_pylist([], schema=schema)
    with pytest.raises(RecordBatchError, match=r"expected \(key binary, value binary, headers"):
        encoded(batch)


def test_rows_that_no_reader_would_accept_are_not_encoded():
    keys = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(struct.pack("<ii", 0, 1)), pa.py_buffer(b"\xff")]
    )
    headers = pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), keys, pa.array([b"v"]))
    batch = pa.record_batch(
        [pa.array([b"k"]), pa.array([b"v"]), headers, pa.array([NOON], ROWS_SCHEMA.field(3).type)],
        schema=ROWS_SCHEMA,
    )
    with pytest.raises(RecordBatchError, match=r"cannot be encoded: .*UTF8"):
        encoded(batch)


def test_rows_too_large_to_be_read_again_are_not_encoded():
    batch = rows([{"value": bytes(limits.DECODED_BATCH_BYTES_MAX)}])
    with pytest.raises(RecordBatchError, match="bytes of decoded data"):
        encoded(batch, "zstd")
    with pytest.raises(RecordBatchError, match="spread them over several batches"):
        encoded(rows([{"value": bytes(LARGEST.batch_bytes - 256)}]))


def test_another_encoding_is_named():
    envelope = replace(decode_envelope(encoded()), encoding="lines")
    with pytest.raises(RecordBatchError, match="'lines'; this version reads \"rows\""):
        decode_batch(envelope)


@pytest.mark.parametrize(
    ("declared_bytes", "fault"),
    [
        (2**40, "bytes of decoded data"),
        (2**63 - 1, "bytes of decoded data"),
        (limits.DECODED_BATCH_BYTES_MAX, "bytes of decoded data"),
        (-2, "declares -2 bytes"),
        (-(2**63), "declares -"),
        (60 * limits.MIB, "is damaged"),
        (1, "is damaged"),
    ],
)
@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_declared_sizes(compression, declared_bytes, fault):
    zeros = rows([{"value": bytes(4 * limits.MIB)}])
    message, buffers = message_parts(decode_envelope(encoded(zeros, compression)).body)
    offset = next(o for o, _ in message.header.buffers if buffers[o : o + 8] == zeros_size())
    data = bytearray(buffers)
    data[offset : offset + 8] = struct.pack("<q", declared_bytes)
    with pytest.raises(RecordBatchError, match=fault):
        decode_batch(wrap(make_message(message, bytes(data)), record_count=1))


def zeros_size():
    return struct.pack("<q", 4 * limits.MIB)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_bomb_of_many_parts_is_summed(compression):
    """One buffer below the limit, named again and again by the metadata."""
    zeros = rows([{"value": bytes(4 * limits.MIB)}])
    message, buffers = message_parts(decode_envelope(encoded(zeros, compression)).body)
    offset = next(o for o, _ in message.header.buffers if buffers[o : o + 8] == zeros_size())
    large = next(buffer for buffer in message.header.buffers if buffer[0] == offset)
    header = replace(message.header, buffers=(large,) * 17)
    body = make_message(replace(message, header=header), buffers)
    with pytest.raises(RecordBatchError, match="declares 71303168 bytes of decoded data"):
        decode_batch(wrap(body, record_count=1))


@pytest.mark.parametrize(
    ("buffer", "fault"),
    [
        ((-8, 8), "lies outside"),
        ((0, -8), "lies outside"),
        ((0, 2**62), "lies outside"),
        ((2**62, 2**62), "lies outside"),
        ((2**63 - 8, 8), "lies outside"),
        ((4, 8), "unaligned byte 4"),
    ],
)
def test_buffers_outside_the_message(buffer, fault):
    message, _ = message_parts(decode_envelope(encoded()).body)
    for index in range(len(message.header.buffers)):
        buffers = list(message.header.buffers)
        buffers[index] = buffer
        with pytest.raises(RecordBatchError, match=fault):
            decode_batch(forged(header={"buffers": tuple(buffers)}))


def test_a_compressed_buffer_without_its_size():
    message, _ = message_parts(decode_envelope(encoded(compression="lz4")).body)
    buffers = ((0, 7), *message.header.buffers[1:])
    with pytest.raises(RecordBatchError, match="of 7 bytes is cut off"):
        decode_batch(forged("lz4", header={"buffers": buffers}))


def test_a_compressed_buffer_may_be_stored_raw():
    message, buffers = message_parts(decode_envelope(encoded()).body)
    raw, layout = b"", []
    for offset, length in message.header.buffers:
        layout.append((len(raw), length + 8 if length else 0))
        raw += struct.pack("<q", -1) + buffers[offset : offset + length] if length else b""
        raw += bytes(-len(raw) % 8)
    header = replace(message.header, buffers=tuple(layout), compression=BodyCompression(1, 0))
    body = make_message(replace(message, header=header, body_length=len(raw)), raw)
    assert decode_batch(wrap(body)).to_pylist() == ROWS


def test_raw_buffers_count_with_what_they_hold():
    message, _ = message_parts(decode_envelope(encoded()).body)
    raw = struct.pack("<q", -1) + bytes(4 * limits.MIB)
    header = replace(
        message.header, buffers=((0, len(raw)),) * 17, compression=BodyCompression(0, 0)
    )
    body = make_message(replace(message, header=header, body_length=len(raw)), raw)
    with pytest.raises(RecordBatchError, match="declares 71303168 bytes of decoded data"):
        decode_batch(wrap(body))


@pytest.mark.parametrize("field", ["nodes", "buffers"])
def test_missing_parts(field):
    message, _ = message_parts(decode_envelope(encoded()).body)
    for kept in range(len(getattr(message.header, field))):
        part = getattr(message.header, field)[:kept]
        with pytest.raises(RecordBatchError, match="is damaged"):
            decode_batch(forged(header={field: part}))


@pytest.mark.parametrize("compression", [(2, 0), (-1, 0), (0, 1)])
def test_unknown_compression(compression):
    with pytest.raises(RecordBatchError, match="this version reads lz4"):
        decode_batch(forged("lz4", header={"compression": BodyCompression(*compression)}))


@pytest.mark.parametrize("compression", [None, BodyCompression(1, 0)])
def test_compression_that_is_not_what_was_used(compression):
    with pytest.raises(RecordBatchError):
        decode_batch(forged("lz4", header={"compression": compression}))


@pytest.mark.parametrize("change", [{"header_type": 2}, {"header_type": 0}, {"version": 3}])
def test_messages_of_another_kind(change):
    with pytest.raises(RecordBatchError, match="expected a record batch"):
        decode_batch(forged(**change))


def test_schema_and_dictionary_messages():
    with pytest.raises(RecordBatchError, match="of type 1, version 4"):
        decode_batch(wrap(memoryview(ROWS_SCHEMA.serialize())))
    column = pa.array(["x", "y"]).dictionary_encode()
    sink = pa.BufferOutputStream()
    stream = pa.ipc.new_stream(sink, pa.schema([("c", column.type)]))
    stream.write_batch(pa.record_batch([column], names=["c"]))
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    dictionary = reader.read_next_message()
    assert dictionary.type == "dictionary"
    with pytest.raises(RecordBatchError, match="of type 2, version 4"):
        decode_batch(wrap(memoryview(dictionary.serialize())))


@pytest.mark.parametrize("body_length", [0, -1, 8, 2**62])
def test_body_length_that_is_not_the_rest(body_length):
    with pytest.raises(RecordBatchError, match=f"announces {body_length} bytes of buffers"):
        decode_batch(forged(body_length=body_length))


def test_a_message_without_header():
    body = make_message(Message(version=4, header_type=3), b"")
    with pytest.raises(RecordBatchError, match="its header is missing"):
        decode_batch(wrap(body))


@pytest.mark.parametrize(
    ("prefix", "fault"),
    [
        (b"\0\0\0\0", "first bytes are wrong"),
        (b"\xff\xff\xff\xff\0\0\0\0", "announces 0 bytes of metadata"),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff", "announces -1 bytes of metadata"),
        (b"\xff\xff\xff\xff\xff\xff\xff\x7f", "bytes of metadata"),
        (b"\xff\xff\xff\xff\x09\0\0\0", "unaligned metadata of 9"),
    ],
)
def test_wrong_beginnings(prefix, fault):
    body = bytes(decode_envelope(encoded()).body)
    with pytest.raises(RecordBatchError, match=fault):
        decode_batch(wrap(prefix + body[len(prefix) :]))


def test_headers_with_null_keys_are_refused():
    entry = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    schema = ROWS_SCHEMA.set(2, pa.field("headers", pa.list_(entry)))
    batch = pa.RecordBatch.from_pylist([{"headers": [{"key": None, "value": b"v"}]}], schema=schema)
    with pytest.raises(RecordBatchError, match="is damaged"):
        decode_batch(wrap(memoryview(batch.serialize()), record_count=1))


def test_a_message_of_any_columns_can_be_checked():
    batch = pa.record_batch({"x": [1, 2], "y": ["a", None]})
    check_record_batch_message(memoryview(batch.serialize()), record_count=2)


def test_offsets():
    assert offsets_array(10, 3).to_pylist() == [10, 11, 12]
    assert offsets_array(0, 0).type == pa.int64()
    assert np.array_equal(offsets_array(5, 1000).to_numpy(), np.arange(5, 1005))
    assert offsets_array(2**63 - 3, 2).to_pylist() == [2**63 - 3, 2**63 - 2]
    for base_offset in (-1, 2**63 - 2):
        with pytest.raises(RecordBatchError, match="offsets go from 0"):
            offsets_array(base_offset, 2)
