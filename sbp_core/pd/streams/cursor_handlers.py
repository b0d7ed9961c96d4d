"""The requests of consumer groups: how far they have come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from sbp_core.errors import InvalidRequestError, StatusCode
from sbp_core.pd.metadata.store_thread import StoreThread
from sbp_core.pd.model import check_group_name
from sbp_core.pd.streams import cursor_operations as cursors
from sbp_core.pd.streams.stream_operations import check_item_count
from sbp_core.server.answers import cut, respond_all, respond_in_parts
from sbp_core.server.dispatch import Handler, ServerCall
from sbp_core.server.runtime import Clock
from sbp_core.wire.headers import (
    CommitCursorsRequest,
    CommitCursorsResponse,
    Cursor,
    DescribeCursorsRequest,
    DescribeCursorsResponse,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import SUCCESS


class CursorHandlers:
    """Serves COMMIT_CURSORS and DESCRIBE_CURSORS from a store."""

    def __init__(self, store: StoreThread, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def by_opcode(self) -> Mapping[Opcode, Handler]:
        """Return the handler of each opcode served here."""
        return {Opcode.COMMIT_CURSORS: self.commit, Opcode.DESCRIBE_CURSORS: self.describe}

    async def commit(self, call: ServerCall) -> None:
        """Set cursors of a group; they are durable when they are answered, in their order."""
        request = call.decode(CommitCursorsRequest)
        check_item_count(len(request.cursors))
        check_group_name(request.group or "")
        results = await self._store.run(
            cursors.commit_cursors, request.group or "", request.cursors, self._clock.wall_ms()
        )
        await respond_all(
            call, results, lambda part: CommitCursorsResponse(cursors=part, status=SUCCESS)
        )

    async def describe(self, call: ServerCall) -> None:
        """Tell the cursors of a group, all or of some streams; without a group, the groups."""
        request = call.decode(DescribeCursorsRequest)
        check_item_count(len(request.stream_ids))
        if request.group is not None:
            check_group_name(request.group)
        elif request.stream_ids:
            raise InvalidRequestError(
                StatusCode.INVALID_REQUEST, "name the group whose cursors of streams are wanted"
            )
        await respond_in_parts(
            call,
            self._parts(request),
            lambda part: DescribeCursorsResponse(cursors=part, status=SUCCESS),
        )

    async def _parts(self, request: DescribeCursorsRequest) -> AsyncIterator[tuple[Cursor, ...]]:
        if request.group is None:
            name = ""
            while found := await self._store.run(cursors.list_groups_after, name):
                yield tuple(found)
                name = found[-1].group or ""
        elif request.stream_ids:
            for part in cut(request.stream_ids):
                yield tuple(await self._store.run(cursors.describe_some, request.group, part))
        else:
            last_id = -1
            while found := await self._store.run(cursors.describe_after, request.group, last_id):
                yield tuple(found)
                last_id = found[-1].stream_id
