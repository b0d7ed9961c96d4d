"""Operations that change streams: update, trim, seal, and the versions of their schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sbp_core import limits
from sbp_core.client.operations.calls import Context, ask, ask_for_each, decode_reply, unanswered
from sbp_core.client.operations.metadata import (
    REPLICA_COUNT_MAX,
    check_named,
    check_spec,
    describe_streams,
    maybe_compare_and_set,
    property_tables,
    stream_info,
)
from sbp_core.client.operations.open_calls import Call, gather
from sbp_core.client.operations.range_placement import (
    by_server,
    check_errors,
    chunks,
    cut_by_weight,
    list_ranges,
    range_info,
    stream_weight,
)
from sbp_core.client.types import (
    RangeInfo,
    SchemaVersion,
    StreamInfo,
    StreamSpec,
    StreamUpdate,
    check_types,
)
from sbp_core.errors import (
    AlreadyExistsError,
    ConfigurationError,
    InvalidRequestError,
    NoRangeServerError,
    NotFoundError,
    Outcome,
    ProtocolError,
    RangeNotFoundError,
    SbpError,
    SchemaError,
    TransportError,
)
from sbp_core.records.evolution import compare_schemas, merge_schemas
from sbp_core.records.stream_schema import StreamSchema, decode_stream_schema
from sbp_core.session.negotiation import FeatureName
from sbp_core.wire.headers import (
    DescribeSchemasRequest,
    DescribeSchemasResponse,
    RangeId,
    RegisterSchemasRequest,
    RegisterSchemasResponse,
    SchemaEntry,
    SealCause,
    SealRangesRequest,
    SealRangesResponse,
    SealRangesResult,
    Stream,
    TrimmedStream,
    TrimStreamResult,
    TrimStreamsRequest,
    TrimStreamsResponse,
    UpdateStreamsRequest,
    UpdateStreamsResponse,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error, with_message


async def update_streams(context: Context, updates: Sequence[StreamUpdate]) -> list[StreamInfo]:
    """Change streams; return their new metadata, in the order of `updates`.

    Raises NotFoundError, and changes nothing, naming all missing streams. Raises
    ConditionFailedError for a stream without the expected properties; other streams are changed. An
    update with `expected_properties` is not sent again if its answer was lost: the outcome of the
    error is UNKNOWN then.
    """
    # SPEC "UPDATE_STREAMS"
    for update in updates:
        check_types(update)
        check_spec(
            StreamSpec(
                update.name,
                REPLICA_COUNT_MAX if update.replica_count is None else update.replica_count,
                ack_count=update.ack_count or 0,
                retention_period_ms=update.retention_period_ms or 0,
                retention_bytes=update.retention_bytes or 0,
            )
        )
    known = await describe_streams(context, [update.stream for update in updates])
    wanted = [_wanted(update, info) for update, info in zip(updates, known, strict=True)]
    updated: list[StreamInfo] = []
    for chunk in cut_by_weight(wanted, stream_weight, limits.STREAMS_PER_CALL):
        header = UpdateStreamsRequest(timeout_ms=context.timeout_ms, streams=tuple(chunk))
        results = await ask_for_each(
            context,
            Opcode.UPDATE_STREAMS,
            header,
            UpdateStreamsResponse,
            (len(chunk), "streams to update"),
            # The change itself may have made the condition false.
            is_repeatable=not any(each.expected_properties for each in chunk),
            feature=maybe_compare_and_set(chunk),
        )
        for stream, result in zip(chunk, results, strict=True):
            error = maybe_error(result.status)
            if error is not None:
                raise with_message(error, f"updating stream {stream.stream_id}: ")
            if result.updated_stream is None:
                raise unanswered(f"stream {stream.stream_id}")
            check_named(stream.name, result.updated_stream)
            updated.append(stream_info(result.updated_stream))
    return updated


def _wanted(update: StreamUpdate, known: StreamInfo) -> Stream:
    """Return the table of a stream with the wanted fields.

    Fields that do not change are sent with their known values: the first version of the protocol
    has no "leave it" for `retention_period_ms`. If properties change, the server knows "leave it".
    """
    retention_ms, retention_bytes = update.retention_period_ms, update.retention_bytes
    properties = property_tables(update.properties)
    expected = property_tables(update.expected_properties)
    known_ms, known_replicas = known.retention_period_ms, known.replica_count
    if properties or expected:  # such servers know "leave it"
        known_ms, known_replicas = -1, 0
    return Stream(
        stream_id=known.stream_id,
        replica_nums=update.replica_count or known_replicas,
        ack_count=update.ack_count or 0,
        name=update.name,
        retention_period_ms=known_ms if retention_ms is None else retention_ms,
        retention_bytes=-1 if retention_bytes is None else retention_bytes,
        properties=properties,
        expected_properties=expected,
    )


async def trim_streams(context: Context, offsets: Mapping[int, int]) -> dict[int, RangeInfo]:
    """Trim streams, by id, below an offset; return their first ranges.

    Raises OffsetOutOfRangeError for an offset beyond the tail. Offsets never go back.
    """
    # SPEC "TRIM_STREAMS"
    for stream_id, offset in offsets.items():
        if not 0 <= offset < 2**63:
            raise ConfigurationError(
                f"trim offset {offset} of stream {stream_id} is not an offset, 0 or more"
            )
    before = await list_ranges(context, list(offsets))
    smallest, errors = await _trim_metadata(context, offsets)
    parts = by_server({stream_id: before[stream_id] for stream_id in smallest})
    pieces = (piece for stream_id in smallest for piece in before[stream_id])
    only_servers = {each for piece in pieces if len(piece.servers) == 1 for each in piece.servers}
    replies = await gather(
        context.open_calls,
        [
            Call(
                server,
                Opcode.TRIM_STREAMS,
                _trim_header(context, {each: offsets[each] for each in part}),
                context.timeout_ms,
            )
            for server, part in parts
        ],
    )
    for (server, _), reply in zip(parts, replies, strict=True):
        try:
            for answer in decode_reply(reply, TrimStreamsResponse):
                for result in answer.streams:
                    _check_trimmed(result)
        except SbpError as error:
            if isinstance(error, TransportError) and server not in only_servers:
                continue  # the placement driver tells the server before it serves again
            half_done = with_message(
                error,
                f"TRIM_STREAMS at {server}: ",
                "; the placement driver has recorded the trim, repeat it for this server",
            )
            half_done.outcome = Outcome.UNKNOWN
            errors.append(half_done)
    if errors:
        raise errors[0]
    return smallest


async def _trim_metadata(
    context: Context, offsets: Mapping[int, int]
) -> tuple[dict[int, RangeInfo], list[SbpError]]:
    """Trim at the placement driver; return the first ranges, and the errors."""
    smallest: dict[int, RangeInfo] = {}
    errors: list[SbpError] = []
    for chunk in chunks(list(offsets)):
        header = _trim_header(context, {each: offsets[each] for each in chunk})
        wanted = len(chunk), "streams to trim"
        results = await ask_for_each(
            context, Opcode.TRIM_STREAMS, header, TrimStreamsResponse, wanted
        )
        for stream_id, result in zip(chunk, results, strict=True):
            context.router.forget(stream_id)
            error = maybe_error(result.status)
            if error is not None:
                errors.append(with_message(error, f"trimming stream {stream_id}: "))
            elif result.stream_range is None:
                errors.append(unanswered(f"stream {stream_id}"))
            else:
                smallest[stream_id] = range_info(result.stream_range)
    return smallest, errors


def _check_trimmed(result: TrimStreamResult) -> None:
    """Raise the error of a range server, unless it does not have the range."""
    error = maybe_error(result.status)
    if error is not None and not isinstance(error, RangeNotFoundError | NotFoundError):
        raise error


def _trim_header(context: Context, offsets: Mapping[int, int]) -> TrimStreamsRequest:
    return TrimStreamsRequest(
        timeout_ms=context.timeout_ms,
        trimmed_streams=tuple(TrimmedStream(*each) for each in offsets.items()),
    )


async def seal_streams(context: Context, stream_ids: Sequence[int]) -> dict[int, RangeInfo]:
    """Seal the open ranges of streams, by id; return the new open range of each."""
    # SPEC "SEAL_RANGE"
    known = await list_ranges(context, stream_ids)
    wanted = [
        RangeId(stream_id, ranges[-1].range_index if ranges else -1)
        for stream_id, ranges in known.items()
    ]
    opened, failures = await seal_ranges(context, wanted)
    if failures:
        raise failures[0]
    return opened


async def seal_ranges(
    context: Context, wanted: Sequence[RangeId], cause: SealCause = SealCause.REQUESTED
) -> tuple[dict[int, RangeInfo], list[SbpError]]:
    """Seal open ranges; return the next range of each stream, by id, and the errors."""
    opened: dict[int, RangeInfo] = {}
    failures: list[SbpError] = []
    for chunk in chunks(wanted):
        header = SealRangesRequest(context.timeout_ms, tuple(chunk), cause)
        results = await ask_for_each(
            context,
            Opcode.SEAL_RANGE,
            header,
            SealRangesResponse,
            (len(chunk), "streams to seal"),
        )
        for asked, result in _match_sealed(chunk, results):
            context.router.forget(asked.stream_id)
            error = maybe_error(result.status)
            if error is not None:
                if isinstance(error, NoRangeServerError):
                    error.outcome = Outcome.UNKNOWN  # sealed, perhaps, and without a successor
                failures.append(with_message(error, f"sealing stream {asked.stream_id}: "))
            elif result.stream_range is None:
                failures.append(unanswered(f"stream {asked.stream_id}"))
            else:
                opened[asked.stream_id] = range_info(result.stream_range)
    return opened, failures


def _match_sealed(
    asked: Sequence[RangeId], results: Sequence[SealRangesResult]
) -> list[tuple[RangeId, SealRangesResult]]:
    """Return each range with its result. Servers may answer in the order of completion."""
    named = {each.stream_id: each for each in results}
    return [(each, named.get(each.stream_id, SealRangesResult())) for each in asked]


async def describe_schemas(
    context: Context, stream_ids: Sequence[int], *, newest_only: bool = False
) -> dict[int, tuple[SchemaVersion, ...]]:
    """Return the schema versions of each stream, the newest last; none for a stream without one.

    Raises NotFoundError naming the missing streams.
    """
    # SPEC "DESCRIBE_SCHEMAS"
    found: dict[int, list[SchemaVersion]] = {}
    errors: dict[int, SbpError] = {}
    for chunk in chunks(list(dict.fromkeys(stream_ids))):
        header = DescribeSchemasRequest(context.timeout_ms, tuple(chunk), newest_only)
        answers = await ask(
            context,
            Opcode.DESCRIBE_SCHEMAS,
            header,
            DescribeSchemasResponse,
            feature=FeatureName.SCHEMAS,
        )
        entries = [entry for answer in answers for entry in answer.schemas]
        if list(dict.fromkeys(entry.stream_id for entry in entries)) != list(chunk):
            raise unanswered(f"some of the {len(chunk)} schemas that were asked for")
        for entry in entries:
            error = maybe_error(entry.status)
            if isinstance(error, NotFoundError):
                errors[entry.stream_id] = error
            elif error is not None:
                errors[entry.stream_id] = with_message(error, f"{_schema_of(entry.stream_id)}: ")
            else:
                found.setdefault(entry.stream_id, []).extend(_versions(entry))
    check_errors(errors)
    return {stream_id: tuple(found[stream_id]) for stream_id in stream_ids}


async def register_schema(
    context: Context, stream_id: int, schema: StreamSchema, *, version: int
) -> SchemaVersion:
    """Register a schema as a version of a stream's schema; return the newest version.

    `version` is the newest version plus 1, or 1 for the first. Compare the result: if another
    client registered that version first, its schema is returned, and `schema` is not registered.
    Raises SchemaError if `schema` does not extend the newest version, AlreadyExistsError if
    `version` is not the next one. `evolve_schema` does these steps.
    """
    # SPEC "REGISTER_SCHEMAS"
    asked = SchemaEntry(stream_id, version, schema.fingerprint, schema.encode())
    answers = await ask(
        context,
        Opcode.REGISTER_SCHEMAS,
        RegisterSchemasRequest(context.timeout_ms, (asked,)),
        RegisterSchemasResponse,
        feature=FeatureName.SCHEMAS,
    )
    entries = [entry for answer in answers for entry in answer.schemas]
    if [entry.stream_id for entry in entries] != [stream_id]:
        raise unanswered(_schema_of(stream_id))
    (entry,) = entries
    error = maybe_error(entry.status)
    if isinstance(error, InvalidRequestError):
        raise SchemaError(f"{_schema_of(stream_id)}: {error.message}") from error
    if isinstance(error, NotFoundError):
        check_errors({stream_id: error})
    is_overtaken = isinstance(error, AlreadyExistsError) and entry.version >= version
    if error is not None and not is_overtaken:
        raise with_message(error, f"{_schema_of(stream_id)}: ")
    found = _versions(entry)
    if not found:
        raise unanswered(_schema_of(stream_id))
    return found[0]


async def evolve_schema(
    context: Context, stream_id: int, schema: StreamSchema, *, may_change: bool
) -> SchemaVersion:
    """Return a version of a stream's schema that fits data of `schema`.

    A stream without a schema gets `schema`. If the stream's schema `may_change`, a new version is
    registered where needed. Raises SchemaError with the differences.
    """
    described = await describe_schemas(context, [stream_id], newest_only=True)
    newest = described[stream_id][-1] if described[stream_id] else None
    for _ in range(limits.SCHEMA_VERSIONS_MAX + 1):
        wanted = schema if newest is None else merge_schemas(newest.schema, schema)
        if newest is not None and wanted == newest.schema:
            return newest
        if newest is not None and not may_change:
            raise _fixed(newest, schema)
        # Another client that wins a turn uses up one of the versions that a stream may have.
        version = 1 if newest is None else newest.version + 1
        newest = await register_schema(context, stream_id, wanted, version=version)
    raise ProtocolError(
        f"{_schema_of(stream_id)} was changed by others {limits.SCHEMA_VERSIONS_MAX} times in a"
        " row, which are all versions that a stream can have: the placement driver is broken"
    )


def _fixed(newest: SchemaVersion, schema: StreamSchema) -> SchemaError:
    differences = compare_schemas(newest.schema, schema).differences
    lines = "\n".join(f"  {each}" for each in differences)
    return SchemaError(
        f"version {newest.version} of {_schema_of(newest.stream_id)} lacks columns; let it change,"
        f" or leave these out:\n{lines}"
    )


def _versions(entry: SchemaEntry) -> list[SchemaVersion]:
    """Return the version in an entry, an empty list if the stream has none."""
    if entry.version == 0:
        return []
    try:
        schema = decode_stream_schema(entry.schema)
    except SchemaError as error:
        before = f"version {entry.version} of {_schema_of(entry.stream_id)}: "
        raise with_message(error, before, "; a later release may know it") from error
    return [SchemaVersion(entry.stream_id, entry.version, schema, entry.registered_at_ms)]


def _schema_of(stream_id: int) -> str:
    return f"the schema of stream {stream_id}"
