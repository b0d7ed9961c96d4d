"""Record batches as other clients write them."""

import struct

from sbp_core.records.encodings.sequence import encode_sequence_record
from sbp_core.wire._generated import LAYOUTS, RecordBatchMeta, RecordMeta
from sbp_core.wire.flat import Schema

TIME_MS = 1_700_000_000_000


def sequence_batch(values, *, delta=None, base_offset=0, headers=(), properties=()):
    """A batch as other clients write it: no padding, no properties."""
    meta = Schema(LAYOUTS).encode(
        RecordBatchMeta(
            stream_id=7,
            last_offset_delta=len(values) if delta is None else delta,
            base_timestamp=TIME_MS,
        )
    )
    records = b"".join(
        encode_sequence_record(
            RecordMeta(index, index, headers=headers, properties=properties), value
        )
        for index, value in enumerate(values)
    )
    return struct.pack(">bqi", 0x22, base_offset, len(meta)) + meta + records
