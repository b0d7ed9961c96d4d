"""The columns of files with tables, as Spark would write them to a stream."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from sbp_core.errors import ConfigurationError

_PARQUET_MAGIC: Final = b"PAR1"
_ARROW_MAGIC: Final = b"ARROW1"

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
"""What Spark has instead of types of others."""


def read_file_schema(path: Path) -> pa.Schema:
    """Return the columns of a Parquet file, or of an Arrow IPC file or stream.

    Raises ConfigurationError for any other file.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(len(_ARROW_MAGIC))
            file.seek(0)
            if magic.startswith(_PARQUET_MAGIC):
                found = pq.read_schema(file)
            elif magic == _ARROW_MAGIC:
                found = pa.ipc.open_file(file).schema
            else:
                found = pa.ipc.open_stream(file).schema
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigurationError(
            f"{path} cannot be read as Parquet, Arrow file or Arrow stream: {error}"
        ) from error
    return pa.schema([_field(each) for each in found])


def _field(given: pa.Field) -> pa.Field:
    return pa.field(given.name, _type(given.type), nullable=given.nullable)


def _type(given: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(given):
        return _type(given.value_type)
    if pa.types.is_timestamp(given):
        return pa.timestamp("us", tz=None if given.tz is None else "UTC")
    if pa.types.is_struct(given):
        return pa.struct([_field(each) for each in given])
    if pa.types.is_map(given):
        return pa.map_(_field(given.key_field), _field(given.item_field))
    if pa.types.is_list(given) or pa.types.is_large_list(given):
        return pa.list_(_field(given.value_field))
    return _SPARK_READS.get(given, given)
