"""The cursors of consumer groups: table `cursors`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sqlalchemy import bindparam, delete, func, select

from sbp_core.pd.metadata.database import Database, Put
from sbp_core.pd.metadata.tables import COUNT_MAX, cursors, streams
from sbp_core.pd.model import (
    NO_CURSOR,
    CursorChange,
    CursorMismatch,
    CursorRecord,
    GroupRecord,
)

_IS_OF_GROUP: Final = cursors.c.group_name == bindparam("group_name")
_IS_OF_STREAM: Final = cursors.c.stream_id == bindparam("stream_id")
_OF_GROUP: Final = select(
    cursors.c.stream_id, cursors.c.next_offset, cursors.c.committed_at_ms
).where(_IS_OF_GROUP)
_OF_STREAM: Final = _OF_GROUP.where(_IS_OF_STREAM)
_AFTER: Final = (
    _OF_GROUP.where(cursors.c.stream_id > bindparam("after"))
    .order_by(cursors.c.stream_id)
    .limit(COUNT_MAX)
)
_GROUPS_AFTER: Final = (
    select(cursors.c.group_name, func.max(cursors.c.committed_at_ms))
    .where(cursors.c.group_name > bindparam("after"))
    .group_by(cursors.c.group_name)
    .order_by(cursors.c.group_name)
    .limit(COUNT_MAX)
)
_LATEST: Final = (
    select(cursors.c.group_name, cursors.c.stream_id, streams.c.name, cursors.c.next_offset)
    .join(streams, streams.c.stream_id == cursors.c.stream_id)
    .order_by(cursors.c.committed_at_ms.desc())
    .limit(COUNT_MAX)
)
_PUT: Final = Put(cursors)
_DELETE: Final = delete(cursors).where(_IS_OF_GROUP, _IS_OF_STREAM)
_STREAM: Final = select(streams.c.stream_id).where(streams.c.stream_id == bindparam("stream_id"))


class CursorTable:
    """How far consumer groups have come; a deleted stream deletes its cursors."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._query = database.query

    def commit(
        self, group: str, cursors: Iterable[CursorChange], committed_at_ms: int
    ) -> list[bool | CursorMismatch]:
        """Set a group's cursors in this order; False where there is no stream to set one of."""
        with self._database.transaction():
            return [self._commit(group, each, committed_at_ms) for each in cursors]

    def of_streams(self, group: str, stream_ids: Sequence[int]) -> list[CursorRecord | None]:
        """Return a group's cursors in the order asked for; None where there is none."""
        found = (self._query(_OF_STREAM, group_name=group, stream_id=each) for each in stream_ids)
        return [CursorRecord(*rows[0]) if rows else None for rows in found]

    def after(self, group: str, stream_id: int, count_max: int) -> list[CursorRecord]:
        """Return up to `count_max` cursors of a group beyond a stream id, by id."""
        rows = self._query(_AFTER, group_name=group, after=stream_id, count_max=count_max)
        return [CursorRecord(*row) for row in rows]

    def groups_after(self, group: str, count_max: int) -> list[GroupRecord]:
        """Return up to `count_max` groups whose names come after `group`, by name."""
        rows = self._query(_GROUPS_AFTER, after=group, count_max=count_max)
        return [GroupRecord(*row) for row in rows]

    def latest(self, count_max: int) -> list[tuple[str, int, str, int]]:
        """Return up to `count_max` cursors, those that were committed last.

        (group, stream id, name of the stream, next offset) each.
        """
        return [(*row,) for row in self._query(_LATEST, count_max=count_max)]

    def _commit(
        self, group: str, change: CursorChange, committed_at_ms: int
    ) -> bool | CursorMismatch:
        stream_id, next_offset, expected_offset = change
        if next_offset != NO_CURSOR and not self._query(_STREAM, stream_id=stream_id):
            return False
        if expected_offset is not None:
            (current,) = self.of_streams(group, [stream_id])
            current_offset = NO_CURSOR if current is None else current.next_offset
            if current_offset != expected_offset:
                return CursorMismatch(current_offset)
        if next_offset == NO_CURSOR:
            self._database.change(_DELETE, group_name=group, stream_id=stream_id)
            return True
        self._database.put(
            _PUT,
            group_name=group,
            stream_id=stream_id,
            next_offset=next_offset,
            committed_at_ms=committed_at_ms,
        )
        return True
