"""The streams that a source reads: which ones, their schemas, and the columns that Spark sees."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from sbp_core.client import Client, SchemaVersion, StreamBounds, StreamInfo
from sbp_core.errors import (
    ConfigurationError,
    ConnectError,
    DeadlineExceededError,
    NotFoundError,
    SbpError,
    SchemaError,
    TransportError,
    UnsupportedError,
)
from sbp_core.records import StreamSchema, union_schemas
from sbp_spark.client_pool import Patience, client_for
from sbp_spark.column_schema import METADATA_COLUMN, METADATA_FIELD
from sbp_spark.logical_types import logical_spark_schema
from sbp_spark.options import (
    AtCursor,
    Contents,
    OnDataLoss,
    Servers,
    SourceEncoding,
    SourceOptions,
    StreamList,
    StreamPattern,
    StreamRef,
)
from sbp_spark.reading.layout import Form
from sbp_spark.reading.locating import (
    check_inside,
    check_positions,
    display_name,
    find_offsets,
    positions_of,
)
from sbp_spark.reporting import listed
from sbp_spark.row_schema import (
    as_named,
    as_wide,
    check_selection,
    check_source_schema,
    source_arrow_schema,
    source_schema,
)


def newest_schemas(
    client: Client, stream_ids: Collection[int], *, is_required: bool
) -> dict[int, SchemaVersion]:
    """Return the newest schema of each stream that has one, by id.

    A placement driver that knows no schemas has none, unless they are required. Raises SbpError.
    """
    if not stream_ids:
        return {}
    try:
        found = client.describe_schemas(list(stream_ids), newest_only=True)
    except UnsupportedError:
        if is_required:
            raise
        return {}
    except NotFoundError:  # deleted since it was selected; whoever reads it says so
        there = [each.stream_id for each in client.list_streams() if each.stream_id in stream_ids]
        found = client.describe_schemas(there, newest_only=True)
    return {stream_id: versions[-1] for stream_id, versions in found.items() if versions}


class StreamKinds:
    """Selects, of streams that match, those of one kind: with a schema, or without.

    A stream without a schema may get one as long as it has no records. It never loses it again, so
    it is asked for only until then.
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
        """Return which of the streams are of the kind now. Raises SbpError."""
        self._matching = matching
        return self.select_again(client)

    def select_again(self, client: Client) -> Mapping[int, StreamInfo]:
        """Return which of the same streams are; the same object if nothing has changed."""
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
        found = newest_schemas(client, unknown, is_required=self.is_typed_wanted)
        self._typed.update(found)
        return self._typed


def maybe_kinds(options: SourceOptions) -> StreamKinds | None:
    """Return what selects streams by their kind: for a pattern beside an encoding of its own."""
    encoding = options.contents.encoding
    if not isinstance(options.selection, StreamPattern) or encoding is SourceEncoding.AUTO:
        return None
    return StreamKinds(is_typed_wanted=encoding is SourceEncoding.COLUMNS)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raise SbpErrors without what led to them: Spark prints the whole chain to the user."""
    try:
        yield
    except SbpError as error:
        raise error.with_traceback(None) from None


@contextmanager
def first_contact(servers: Servers) -> Iterator[Client]:
    """Give a client of little patience; if nobody answers, ConnectError says what to look at."""
    try:
        yield client_for(servers, Patience.STARTING)
    except (TransportError, DeadlineExceededError) as error:
        raise ConnectError(
            f"option endpoint: no placement driver answers at {servers}; is `sbp serve` running"
            f" there? ({error.__cause__ or error})"
        ) from None


def describe_refs(servers: Servers, refs: Sequence[StreamRef], option: str) -> list[StreamInfo]:
    """Return the streams that an option names, asking the placement driver for the first time.

    Raises NotFoundError naming all that are missing, ConnectError when nobody answers.
    """
    with first_contact(servers) as client:
        if not refs:
            client.ping()
            return []
        try:
            return client.describe_streams(wanted(refs))
        except NotFoundError as error:
            raise NotFoundError(
                error.code,
                f"option {option}: {error.message}; on the command line:"
                f" `sbp streams create NAME --endpoint {servers}` and"
                f" `sbp streams list --endpoint {servers}`; a stream that was renamed has its new"
                " name, or its id",
            ) from None


def existing_streams(client: Client, refs: Collection[int | str]) -> dict[int, StreamInfo]:
    """Return, by id, those of the streams named by id or name that exist. Raises SbpError."""
    try:
        infos = client.describe_streams(list(refs))
    except NotFoundError:
        infos = [each for each in client.list_streams() if {each.stream_id, each.name} & {*refs}]
    return {info.stream_id: info for info in infos}


def wanted(refs: Sequence[StreamRef]) -> list[int | str]:
    """Return how a client takes references: ids as numbers."""
    return [ref.text if ref.maybe_id is None else ref.maybe_id for ref in refs]


def select_streams(options: SourceOptions) -> Mapping[int, StreamInfo]:
    """Return the streams that are to be read, by id, asking for the first time.

    Raises SbpError when nobody answers, when any that is named is missing or named twice, or when
    positions are given for others.
    """
    selection = options.selection
    if isinstance(selection, StreamPattern):
        with first_contact(options.servers) as client:
            return select_matching(client, selection, maybe_kinds(options))
    infos = describe_refs(options.servers, selection.refs, selection.option)
    _check_distinct(selection, infos)
    check_option_positions(options, infos)
    return {info.stream_id: info for info in infos}


def select_matching(
    client: Client, pattern: StreamPattern, kinds: StreamKinds | None
) -> Mapping[int, StreamInfo]:
    """Return the streams that match, and are of the kind if only one is wanted. Raises SbpError."""
    matching = {
        info.stream_id: info for info in client.list_streams() if pattern.matches(info.name)
    }
    return matching if kinds is None else kinds.select(client, matching)


def _check_distinct(selection: StreamList, infos: Sequence[StreamInfo]) -> None:
    seen: dict[int, StreamRef] = {}
    faults = []
    for ref, info in zip(selection.refs, infos, strict=True):
        if info.stream_id in seen:
            faults.append(f"{seen[info.stream_id]} and {ref} (id {info.stream_id})")
        seen.setdefault(info.stream_id, ref)
    if faults:
        raise ConfigurationError(
            f"option {selection.option}: these are one and the same stream: {'; '.join(faults)};"
            " name each stream once"
        )


def check_option_positions(options: SourceOptions, infos: Collection[StreamInfo]) -> None:
    """Raise ConfigurationError where JSON in the options does not name exactly the streams."""
    check_positions(options.starting, infos)
    if options.ending is not None:
        check_positions(options.ending, infos)


def starting_offsets(
    client: Client,
    options: SourceOptions,
    bounds: Mapping[int, StreamBounds],
    streams: Mapping[int, StreamInfo],
    *,
    late_since_ms: Mapping[int, int] | None = None,
    timeout_ms: int | None = None,
) -> dict[int, int]:
    """Return the first offset to read of each stream of `bounds`, which are some of `streams`.

    One that was trimmed is returned if that is not to fail, or is for others to judge: a cursor is
    where records were to be read. `late_since_ms` is since when a query that runs has waited for
    the streams, by id; others may have come and gone. With a `timeout_ms` those that start at a
    time which their servers do not find in it are left out. Raises SbpError.
    """
    if late_since_ms is None:
        check_option_positions(options, streams.values())
    starts = find_offsets(
        client,
        options.starting,
        bounds,
        streams,
        late_since_ms=late_since_ms,
        timeout_ms=timeout_ms,
    )
    is_loss_allowed = options.on_data_loss is not OnDataLoss.FAIL
    trimmed_allowed = [
        stream_id
        for stream_id, position in positions_of(options.starting, streams.values()).items()
        if is_loss_allowed or isinstance(position, AtCursor)
    ]
    check_inside(options.starting.option, starts, bounds, streams, trimmed_allowed=trimmed_allowed)
    return starts


def ending_offsets(
    client: Client,
    options: SourceOptions,
    bounds: Mapping[int, StreamBounds],
    streams: Mapping[int, StreamInfo],
) -> dict[int, int]:
    """Return where a batch ends in each stream. Raises SbpError."""
    if options.ending is None:
        return {stream_id: bound.next_offset for stream_id, bound in bounds.items()}
    ends = find_offsets(client, options.ending, bounds, streams)
    check_inside(options.ending.option, ends, bounds, streams)
    return ends


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
