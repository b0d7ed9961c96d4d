"""Record batches: the envelope that servers read, and the rows inside that only clients read."""

from __future__ import annotations

from sbp_core.records.builder import RowsBuilder, record_sizes
from sbp_core.records.decoding import decode_batch
from sbp_core.records.envelope import (
    Envelope,
    decode_envelope,
    encode_envelope,
    peek_batch,
    split_envelopes,
    with_base_offset,
    write_base_offset,
)
from sbp_core.records.rows import (
    ROWS_ENCODING,
    ROWS_SCHEMA,
    Compression,
    decode_rows,
    encode_rows,
    offsets_array,
)

__all__ = [
    "ROWS_ENCODING",
    "ROWS_SCHEMA",
    "Compression",
    "Envelope",
    "RowsBuilder",
    "decode_batch",
    "decode_envelope",
    "decode_rows",
    "encode_envelope",
    "encode_rows",
    "offsets_array",
    "peek_batch",
    "record_sizes",
    "split_envelopes",
    "with_base_offset",
    "write_base_offset",
]
