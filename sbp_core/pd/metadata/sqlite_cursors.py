"""The cursors of consumer groups in the metadata file, statement by statement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sbp_core.pd.metadata.sqlite_file import Query
from sbp_core.pd.model import NO_CURSOR, CursorRecord, GroupRecord

_CURSOR: Final = "SELECT stream_id, next_offset, committed_at_ms FROM cursors WHERE group_name = ?"


def commit_cursor(
    query: Query, group: str, stream_id: int, next_offset: int, committed_at_ms: int
) -> bool:
    """Set a cursor, or forget it; False where there is no stream to set it for."""
    if next_offset == NO_CURSOR:
        query("DELETE FROM cursors WHERE group_name = ? AND stream_id = ?", group, stream_id)
        return True
    if not query("SELECT 1 FROM streams WHERE stream_id = ?", stream_id):
        return False
    query(
        "INSERT OR REPLACE INTO cursors VALUES (?, ?, ?, ?)",
        group,
        stream_id,
        next_offset,
        committed_at_ms,
    )
    return True


def cursors_of(query: Query, group: str, stream_ids: Sequence[int]) -> list[CursorRecord | None]:
    """Return a group's cursors in the order asked for; None where there is none."""
    found = (query(f"{_CURSOR} AND stream_id = ?", group, each) for each in stream_ids)
    return [CursorRecord(*rows[0]) if rows else None for rows in found]


def cursors_after(query: Query, group: str, stream_id: int, count_max: int) -> list[CursorRecord]:
    """Return up to `count_max` cursors of a group beyond a stream id, by id."""
    rows = query(
        f"{_CURSOR} AND stream_id > ? ORDER BY stream_id LIMIT ?", group, stream_id, count_max
    )
    return [CursorRecord(*row) for row in rows]


def groups_after(query: Query, group: str, count_max: int) -> list[GroupRecord]:
    """Return up to `count_max` groups whose names come after `group`, by name."""
    rows = query(
        "SELECT group_name, max(committed_at_ms) FROM cursors WHERE group_name > ?"
        " GROUP BY group_name ORDER BY group_name LIMIT ?",
        group,
        count_max,
    )
    return [GroupRecord(*row) for row in rows]
