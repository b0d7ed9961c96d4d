"""The requests for the schemas of streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from sbp_core import limits
from sbp_core.errors import StatusCode, UnsupportedError
from sbp_core.pd.metadata.store_thread import StoreThread
from sbp_core.pd.streams import schema_operations as schemas
from sbp_core.pd.streams.stream_operations import check_item_count
from sbp_core.server.answers import respond_in_parts
from sbp_core.server.dispatch import Handler, ServerCall
from sbp_core.server.runtime import Clock
from sbp_core.wire.headers import (
    DescribeSchemasRequest,
    DescribeSchemasResponse,
    RegisterSchemasRequest,
    RegisterSchemasResponse,
    SchemaEntry,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import SUCCESS


class SchemaHandlers:
    """Serves REGISTER_SCHEMAS and DESCRIBE_SCHEMAS from a store."""

    def __init__(self, store: StoreThread, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def by_opcode(self) -> Mapping[Opcode, Handler]:
        """Return the handler of each opcode served here."""
        return {Opcode.REGISTER_SCHEMAS: self.register, Opcode.DESCRIBE_SCHEMAS: self.describe}

    async def register(self, call: ServerCall) -> None:
        """Add versions to schemas; they are durable when they are answered, in their order."""
        request = call.decode(RegisterSchemasRequest)
        _check_dialect(call)
        check_item_count(len(request.schemas))
        await respond_in_parts(
            call,
            self._registered(request.schemas),
            lambda part: RegisterSchemasResponse(schemas=part, status=SUCCESS),
        )

    async def _registered(
        self, asked: Sequence[SchemaEntry]
    ) -> AsyncIterator[tuple[SchemaEntry, ...]]:
        for start in range(0, len(asked), limits.SCHEMAS_PER_TURN):
            some = asked[start : start + limits.SCHEMAS_PER_TURN]
            yield tuple(
                await self._store.run(schemas.register_schemas, some, self._clock.wall_ms())
            )

    async def describe(self, call: ServerCall) -> None:
        """Tell the versions of the schemas of streams, all or the newest ones."""
        request = call.decode(DescribeSchemasRequest)
        _check_dialect(call)
        check_item_count(len(request.stream_ids))
        await respond_in_parts(
            call,
            self._described(request),
            lambda part: DescribeSchemasResponse(schemas=part, status=SUCCESS),
        )

    async def _described(
        self, request: DescribeSchemasRequest
    ) -> AsyncIterator[tuple[SchemaEntry, ...]]:
        place: schemas.Place | None = schemas.Place() if request.stream_ids else None
        while place is not None:
            entries, place = await self._store.run(
                schemas.describe_schemas, request.stream_ids, place, newest_only=request.newest_only
            )
            yield tuple(entries)


def _check_dialect(call: ServerCall) -> None:
    if call.is_one_frame:
        raise UnsupportedError(
            StatusCode.UNSUPPORTED_OPERATION,
            "servers of this dialect agree on no features, so their streams have no schemas",
        )
