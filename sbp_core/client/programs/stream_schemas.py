"""Programs for the schemas of streams: describe them, add versions."""

from __future__ import annotations

from collections.abc import Sequence

from sbp_core import limits
from sbp_core.client.programs.calls import Context, ask, unanswered, with_message
from sbp_core.client.programs.program import Program
from sbp_core.client.programs.range_placement import check_errors, chunks
from sbp_core.client.types import SchemaVersion
from sbp_core.errors import (
    AlreadyExistsError,
    InvalidRequestError,
    NotFoundError,
    ProtocolError,
    SbpError,
    SchemaError,
)
from sbp_core.records.evolution import compare_schemas, merge_schemas
from sbp_core.records.stream_schema import StreamSchema, decode_stream_schema
from sbp_core.session.negotiation import FeatureName
from sbp_core.wire.headers import (
    DescribeSchemasRequest,
    DescribeSchemasResponse,
    RegisterSchemasRequest,
    RegisterSchemasResponse,
    SchemaEntry,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error


def describe_schemas(
    context: Context, stream_ids: Sequence[int], *, newest_only: bool
) -> Program[dict[int, tuple[SchemaVersion, ...]]]:
    """Return the versions of each stream's schema, the newest last; none if it has no schema.

    SPEC "DESCRIBE_SCHEMAS". Raises NotFoundError naming all missing streams, UnsupportedError where
    the placement driver knows no schemas.
    """
    found: dict[int, list[SchemaVersion]] = {}
    errors: dict[int, SbpError] = {}
    for chunk in chunks(list(dict.fromkeys(stream_ids))):
        header = DescribeSchemasRequest(context.timeout_ms, tuple(chunk), newest_only)
        answers = yield from ask(
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


def register_schema(
    context: Context, stream_id: int, schema: StreamSchema, version: int
) -> Program[SchemaVersion]:
    """Make a schema version `version` of a stream's; return the version that is newest now.

    SPEC "REGISTER_SCHEMAS". It is the one asked for if its schema is `schema`: else another client
    was faster. Raises SchemaError for what does not go on from the newest version, NotFoundError,
    AlreadyExistsError for a version that could not be the next one, UnsupportedError where the
    placement driver knows no schemas.
    """
    asked = SchemaEntry(stream_id, version, schema.fingerprint, schema.encode())
    answers = yield from ask(
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


def evolve_schema(
    context: Context, stream_id: int, schema: StreamSchema, *, may_change: bool
) -> Program[SchemaVersion]:
    """Return a version of a stream's schema that data of `schema` fit; make one if need be.

    A stream without a schema gets `schema`, whatever `may_change` says. Raises SchemaError with
    what does not fit, and what register_schema raises.
    """
    described = yield from describe_schemas(context, [stream_id], newest_only=True)
    newest = described[stream_id][-1] if described[stream_id] else None
    for _ in range(limits.SCHEMA_VERSIONS_MAX + 1):
        wanted = schema if newest is None else merge_schemas(newest.schema, schema)
        if newest is not None and wanted == newest.schema:
            return newest
        if newest is not None and not may_change:
            raise _fixed(newest, schema)
        # Each turn that others win takes one of the versions that a stream may have.
        version = 1 if newest is None else newest.version + 1
        newest = yield from register_schema(context, stream_id, wanted, version)
    raise ProtocolError(
        f"{_schema_of(stream_id)} was changed by others {limits.SCHEMA_VERSIONS_MAX} times in a"
        " row, and a stream has no more versions: the placement driver is broken"
    )


def _fixed(newest: SchemaVersion, schema: StreamSchema) -> SchemaError:
    differences = compare_schemas(newest.schema, schema).differences
    lines = "\n".join(f"  {each}" for each in differences)
    return SchemaError(
        f"version {newest.version} of {_schema_of(newest.stream_id)} does not have all of this;"
        f" let it change, or leave out what is not there:\n{lines}"
    )


def _versions(entry: SchemaEntry) -> list[SchemaVersion]:
    """Return the version that an entry stands for; nothing if it says that there is none."""
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
