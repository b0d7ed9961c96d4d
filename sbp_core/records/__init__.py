"""Record batches: the envelope that servers read, and the rows inside that only clients read."""

from __future__ import annotations

import sbp_core.records.encodings.sequence_encoding  # noqa: F401 - registers the encoding
from sbp_core.records.arrow_body import Compression, record_sizes
from sbp_core.records.batch_merging import merge_batches
from sbp_core.records.batch_selection import NO_SELECTION, BatchExtent, Selection
from sbp_core.records.builder import BatchBuilder, ColumnsBuilder, RowsBuilder, record_too_large
from sbp_core.records.column_paths import find_column
from sbp_core.records.cutting import FRONT_BYTES, Cut, check_projections, known_front, maybe_cut
from sbp_core.records.encodings import accept_batch, decode_batch, encoding_of
from sbp_core.records.encodings.columns_encoding import decode_columns, encode_columns
from sbp_core.records.encodings.rows_encoding import (
    ROWS_SCHEMA,
    encode_rows,
    maybe_kept_rows,
    offsets_array,
)
from sbp_core.records.envelope import (
    Envelope,
    are_same,
    decode_envelope,
    digest_batch,
    encode_envelope,
    peek_batch,
    with_base_offset,
    write_base_offset,
)
from sbp_core.records.evolution import (
    Change,
    Comparison,
    Difference,
    check_evolution,
    compare_schemas,
    map_columns,
    merge_schemas,
    union_schemas,
)
from sbp_core.records.order_keys import order_key
from sbp_core.records.projection import KeptColumns, Projection, maybe_kept_columns
from sbp_core.records.skipping import BatchFilter, batch_filter, check_filters
from sbp_core.records.slicing import slice_plain
from sbp_core.records.small_batches import Run, decode_batches, maybe_columns_together, small_runs
from sbp_core.records.splitting import split_envelopes
from sbp_core.records.statistics import (
    ColumnBounds,
    encode_statistics,
    may_match,
    maybe_statistics_type,
)
from sbp_core.records.stream_schema import (
    StreamSchema,
    decode_stream_schema,
    field_text,
    maybe_logical_type,
    schema_text,
    with_logical_type,
)

__all__ = [
    "FRONT_BYTES",
    "NO_SELECTION",
    "ROWS_SCHEMA",
    "BatchBuilder",
    "BatchExtent",
    "BatchFilter",
    "Change",
    "ColumnBounds",
    "ColumnsBuilder",
    "Comparison",
    "Compression",
    "Cut",
    "Difference",
    "Envelope",
    "KeptColumns",
    "Projection",
    "RowsBuilder",
    "Run",
    "Selection",
    "StreamSchema",
    "accept_batch",
    "are_same",
    "batch_filter",
    "check_evolution",
    "check_filters",
    "check_projections",
    "compare_schemas",
    "decode_batch",
    "decode_batches",
    "decode_columns",
    "decode_envelope",
    "decode_stream_schema",
    "digest_batch",
    "encode_columns",
    "encode_envelope",
    "encode_rows",
    "encode_statistics",
    "encoding_of",
    "field_text",
    "find_column",
    "known_front",
    "map_columns",
    "may_match",
    "maybe_columns_together",
    "maybe_cut",
    "maybe_kept_columns",
    "maybe_kept_rows",
    "maybe_logical_type",
    "maybe_statistics_type",
    "merge_batches",
    "merge_schemas",
    "offsets_array",
    "order_key",
    "peek_batch",
    "record_sizes",
    "record_too_large",
    "schema_text",
    "slice_plain",
    "small_runs",
    "split_envelopes",
    "union_schemas",
    "with_base_offset",
    "with_logical_type",
    "write_base_offset",
]
