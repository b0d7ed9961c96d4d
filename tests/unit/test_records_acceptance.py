"""Which batches a server stores: those of which the encoding says what the envelope declares."""

import struct

import pyarrow as pa
import pytest

from sbp_core import limits
from sbp_core.errors import RecordBatchError
from sbp_core.records import (
    ROWS_SCHEMA,
    StreamSchema,
    accept_batch,
    decode_envelope,
    encode_columns,
    encode_envelope,
    encode_rows,
)
from sbp_core.records import arrow_message as messages
from tests.support.data.batches import sequence_batch

MILLION = limits.BATCH_RECORDS_MAX
SCHEMA = StreamSchema.of(pa.schema([("a", pa.int64()), ("b", pa.list_(pa.string()))]))


def rows(count=3, compression="none"):
    columns = {
        "key": [b"k", None] * count,
        "value": [None, b"v"] * count,
        "headers": [[("name", b"text")], None] * count,
        "timestamp": [1, 2] * count,
    }
    arrays = [pa.array(columns[field.name][:count], field.type) for field in ROWS_SCHEMA]
    batch = pa.record_batch(arrays, schema=ROWS_SCHEMA)
    return encode_rows(batch, stream_id=1, timestamp_ms=0, compression=compression)


def columns(count=3, compression="none"):
    arrays = [pa.array([7] * count), pa.array([["x"]] * count)]
    batch = pa.record_batch(arrays, schema=SCHEMA.arrow)
    return encode_columns(batch, SCHEMA, stream_id=1, timestamp_ms=0, compression=compression)


def claimed(body, count, encoding, fingerprint=None):
    return encode_envelope(
        [body],
        stream_id=1,
        record_count=count,
        base_timestamp_ms=0,
        encoding=encoding,
        schema_fingerprint=fingerprint,
    )


def reclaimed(batch, count):
    """The batch with another count in its envelope, and only there."""
    envelope = decode_envelope(batch)
    return claimed(envelope.body, count, envelope.encoding, envelope.schema_fingerprint)


def patched(batch, **changes):
    """A batch of rows whose Arrow message says otherwise of its rows, columns and buffers."""
    body = bytes(decode_envelope(batch).body)
    start = messages.find_buffers(memoryview(body))
    message = messages.MESSAGE_SCHEMA.decode(messages.Message, body[messages.PREFIX_BYTES : start])
    header = message.header
    fields = {name: getattr(header, name) for name in ("length", "nodes", "buffers")} | changes
    encoded = messages.MESSAGE_SCHEMA.encode(
        messages.Message(
            message.version,
            message.header_type,
            messages.RecordBatchHeader(**fields, compression=header.compression),
            message.body_length,
        )
    )
    encoded += bytes(-len(encoded) % 8)
    head = struct.pack("<Ii", 0xFFFFFFFF, len(encoded))
    envelope = decode_envelope(batch)
    return claimed(
        head + encoded + body[start:],
        fields["length"],
        envelope.encoding,
        envelope.schema_fingerprint,
    )


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("count", [1, 3, 1000])
@pytest.mark.parametrize("encode", [rows, columns])
def test_batches_of_our_encoders_are_accepted(encode, count, compression):
    batch = encode(count, compression)
    assert accept_batch(batch) == decode_envelope(batch)


@pytest.mark.parametrize("encoding", ["rows", "columns", "opaque"])
def test_a_million_records_in_seven_bytes_are_refused(encoding):
    fingerprint = SCHEMA.fingerprint if encoding == "columns" else None
    with pytest.raises(RecordBatchError, match="Nothing of this batch was stored"):
        accept_batch(claimed(b"1234567", MILLION, encoding, fingerprint))


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("encode", [rows, columns])
def test_another_count_is_refused_with_both_numbers(encode, compression):
    for count in (1, 2, 4, MILLION):
        with pytest.raises(RecordBatchError, match=rf"of 3 rows .* declares {count} records"):
            accept_batch(reclaimed(encode(compression=compression), count))


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("encode", [rows, columns])
def test_a_message_that_claims_more_rows_than_its_columns_have_is_refused(encode, compression):
    with pytest.raises(RecordBatchError, match=r"declares \d+ records"):
        accept_batch(patched(encode(compression=compression), length=MILLION))


def test_columns_that_are_shorter_or_longer_than_the_rows_are_refused():
    nodes = ((3, 0),) * 7
    for at in (0, 1, 2, 6, 3, 4, 5):
        other = (*nodes[:at], (4, 0), *nodes[at + 1 :])
        with pytest.raises(RecordBatchError, match="the lengths of its columns"):
            accept_batch(patched(rows(), nodes=other))


@pytest.mark.parametrize("at", [1, 4, 7, 10, 13, 16])
def test_buffers_that_are_too_short_for_the_rows_are_refused(at):
    nodes = ((3, 0),) * 7
    sizes = [0, 16, 0, 0, 16, 0, 0, 16, 0, 0, 16, 0, 0, 16, 0, 0, 24]
    assert accept_batch(patched(rows(), nodes=nodes, buffers=tuple((0, each) for each in sizes)))
    sizes[at] -= 1
    with pytest.raises(RecordBatchError, match="declares 3 records, and the buffers"):
        accept_batch(patched(rows(), nodes=nodes, buffers=tuple((0, each) for each in sizes)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nodes": ()}, "with 0 columns"),
        ({"buffers": ()}, "and 0 buffers"),
        ({"nodes": ((3, 4),) * 7}, "a column of length 3 and 4 nulls"),
        ({"buffers": ((-8, 16),) * 17}, "lies outside"),
        ({"buffers": ((0, -1),) * 17}, "lies outside"),
        ({"buffers": ((2**40, 16),) * 17}, "lies outside"),
        ({"buffers": ((4, 16),) * 17}, "unaligned byte 4"),
    ],
)
def test_metadata_that_leads_astray_are_refused(changes, said):
    with pytest.raises(RecordBatchError, match=said):
        accept_batch(patched(rows(), **changes))


def test_compressed_buffers_that_declare_too_much_are_refused():
    batch = bytearray(rows(1000, "zstd"))
    sizes = struct.pack("<q", 4 * 1001)  # the offsets of key, value and headers
    at = batch.index(sizes)
    batch[at : at + 8] = struct.pack("<q", limits.DECODED_BATCH_BYTES_MAX + 1)
    with pytest.raises(RecordBatchError, match="bytes of decoded data"):
        accept_batch(batch)


@pytest.mark.parametrize("fingerprint", [None, "", "x" * 32, "0" * 31, "0" * 33])
def test_columns_name_their_schema(fingerprint):
    body = decode_envelope(columns()).body
    with pytest.raises(RecordBatchError, match="32 hexadecimal digits"):
        accept_batch(claimed(body, 3, "columns", fingerprint))


def test_columns_without_any_are_refused():
    with pytest.raises(RecordBatchError, match="0 values in the first column"):
        accept_batch(patched(columns(), nodes=(), buffers=()))


def test_rows_need_a_bit_for_each_in_columns():
    batch = patched(columns(), length=1000, nodes=((1000, 0),) * 3, buffers=())
    with pytest.raises(RecordBatchError, match="declares 1000 records"):
        accept_batch(batch)


@pytest.mark.parametrize("delta", [0, 1, 2])
def test_sequences_may_declare_the_last_index_or_less(delta):
    assert accept_batch(sequence_batch([b"a", b"b"], delta=delta)).record_count == 2


@pytest.mark.parametrize("delta", [3, MILLION, 2**31 - 1, -1])
def test_sequences_that_declare_more_than_they_have_are_refused(delta):
    with pytest.raises(RecordBatchError, match=f"declares {delta} records, .* has 2"):
        accept_batch(sequence_batch([b"a", b"b"], delta=delta))


def test_records_of_an_unknown_encoding_have_a_byte_each():
    assert accept_batch(claimed(b"1234567", 7, "opaque")).record_count == 7
    with pytest.raises(RecordBatchError, match="declares 8 records in a body of 7 bytes"):
        accept_batch(claimed(b"1234567", 8, "opaque"))


def test_arrow_also_checks_batches_that_a_server_accepted():
    """Server and client may be one process: one must not trust the checks of the other."""
    sound = columns(1000)
    # A vtable of 12 bytes has the four fields of Message that are read. The fifth one, which only
    # Arrow reads, then has an offset far outside of the message.
    at = sound.index(struct.pack("<H", 12), sound.index(struct.pack("<I", 0xFFFFFFFF)))
    batch = sound[:at] + struct.pack("<H", 14) + sound[at + 2 :]
    for _ in range(10):
        accept_batch(batch)
    with pytest.raises(RecordBatchError, match="Arrow message: Invalid flatbuffers"):
        messages.read_outline(decode_envelope(batch).body, record_count=1000)
