"""How large a task's share of a read is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sbp_core.limits import MIB
from sbp_spark.options.reading import OptionReader

RECORDS_PER_PARTITION_DEFAULT: Final = 1_000_000
FETCH_BUFFER_BYTES_DEFAULT: Final = 16 * MIB
PARTITIONS_MAX: Final = 10_000
"""Beyond so many, input partitions get larger instead: Spark's driver keeps each in memory, and a
server may claim that a stream has any number of records."""


@dataclass(frozen=True, slots=True)
class PartitionLimits:
    """Bounds of one input partition, how many there are at least, and what a task reads ahead."""

    records_max: int = RECORDS_PER_PARTITION_DEFAULT
    bytes_max: int | None = None
    count_min: int = 1
    buffer_bytes: int = FETCH_BUFFER_BYTES_DEFAULT


def read_partition_limits(reader: OptionReader) -> PartitionLimits:
    """Return the bounds; after a fault the result has no meaning."""
    records_max = reader.maybe_count("maxRecordsPerPartition") or RECORDS_PER_PARTITION_DEFAULT
    bytes_max = reader.maybe_size_bytes("maxBytesPerPartition")
    count_min = reader.maybe_count("minPartitions") or 1
    if count_min > PARTITIONS_MAX:
        expected = f"{PARTITIONS_MAX} at most, which Spark's driver can keep in memory"
        reader.add_fault("minPartitions", f"is {count_min}", expected, "give less")
    return PartitionLimits(
        records_max,
        bytes_max,
        count_min,
        reader.maybe_size_bytes("fetchBufferBytes") or FETCH_BUFFER_BYTES_DEFAULT,
    )
