"""The columns of a Parquet or Arrow file, in the types as which Spark reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from sbp_core.errors import ConfigurationError
from sbp_core.regular_files import open_regular

_PARQUET_MAGIC: Final = b"PAR1"
_ARROW_MAGIC: Final = b"ARROW1"
_INT96: Final = "INT96"

_SPARK_READS: Final[dict[pa.DataType, pa.DataType]] = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20),
}
"""The types that Spark reads other types as."""


def read_file_schema(path: Path) -> pa.Schema:
    """Return the columns of a Parquet file, or of an Arrow IPC file or stream.

    Raises ConfigurationError for any other file.
    """
    try:
        with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
            magic = file.read(len(_ARROW_MAGIC))
            file.seek(0)
            leaves: Iterator[str] = repeat("")
            if magic.startswith(_PARQUET_MAGIC):
                parquet = pq.ParquetFile(file)
                found, leaves = parquet.schema_arrow, iter(_physical_types(parquet))
            elif magic == _ARROW_MAGIC:
                found = pa.ipc.open_file(file).schema
            else:
                found = pa.ipc.open_stream(file).schema
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno:
            raise ConfigurationError(
                f"{path} cannot be read: {os.strerror(error.errno)}"
            ) from error
        raise ConfigurationError(
            f"{path} cannot be read as Parquet, Arrow file or Arrow stream: {error}"
        ) from error
    return pa.schema([_field(each, leaves) for each in found])


def _physical_types(file: pq.ParquetFile) -> list[str]:
    """Return the physical type of each leaf column, in the order of the schema."""
    return [file.schema.column(index).physical_type for index in range(len(file.schema))]


def _field(given: pa.Field, leaves: Iterator[str]) -> pa.Field:
    return pa.field(given.name, _type(given.type, leaves), nullable=given.nullable)


def _type(given: pa.DataType, leaves: Iterator[str]) -> pa.DataType:
    """Return the type that Spark reads; `leaves` has the physical types of Parquet's leaf columns.

    Times of Parquet's old INT96 are in UTC for Spark; Arrow gives them no zone.
    """
    if pa.types.is_struct(given):
        return pa.struct([_field(each, leaves) for each in given])
    if pa.types.is_map(given):
        return pa.map_(_field(given.key_field, leaves), _field(given.item_field, leaves))
    if _is_list(given):
        return pa.list_(_field(given.value_field, leaves))
    leaf = next(leaves)
    if pa.types.is_dictionary(given):
        given = given.value_type
    if pa.types.is_timestamp(given):
        is_zoned = leaf == _INT96 or given.tz is not None
        return pa.timestamp("us", tz="UTC" if is_zoned else None)
    if pa.types.is_fixed_size_binary(given):
        return pa.binary()
    return _SPARK_READS.get(given, given)


def _is_list(given: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(given)
        or pa.types.is_large_list(given)
        or pa.types.is_fixed_size_list(given)
    )
