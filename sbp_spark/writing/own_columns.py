"""Which columns of a DataFrame are its own, and not what a source tells of records beside them."""

from __future__ import annotations

from pyspark.sql.types import DataType, StructType

from sbp_spark.column_schema import METADATA_COLUMN
from sbp_spark.reading.columns_layout import METADATA_FIELD


def without_metadata(schema: StructType) -> StructType:
    """Return the columns without `_metadata`, if that is a source's, or some of its fields."""
    return StructType(
        [
            field
            for field in schema
            if field.name != METADATA_COLUMN or not _is_of_source(field.dataType)
        ]
    )


def _is_of_source(kind: DataType) -> bool:
    if not isinstance(kind, StructType) or not isinstance(METADATA_FIELD.dataType, StructType):
        return False
    known = {field.name: field.dataType for field in METADATA_FIELD.dataType}
    return all(known.get(field.name) == field.dataType for field in kind)
