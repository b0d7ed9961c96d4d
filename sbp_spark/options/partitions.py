"""How large a task's share of a read is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sbp_core.limits import MIB
from sbp_spark.options.reading import OptionReader

RECORDS_PER_PARTITION_DEFAULT: Final = 1_000_000
FETCH_BUFFER_BYTES_DEFAULT: Final = 16 * MIB


@dataclass(frozen=True, slots=True)
class PartitionLimits:
    """Bounds of one input partition, how many there are at least, and what a task reads ahead."""

    records_max: int = RECORDS_PER_PARTITION_DEFAULT
    bytes_max: int | None = None
    count_min: int = 1
    buffer_bytes: int = FETCH_BUFFER_BYTES_DEFAULT


def read_partition_limits(reader: OptionReader) -> PartitionLimits:
    """Return the bounds; after a fault the result has no meaning."""
    return PartitionLimits(
        reader.maybe_count("maxRecordsPerPartition") or RECORDS_PER_PARTITION_DEFAULT,
        reader.maybe_size_bytes("maxBytesPerPartition"),
        reader.maybe_count("minPartitions") or 1,
        reader.maybe_size_bytes("fetchBufferBytes") or FETCH_BUFFER_BYTES_DEFAULT,
    )
