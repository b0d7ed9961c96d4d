"""Which columns a source has: those of rows, or those that the schemas of its streams have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from sbp_core.client import Client, SchemaVersion, StreamInfo
from sbp_core.errors import ConfigurationError, SchemaError
from sbp_core.records import StreamSchema, union_schemas
from sbp_spark.column_schema import METADATA_COLUMN, METADATA_FIELD
from sbp_spark.logical_types import logical_spark_schema
from sbp_spark.options import Contents, SourceEncoding, SourceOptions
from sbp_spark.reading.layout import Form
from sbp_spark.reading.locating import display_name
from sbp_spark.reading.source_streams import newest_schemas
from sbp_spark.reporting import listed
from sbp_spark.row_schema import check_source_schema, source_arrow_schema, source_schema
from sbp_spark.selection import as_named, as_wide, check_selection


@dataclass(frozen=True, slots=True)
class SourceColumns:
    """The columns of a source, for Spark, and in which form records have them."""

    schema: StructType
    form: Form

    def check(self, given: StructType) -> None:
        """Raise ConfigurationError, naming all faults, unless `given` can be read.

        Of typed streams they may be wider than they are there.
        """
        if not self.form.is_typed:
            check_source_schema(given, include_headers="headers" in self.schema.names)
            return
        faults = []
        if self.form is Form.COLUMNS_WITH_METADATA and METADATA_COLUMN not in map(
            str.lower, given.names
        ):
            faults.append(f"column {METADATA_COLUMN} is left out, but includeMetadata asks for it")
        check_selection(
            given,
            self.schema,
            check=as_wide,
            more_faults=faults,
            remark="; as the schemas of the streams are now: if they have changed, load again",
        )

    def maybe_renamed(self, given: StructType) -> pa.Schema | None:
        """Return the columns `given`, which were checked, in Arrow and as they are named here.

        None if they are named so.
        """
        there = self.schema if self.form.is_typed else source_schema(include_headers=True)
        named = as_named(given, there)
        return None if named == given else source_arrow_schema(named)


def find_columns(
    client: Client, options: SourceOptions, streams: Mapping[int, StreamInfo]
) -> SourceColumns:
    """Return the columns of the streams, which are those that the options select, as they are now.

    Raises ConfigurationError where options ask for what the streams have not, SchemaError naming
    the streams whose schemas do not go together.
    """
    contents = options.contents
    is_typed_wanted = contents.encoding is SourceEncoding.COLUMNS
    newest = (
        {}
        if contents.encoding is SourceEncoding.ROWS
        else newest_schemas(client, streams, is_required=is_typed_wanted)
    )
    if newest:
        return _typed(contents, newest, streams)
    if is_typed_wanted:
        names = listed([display_name(each) for each in streams.values()]) or "there are none"
        raise ConfigurationError(
            f"option encoding: none of the streams ({names}) has a schema, so there are no columns;"
            " write to one with encoding=columns first, or read rows"
        )
    if contents.include_metadata:
        raise ConfigurationError(
            "option includeMetadata: no stream has a schema, and rows have these columns of"
            " themselves; remove it"
        )
    return SourceColumns(source_schema(include_headers=contents.include_headers), Form.ROWS)


def _typed(
    contents: Contents, newest: Mapping[int, SchemaVersion], streams: Mapping[int, StreamInfo]
) -> SourceColumns:
    if contents.include_headers:
        raise ConfigurationError(
            "option includeHeaders: the streams have schemas, so columns are read, and those have"
            " no headers; remove it, or set encoding=rows"
        )
    named = {display_name(streams[each]): version.schema for each, version in newest.items()}
    # What a schema requires today it may not require tomorrow, while the query runs.
    schema = _nullable(logical_spark_schema(_union(named).arrow))
    if not contents.include_metadata:
        return SourceColumns(schema, Form.COLUMNS)
    if METADATA_COLUMN in map(str.lower, schema.names):
        raise ConfigurationError(
            f"option includeMetadata: the streams have a column {METADATA_COLUMN} of their own;"
            " remove the option, or write to other streams without that column"
        )
    return SourceColumns(StructType([*schema.fields, METADATA_FIELD]), Form.COLUMNS_WITH_METADATA)


def _nullable(schema: StructType) -> StructType:
    """Return the columns and all that is in them without not null; keys of maps always have one."""
    return StructType(
        [
            StructField(each.name, _nullable_type(each.dataType), metadata=each.metadata)
            for each in schema
        ]
    )


def _nullable_type(kind: DataType) -> DataType:
    match kind:
        case StructType():
            return _nullable(kind)
        case ArrayType():
            return ArrayType(_nullable_type(kind.elementType))
        case MapType():
            return MapType(kind.keyType, _nullable_type(kind.valueType))
    return kind


def _union(named: Mapping[str, StreamSchema]) -> StreamSchema:
    """Return the columns of all streams, by their names."""
    distinct: dict[str, str] = {}
    for name, schema in named.items():
        distinct.setdefault(schema.fingerprint, name)
    names = list(distinct.values())
    try:
        return union_schemas([named[name] for name in names])
    except SchemaError as error:
        raise _contradiction(named, names) or error from None


def _contradiction(named: Mapping[str, StreamSchema], names: Sequence[str]) -> SchemaError | None:
    """Return an error that names the first two streams whose schemas do not go together."""
    for index, second in enumerate(names):
        for first in names[:index]:
            try:
                union_schemas([named[first], named[second]])
            except SchemaError as error:
                return SchemaError(
                    f"streams {first} and {second} cannot be read together: of {second}, beside"
                    f" {first}, {error}\nRead them one by one, cast, and unite them in Spark"
                )
    return None
