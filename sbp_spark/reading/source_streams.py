"""The streams that a source reads: which ones, their schemas, and the columns that Spark sees."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from sbp_core.client import Client, SchemaVersion, StreamInfo, newest_schemas
from sbp_core.errors import ConfigurationError, NotFoundError, SchemaError
from sbp_core.records import StreamSchema, union_schemas
from sbp_core.wording import listed
from sbp_spark.client_pool import describe_refs, first_contact
from sbp_spark.column_schema import METADATA_COLUMN, METADATA_FIELD
from sbp_spark.column_selection import select_columns
from sbp_spark.filtering.condition import Condition
from sbp_spark.filtering.resolving import RowFilter, row_filter
from sbp_spark.logical_types import logical_arrow_schema, logical_spark_schema
from sbp_spark.options.source import Contents, SourceEncoding, SourceOptions
from sbp_spark.options.stream_selection import StreamList, StreamPattern, StreamRef
from sbp_spark.reading.layout import Form, QueryColumns
from sbp_spark.reading.locating import check_option_positions
from sbp_spark.row_schema import (
    as_named,
    as_wide,
    check_selection,
    check_source_schema,
    source_schema,
)


def _newest_there(
    client: Client, stream_ids: Collection[int], *, is_required: bool
) -> dict[int, SchemaVersion]:
    """Return the newest schemas of the streams that still exist, by id. Raises SbpError."""
    try:
        return newest_schemas(client, stream_ids, is_required=is_required)
    except NotFoundError:  # deleted since it was selected; reading it raises the error
        there = [info.stream_id for info in client.find_streams([*stream_ids])]
        return newest_schemas(client, there, is_required=is_required)


class StreamKinds:
    """Selects the matching streams that have a schema, or the matching streams without a schema.

    A stream without a schema may get a schema as long as it has no records. A stream never loses
    its schema, so a stream that has a schema is not asked about again.
    """

    def __init__(self, *, is_typed_wanted: bool) -> None:
        self.is_typed_wanted = is_typed_wanted
        self._typed: set[int] = set()
        self._matching: Mapping[int, StreamInfo] = {}
        self._selected: Mapping[int, StreamInfo] = {}

    @property
    def is_open(self) -> bool:
        """Whether streams that match may come to be selected by getting a schema."""
        return self.is_typed_wanted and len(self._selected) < len(self._matching)

    def select(
        self, client: Client, matching: Mapping[int, StreamInfo]
    ) -> Mapping[int, StreamInfo]:
        """Return the streams that are of the kind now. Raises SbpError."""
        self._matching = matching
        return self.select_again(client)

    def select_again(self, client: Client) -> Mapping[int, StreamInfo]:
        """Return the same for the same streams; the same object if nothing has changed."""
        typed = self.find_typed(client, self._matching)
        selected = {
            stream_id: info
            for stream_id, info in self._matching.items()
            if (stream_id in typed) == self.is_typed_wanted
        }
        if selected != self._selected:
            self._selected = selected
        return self._selected

    def find_typed(self, client: Client, stream_ids: Collection[int]) -> Collection[int]:
        """Return the streams, these and others, that are known to have a schema now."""
        unknown = [each for each in stream_ids if each not in self._typed]
        found = _newest_there(client, unknown, is_required=self.is_typed_wanted)
        self._typed.update(found)
        return self._typed


def maybe_kinds(options: SourceOptions) -> StreamKinds | None:
    """Return the selection by kind; None unless a pattern is given beside rows or columns."""
    encoding = options.contents.encoding
    if not isinstance(options.selection, StreamPattern) or encoding is SourceEncoding.AUTO:
        return None
    return StreamKinds(is_typed_wanted=encoding is SourceEncoding.COLUMNS)


def select_streams(options: SourceOptions) -> Mapping[int, StreamInfo]:
    """Return the streams that are to be read, by id, asking for the first time.

    Raises SbpError if the placement driver does not answer, if any that is named is missing or
    named twice, or when positions are given for others.
    """
    selection = options.selection
    if isinstance(selection, StreamPattern):
        kinds = maybe_kinds(options)
        with first_contact(options.servers) as client:
            matching = find_matching(client, selection)
            return matching if kinds is None else kinds.select(client, matching)
    infos = describe_refs(options.servers, selection.refs, selection.option)
    _check_distinct(selection, infos)
    check_option_positions(options, infos)
    return {info.stream_id: info for info in infos}


def find_matching(client: Client, pattern: StreamPattern) -> dict[int, StreamInfo]:
    """Return the streams that match, by id. Raises SbpError."""
    return {info.stream_id: info for info in client.list_streams() if pattern.matches(info.name)}


def _check_distinct(selection: StreamList, infos: Sequence[StreamInfo]) -> None:
    seen: dict[int, StreamRef] = {}
    faults = []
    for ref, info in zip(selection.refs, infos, strict=True):
        if info.stream_id in seen:
            faults.append(f"{seen[info.stream_id]} and {ref} (id {info.stream_id})")
        seen.setdefault(info.stream_id, ref)
    if faults:
        raise ConfigurationError(
            f"option {selection.option}: these are one and the same stream: {listed(faults, '; ')};"
            " name each stream once"
        )


@dataclass(frozen=True, slots=True)
class SourceColumns:
    """The columns of a source, for Spark, and in which form records have them.

    `schema` has the columns that the option `columns` selects, and `whole` has all columns. Rows
    that do not match `where` are left out.
    """

    schema: StructType
    form: Form
    whole: StructType
    where: Condition | None = None

    def check(self, given: StructType) -> None:
        """Raise ConfigurationError, naming all faults, unless `given` can be read.

        Columns of typed streams may be asked for in wider types than they have there.
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

    def for_query(self, given: StructType) -> QueryColumns:
        """Return how to make the columns `given`. Raises ConfigurationError as `check` does."""
        self.check(given)
        there = self.schema if self.form.is_typed else source_schema(include_headers=True)
        named = as_named(given, there)
        renamed = None if named == given else logical_arrow_schema(named)
        return QueryColumns(self.form, renamed, self.maybe_filter(given))

    def maybe_filter(self, given: StructType) -> RowFilter | None:
        """Return what filters the rows of a query with the columns `given`, which were checked.

        Raises ConfigurationError if the condition does not fit the columns.
        """
        if self.where is None:
            return None
        named = logical_arrow_schema(as_named(given, self.whole))
        return row_filter(self.where, named, logical_arrow_schema(self.whole))


def find_columns(
    client: Client, options: SourceOptions, streams: Mapping[int, StreamInfo]
) -> SourceColumns:
    """Return the columns that the streams have now. The options have selected the streams.

    Raises ConfigurationError if options ask for columns that the streams do not have, and
    SchemaError naming the streams whose schemas do not go together.
    """
    contents = options.contents
    is_typed_wanted = contents.encoding is SourceEncoding.COLUMNS
    newest = (
        {}
        if contents.encoding is SourceEncoding.ROWS
        else _newest_there(client, streams, is_required=is_typed_wanted)
    )
    if newest:
        return _typed(contents, newest, streams)
    if is_typed_wanted:
        names = listed([each.label for each in streams.values()]) or "there are none"
        raise ConfigurationError(
            f"option encoding: none of the streams ({names}) has a schema, so there are no columns"
            " to read; write to one with encoding=columns first, or set encoding=rows"
        )
    if contents.include_metadata:
        raise ConfigurationError(
            "option includeMetadata: no stream has a schema, and rows have these columns"
            " anyway; remove it"
        )
    rows = source_schema(include_headers=True)
    schema = source_schema(include_headers=contents.include_headers)
    if contents.columns is not None:
        schema = select_columns(rows, contents.columns)
    return SourceColumns(schema, Form.ROWS, rows, contents.where)


def _typed(
    contents: Contents, newest: Mapping[int, SchemaVersion], streams: Mapping[int, StreamInfo]
) -> SourceColumns:
    if contents.include_headers:
        raise ConfigurationError(
            "option includeHeaders: the streams have schemas, so columns are read, and those have"
            " no headers; remove it, or set encoding=rows"
        )
    named = {streams[each].label: version.schema for each, version in newest.items()}
    # A schema may drop a requirement while the query runs.
    whole = schema = _nullable(logical_spark_schema(_union(named).arrow))
    if contents.columns is not None:
        schema = select_columns(schema, contents.columns)
    if not contents.include_metadata:
        return SourceColumns(schema, Form.COLUMNS, whole, contents.where)
    if METADATA_COLUMN in map(str.lower, whole.names):
        raise ConfigurationError(
            f"option includeMetadata: the streams have a column {METADATA_COLUMN} of their own;"
            " remove the option, or write to other streams without that column"
        )
    return SourceColumns(
        StructType([*schema.fields, METADATA_FIELD]),
        Form.COLUMNS_WITH_METADATA,
        StructType([*whole.fields, METADATA_FIELD]),
        contents.where,
    )


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
                    f"streams {first} and {second} cannot be read together: in {second}, compared"
                    f" with {first}, {error}\nRead each alone, cast, and union them in Spark"
                )
    return None
