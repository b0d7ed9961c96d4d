"""The envelope: fixed bytes, several batches back to back, and every way in which it can lie."""

import struct

import pytest

from sbp_core import limits
from sbp_core.errors import HeaderError, RecordBatchError
from sbp_core.record_sizes import LARGEST
from sbp_core.records import decode_envelope, encode_envelope, peek_batch, write_base_offset
from sbp_core.records.batch_meta import read_meta
from sbp_core.records.envelope import OFFSET_MAX
from sbp_core.wire._generated import LAYOUTS, KeyValue, RecordBatchMeta
from sbp_core.wire.flat import Schema


def batch(body=b"body", *, record_count=3, base_offset=0):
    return encode_envelope(
        [body],
        stream_id=7,
        record_count=record_count,
        base_timestamp_ms=1_700_000_000_123,
        encoding="rows",
        base_offset=base_offset,
    )


def foreign_batch(
    body=b"body", *, record_count=3, properties=(), magic=0x22, base_offset=0, base_timestamp=0
):
    """A batch as another client might write it: no padding, properties of its own."""
    properties = [("encoding", "other"), *properties]
    meta = Schema(LAYOUTS).encode(
        RecordBatchMeta(
            stream_id=7,
            last_offset_delta=record_count,
            base_timestamp=base_timestamp,
            properties=tuple(KeyValue(key, value) for key, value in properties),
        )
    )
    return struct.pack(">Bqi", magic, base_offset, len(meta)) + meta + body


def test_the_fixed_part_is_where_the_layout_says():
    encoded = batch(base_offset=0x0102030405060708)
    assert encoded[0] == 0x22
    assert encoded[1:9] == bytes(range(1, 9))
    meta_bytes = int.from_bytes(encoded[9:13], "big")
    assert encoded[13 + meta_bytes :] == b"body"
    assert (13 + meta_bytes) % 8 == 0


@pytest.mark.parametrize("time_ms", [-(2**63) - 1, 2**63])
def test_a_time_that_does_not_fit_is_refused(time_ms):
    with pytest.raises(HeaderError, match="does not fit"):
        timed(time_ms)


def timed(time_ms):
    return encode_envelope(
        [b"body"], stream_id=7, record_count=3, base_timestamp_ms=time_ms, encoding="rows"
    )


def test_the_body_is_a_view():
    encoded = bytearray(batch())
    envelope = decode_envelope(encoded)
    encoded[-4:] = b"BODY"
    assert envelope.body == b"BODY"


def test_unknown_properties_are_passed_over():
    properties = [("colour", "red"), (None, "x"), ("body_bytes", "2"), ("encoding", "mine")]
    envelope = decode_envelope(foreign_batch(b"body", properties=properties))
    assert envelope.body == b"bo"
    assert envelope.encoding == "mine"


def test_the_base_offset_is_written_in_place():
    buffer = bytearray(b"...") + batch()
    untouched = bytes(buffer)
    write_base_offset(memoryview(buffer)[3:], 2**40 + 5)
    assert decode_envelope(buffer, 3).base_offset == 2**40 + 5
    assert buffer[:4] == untouched[:4]
    assert buffer[12:] == untouched[12:]


@pytest.mark.parametrize("buffer", [b"", batch()[:12], b"\x23" + batch()[1:]])
def test_a_base_offset_is_written_into_a_batch_only(buffer):
    with pytest.raises(RecordBatchError, match="no record batch"):
        write_base_offset(bytearray(buffer), 1)


@pytest.mark.parametrize("base_offset", [-1, OFFSET_MAX])
def test_a_base_offset_has_bounds(base_offset):
    with pytest.raises(RecordBatchError, match="offsets go from 0"):
        write_base_offset(bytearray(batch()), base_offset)
    with pytest.raises(RecordBatchError, match="offsets go from 0"):
        decode_envelope(foreign_batch(base_offset=base_offset))
    with pytest.raises(RecordBatchError, match="offsets go from 0"):
        batch(base_offset=base_offset)


def test_peeking_needs_exactly_one_batch_of_any_base_offset():
    unassigned = foreign_batch(base_offset=-1, properties=[("body_bytes", "4")])
    assert peek_batch(unassigned).record_count == 3
    assert peek_batch(memoryview(unassigned)).length_bytes == len(unassigned)
    with pytest.raises(RecordBatchError, match="nothing after it"):
        peek_batch(unassigned + b"\0")
    with pytest.raises(RecordBatchError, match="body of '4' bytes"):
        peek_batch(unassigned[:-1])


def test_metadata_has_a_limit():
    meta_bytes = limits.BATCH_METADATA_BYTES_MAX + 1
    encoded = struct.pack(">Bqi", 0x22, 0, meta_bytes) + bytes(meta_bytes)
    with pytest.raises(RecordBatchError, match=f"expected 1 to {limits.BATCH_METADATA_BYTES_MAX}"):
        decode_envelope(encoded)


def test_batches_of_a_kind_are_recognised_and_each_has_its_own_numbers():
    for number in range(1, 10):
        body = bytes(number)
        encoded = encode_envelope(
            [body],
            stream_id=100 - number,
            record_count=number,
            base_timestamp_ms=number * 10**12,
            encoding="columns",
            schema_fingerprint="abc",
            timestamp_column="time" if number % 2 else "when",
        )
        found = decode_envelope(encoded)
        assert (found.stream_id, found.record_count) == (100 - number, number)
        assert found.base_timestamp_ms == number * 10**12
        assert (found.encoding, found.schema_fingerprint) == ("columns", "abc")
        assert found.timestamp_column == ("time" if number % 2 else "when")
        assert bytes(found.body) == body


@pytest.mark.parametrize(
    "encoded",
    [
        batch(),
        foreign_batch(
            properties=[("body_bytes", "9"), ("x", "y"), ("body_bytes", "4")], base_timestamp=5
        ),
        foreign_batch(properties=[("base_timestamp", "9"), ("body_bytes", "4")]),
    ],
)
def test_every_damaged_byte_of_a_known_kind_reads_as_if_it_were_unknown(encoded):
    layouts = {each: LAYOUTS[each] for each in (RecordBatchMeta, KeyValue)}  # few: quick to make

    def outcome(data, schema):
        try:
            return read_meta(data, schema)
        except HeaderError as error:
            return str(error)

    recognised_count = 0
    meta = encoded[13 : 13 + int.from_bytes(encoded[9:13], "big")]
    for at in range(len(meta)):
        for flip in (1, 0x10, 0x80, 0xFF):
            damaged = meta[:at] + bytes([meta[at] ^ flip]) + meta[at + 1 :]
            unknown, known = Schema(layouts), Schema(layouts)
            read_meta(meta, known)
            recognised_count += known.maybe_recognise(RecordBatchMeta, damaged) is not None
            assert outcome(damaged, known) == outcome(damaged, unknown), (at, flip)
    assert 50 < recognised_count < len(meta)


def test_batches_have_a_limit():
    too_long = bytes(LARGEST.batch_bytes)
    with pytest.raises(RecordBatchError, match="spread them over several batches"):
        batch(too_long)
    with pytest.raises(RecordBatchError, match=f"at most {LARGEST.batch_bytes}"):
        decode_envelope(foreign_batch(too_long))
    overhead = len(foreign_batch(b""))
    largest = foreign_batch(bytes(LARGEST.batch_bytes - overhead))
    assert decode_envelope(largest).length_bytes == LARGEST.batch_bytes
