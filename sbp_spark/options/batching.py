"""How rows are put together to record batches."""

from __future__ import annotations

from dataclasses import dataclass

from sbp_core import limits
from sbp_core.records import Compression
from sbp_spark.options.reading import OptionReader


@dataclass(frozen=True, slots=True)
class Batching:
    """When a record batch is full: of octets, of records, or `linger_ms` after its first row."""

    target_bytes: int = limits.BATCH_TARGET_BYTES
    records_max: int = limits.BATCH_RECORDS_MAX
    linger_ms: int | None = None
    compression: Compression = "none"


def read_batching(reader: OptionReader) -> Batching:
    """Return how rows are put together."""
    target_bytes = reader.maybe_size_bytes("batchBytes") or limits.BATCH_TARGET_BYTES
    if target_bytes > limits.RECORD_BYTES_MAX:
        expected = f"{limits.RECORD_BYTES_MAX} octets at most, which is what a server takes"
        reader.add_fault("batchBytes", f"is {target_bytes}", expected, "give less")
    records_max = reader.maybe_count("batchRecords") or limits.BATCH_RECORDS_MAX
    if records_max > limits.BATCH_RECORDS_MAX:
        expected = f"{limits.BATCH_RECORDS_MAX} at most, which is what a server takes"
        reader.add_fault("batchRecords", f"is {records_max}", expected, "give less")
    linger_ms = reader.maybe_duration_ms("lingerDuration")
    words: dict[str, Compression] = {"none": "none", "lz4": "lz4", "zstd": "zstd"}
    compression = words[reader.choice("batchCompression", words, "none")]
    return Batching(target_bytes, records_max, linger_ms, compression)
