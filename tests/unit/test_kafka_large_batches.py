"""Record batches that producers send and that are more than a stream takes at a time."""

import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from sbp_core import limits
from sbp_core.kafka.record_sets import TooLargeError, read_producer_batch

CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
COUNT_AT = 57


def batch(value: bytes, codec: int = 0, count: int = 1) -> bytearray:
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 30)
    for index in range(count):
        builder.append(index, 1, None, value, [])
    return bytearray(builder.build())


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_compressed_records_of_any_codec_are_read(codec):
    read = read_producer_batch(batch(b"v" * 1_000, codec, count=10), None)
    assert read.rows.column("value").to_pylist() == [b"v" * 1_000] * 10


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_records_that_are_too_large_decompressed_are_told_from_damaged_ones(codec):
    sent = batch(b"v" * (limits.BATCH_BYTES_MAX // 8), codec, count=9)
    assert len(sent) < limits.MIB
    with pytest.raises(TooLargeError):
        read_producer_batch(sent, None)


def test_a_producer_may_send_fewer_than_too_many_records():
    sent = batch(b"v")
    struct.pack_into(">i", sent, COUNT_AT, limits.BATCH_RECORDS_MAX + 1)
    with pytest.raises(TooLargeError, match="at most"):
        read_producer_batch(bytes(sent), None)
