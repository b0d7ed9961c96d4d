"""The requests for the schemas of streams: REGISTER_SCHEMAS and DESCRIBE_SCHEMAS.

The functions run on the store's thread, one at a time: nothing can be added between reading the
newest version of a stream and adding its successor, so the versions of a stream are a chain.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import astuple
from typing import Final, NamedTuple

from sbp_core import limits
from sbp_core.client.operations.range_placement import chunks
from sbp_core.errors import (
    AlreadyExistsError,
    InvalidRequestError,
    SchemaError,
    StatusError,
    invalid,
)
from sbp_core.pd.metadata.store import MetadataStore, StoreThread
from sbp_core.pd.model import SchemaRecord, no_stream
from sbp_core.records.evolution import check_evolution
from sbp_core.records.stream_schema import decode_stream_schema
from sbp_core.server.answers import in_parts
from sbp_core.server.dispatch import Answer, ServerCall
from sbp_core.server.runtime import Clock
from sbp_core.wire.headers import (
    DescribeSchemasRequest,
    DescribeSchemasResponse,
    RegisterSchemasRequest,
    RegisterSchemasResponse,
    SchemaEntry,
    Status,
)
from sbp_core.wire.status import SUCCESS, shown, status_for

_NO_VERSION: Final = 0
"""Stands for a version that does not exist: before the first one."""


class SchemaHandlers:
    """Serves REGISTER_SCHEMAS and DESCRIBE_SCHEMAS from a store."""

    def __init__(self, store: StoreThread, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def register(self, call: ServerCall) -> Answer:
        """Add versions to schemas; they are durable when they are answered, in their order."""
        request = call.decode(RegisterSchemasRequest)
        return in_parts(
            self._registered(request.schemas),
            lambda part: RegisterSchemasResponse(schemas=part, status=SUCCESS),
        )

    async def _registered(
        self, asked: Sequence[SchemaEntry]
    ) -> AsyncIterator[tuple[SchemaEntry, ...]]:
        for some in chunks(asked, limits.SCHEMAS_PER_TURN):
            yield tuple(await self._store.run(register_schemas, some, self._clock.wall_ms()))

    async def describe(self, call: ServerCall) -> Answer:
        """Describe the versions of the schemas of streams, all or the newest ones."""
        request = call.decode(DescribeSchemasRequest)
        return in_parts(
            self._described(request),
            lambda part: DescribeSchemasResponse(schemas=part, status=SUCCESS),
        )

    async def _described(
        self, request: DescribeSchemasRequest
    ) -> AsyncIterator[tuple[SchemaEntry, ...]]:
        cursor: SchemaCursor | None = SchemaCursor() if request.stream_ids else None
        while cursor is not None:
            entries, cursor = await self._store.run(
                describe_schemas, request.stream_ids, cursor, newest_only=request.newest_only
            )
            yield tuple(entries)


def register_schemas(
    store: MetadataStore,
    asked: Sequence[SchemaEntry],
    registered_at_ms: int,
    *,
    versions_max: int = limits.SCHEMA_VERSIONS_MAX,
) -> list[SchemaEntry]:
    """Add versions to the schemas of streams (SPEC "REGISTER_SCHEMAS"), all in one transaction.

    Each answer has the stream's newest version then, whether that is the one asked for or not.
    """
    accepted: dict[int, SchemaRecord] = {}
    news: list[SchemaRecord] = []
    results = []
    for each in asked:
        newest = accepted.get(each.stream_id) or store.schemas.maybe_newest(each.stream_id)
        status = SUCCESS
        try:
            if newest is None and store.maybe_stream(each.stream_id) is None:
                raise no_stream(each.stream_id)
            if newest is None or newest.fingerprint != each.fingerprint:
                newest = _successor(newest, each, registered_at_ms, versions_max)
                accepted[each.stream_id] = newest
                news.append(newest)
        except StatusError as error:
            status = status_for(error)
        results.append(_entry(each.stream_id, newest, status))
    if news:
        store.schemas.register(news)
    return results


def _successor(
    newest: SchemaRecord | None, asked: SchemaEntry, registered_at_ms: int, versions_max: int
) -> SchemaRecord:
    """Return the version that comes after `newest`. Raises StatusError if it cannot."""
    version = 1 + (_NO_VERSION if newest is None else newest.version)
    if asked.version != version:
        raise AlreadyExistsError.of(
            f"the next version of the schema of stream {asked.stream_id} is {version}, not"
            f" {asked.version}; build on the newest one, which is in the answer"
        )
    if version > versions_max:
        raise _unacceptable(
            f"stream {asked.stream_id} has {version - 1} versions of its schema, which is the"
            " limit; create another stream"
        )
    try:
        schema = decode_stream_schema(asked.schema)
        if newest is not None:
            check_evolution(decode_stream_schema(newest.schema), schema)
    except SchemaError as error:
        raise _unacceptable(str(error)) from error
    if asked.fingerprint != schema.fingerprint:
        raise _unacceptable(
            f"{shown(asked.fingerprint or '')} is not the fingerprint of this schema, which is"
            f" {schema.fingerprint}; send that"
        )
    return SchemaRecord(
        asked.stream_id, version, schema.fingerprint, schema.encode(), registered_at_ms
    )


class SchemaCursor(NamedTuple):
    """How far an answer to DESCRIBE_SCHEMAS is: the current stream, and its last version sent."""

    stream_index: int = 0
    version: int = _NO_VERSION


def describe_schemas(
    store: MetadataStore,
    stream_ids: Sequence[int],
    cursor: SchemaCursor,
    *,
    newest_only: bool,
    results_max: int = limits.RESULTS_PER_FRAME,
) -> tuple[list[SchemaEntry], SchemaCursor | None]:
    """Describe the schemas of streams (SPEC "DESCRIBE_SCHEMAS") from `cursor`, one frame's worth.

    Returns where to continue, None at the end.
    """
    entries = []
    weight = 0
    index, version = cursor
    while index < len(stream_ids) and weight < results_max:
        stream_id = stream_ids[index]
        found = (
            store.schemas.maybe_newest(stream_id)
            if newest_only
            else store.schemas.maybe_next(stream_id, version)
        )
        if found is not None or version == _NO_VERSION:
            entries.append(_described(store, stream_id, found))
            weight += 1 + len(entries[-1].schema) // limits.SCHEMA_RESULT_BYTES
        if found is None or newest_only:
            index, version = index + 1, _NO_VERSION
        else:
            version = found.version
    return entries, SchemaCursor(index, version) if index < len(stream_ids) else None


def _described(store: MetadataStore, stream_id: int, found: SchemaRecord | None) -> SchemaEntry:
    if found is None and store.maybe_stream(stream_id) is None:
        return SchemaEntry(stream_id, status=status_for(no_stream(stream_id)))
    return _entry(stream_id, found, SUCCESS)


def _entry(stream_id: int, found: SchemaRecord | None, status: Status) -> SchemaEntry:
    if found is None:
        return SchemaEntry(stream_id, _NO_VERSION, status=status)
    fields = (*astuple(found), status)
    return SchemaEntry(*fields)


def _unacceptable(message: str) -> InvalidRequestError:
    """Return an error whose message a peer can read, however many columns differ."""
    if len(message) > limits.SCHEMA_FAULTS_LENGTH_MAX:
        message = message[: limits.SCHEMA_FAULTS_LENGTH_MAX] + " ..."
    return invalid(message)
