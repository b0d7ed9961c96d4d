"""The cursors of consumer groups: table `cursors`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import bindparam, func, select

from sbp_core.errors import ConditionFailedError, SbpError
from sbp_core.pd.metadata.database import Database
from sbp_core.pd.metadata.tables import COUNT_MAX, cursors, streams
from sbp_core.pd.model import NO_CURSOR, CursorChange, CursorRecord, GroupRecord, no_stream

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


class CursorTable:
    """How far consumer groups have come; a deleted stream deletes its cursors."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def commit(
        self, group: str, changes: Iterable[CursorChange], committed_at_ms: int
    ) -> list[SbpError | None]:
        """Set a group's cursors in this order; return why a cursor was not set, None if it was."""
        with self._database.transaction():
            return [self._commit(group, each, committed_at_ms) for each in changes]

    def of_streams(self, group: str, stream_ids: Sequence[int]) -> list[CursorRecord | None]:
        """Return a group's cursors in the order asked for, None for a stream without one."""
        found = (self._maybe_cursor(group, each) for each in stream_ids)
        return [row and CursorRecord(*row[1:]) for row in found]

    def after(self, group: str, stream_id: int, count_max: int) -> list[CursorRecord]:
        """Return up to `count_max` cursors of a group beyond a stream id, by id."""
        rows = self._database.page(cursors, (stream_id,), count_max, group_name=group)
        return [CursorRecord(*row[1:]) for row in rows]

    def all(self) -> list[tuple[str, CursorRecord]]:
        """Return all cursors with their groups, by group and stream id."""
        rows = self._database.rows(cursors)
        return [(group, CursorRecord(*row)) for group, *row in rows]

    def groups_after(self, group: str, count_max: int) -> list[GroupRecord]:
        """Return up to `count_max` groups whose names come after `group`, by name."""
        rows = self._database.query(_GROUPS_AFTER, after=group, count_max=count_max)
        return [GroupRecord(*row) for row in rows]

    def latest(self, count_max: int) -> list[tuple[str, int, str, int]]:
        """Return the `count_max` cursors that were committed last.

        (group, stream id, name of the stream, next offset) each.
        """
        return [(*row,) for row in self._database.query(_LATEST, count_max=count_max)]

    def _maybe_cursor(self, group: str, stream_id: int) -> Any:
        return self._database.maybe_row(cursors, group_name=group, stream_id=stream_id)

    def _commit(self, group: str, change: CursorChange, committed_at_ms: int) -> SbpError | None:
        stream_id, next_offset, expected_offset = change
        if next_offset != NO_CURSOR and not self._database.has(streams, stream_id=stream_id):
            return no_stream(stream_id)
        if expected_offset is not None:
            current = self._maybe_cursor(group, stream_id)
            current_offset = NO_CURSOR if current is None else current.next_offset
            if current_offset != expected_offset:
                return _mismatch(current_offset, expected_offset)
        if next_offset == NO_CURSOR:
            self._database.remove(cursors, group_name=group, stream_id=stream_id)
        else:
            self._database.put(cursors, group, stream_id, next_offset, committed_at_ms)
        return None


def _mismatch(current: int, expected: int) -> ConditionFailedError:
    return ConditionFailedError.of(
        f"the cursor is {'not there' if current == NO_CURSOR else f'at {current}'}, and"
        f" {'none' if expected == NO_CURSOR else expected} was expected; it was not changed",
        ConditionFailedError.encode_offset(current),
    )
