"""The cursors of consumer groups: table `cursors`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sbp_core.pd.metadata.sqlite_file import SqliteFile
from sbp_core.pd.model import NO_CURSOR, CursorRecord, GroupRecord

_CURSOR: Final = "SELECT stream_id, next_offset, committed_at_ms FROM cursors WHERE group_name = ?"


class CursorTable:
    """How far consumer groups have come; a deleted stream deletes its cursors."""

    def __init__(self, file: SqliteFile) -> None:
        self._query = file.query
        self._transaction = file.transaction

    def commit(
        self, group: str, cursors: Sequence[tuple[int, int]], committed_at_ms: int
    ) -> list[bool]:
        """Set a group's cursors, (stream id, next offset) each, in this order.

        NO_CURSOR as the offset forgets one, which is never refused. False where there is no stream.
        """
        with self._transaction():
            return [self._commit(group, *cursor, committed_at_ms) for cursor in cursors]

    def of_streams(self, group: str, stream_ids: Sequence[int]) -> list[CursorRecord | None]:
        """Return a group's cursors in the order asked for; None where there is none."""
        found = (self._query(f"{_CURSOR} AND stream_id = ?", group, each) for each in stream_ids)
        return [CursorRecord(*rows[0]) if rows else None for rows in found]

    def after(self, group: str, stream_id: int, count_max: int) -> list[CursorRecord]:
        """Return up to `count_max` cursors of a group beyond a stream id, by id."""
        rows = self._query(
            f"{_CURSOR} AND stream_id > ? ORDER BY stream_id LIMIT ?", group, stream_id, count_max
        )
        return [CursorRecord(*row) for row in rows]

    def groups_after(self, group: str, count_max: int) -> list[GroupRecord]:
        """Return up to `count_max` groups whose names come after `group`, by name."""
        rows = self._query(
            "SELECT group_name, max(committed_at_ms) FROM cursors WHERE group_name > ?"
            " GROUP BY group_name ORDER BY group_name LIMIT ?",
            group,
            count_max,
        )
        return [GroupRecord(*row) for row in rows]

    def _commit(self, group: str, stream_id: int, next_offset: int, committed_at_ms: int) -> bool:
        if next_offset == NO_CURSOR:
            self._query(
                "DELETE FROM cursors WHERE group_name = ? AND stream_id = ?", group, stream_id
            )
            return True
        if not self._query("SELECT 1 FROM streams WHERE stream_id = ?", stream_id):
            return False
        self._query(
            "INSERT OR REPLACE INTO cursors VALUES (?, ?, ?, ?)",
            group,
            stream_id,
            next_offset,
            committed_at_ms,
        )
        return True
