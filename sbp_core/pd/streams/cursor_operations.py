"""COMMIT_CURSORS and DESCRIBE_CURSORS on the metadata: wire items and a store in, results out.

They run on the store's thread as what is in operations.py does.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from sbp_core import limits
from sbp_core.errors import InvalidRequestError, StatusCode
from sbp_core.pd.metadata.store import MetadataStore
from sbp_core.pd.model import NO_CURSOR, CursorRecord
from sbp_core.pd.streams.stream_operations import no_stream
from sbp_core.wire.headers import Cursor
from sbp_core.wire.status import SUCCESS, status_for


def commit_cursors(
    store: MetadataStore, group: str, cursors: Sequence[Cursor], committed_at_ms: int
) -> list[Cursor]:
    """Set or forget cursors (SPEC "COMMIT_CURSORS"), all in one transaction, in their order."""
    crowded_out = _crowded_out(store, group, cursors)
    wanted = [
        (cursor.stream_id, cursor.next_offset)
        for cursor in cursors
        if cursor.next_offset >= NO_CURSOR and cursor.stream_id not in crowded_out
    ]
    outcomes = iter(store.commit_cursors(group, wanted, committed_at_ms) if wanted else ())
    return [
        _refused(cursor)
        if cursor.next_offset < NO_CURSOR
        else Cursor(cursor.stream_id, status=status_for(store.capacity.cursors_refusal()))
        if cursor.stream_id in crowded_out
        else _committed(cursor, committed_at_ms)
        if next(outcomes)
        else Cursor(cursor.stream_id, status=status_for(no_stream(cursor.stream_id)))
        for cursor in cursors
    ]


def _crowded_out(store: MetadataStore, group: str, cursors: Sequence[Cursor]) -> Set[int]:
    """Return the streams whose cursors would be too many; those that are there may move on."""
    left = store.capacity.cursor_capacity()
    if len(cursors) <= left:
        return frozenset()
    asked = dict.fromkeys(each.stream_id for each in cursors if each.next_offset > NO_CURSOR)
    found = store.cursors_of(group, list(asked))
    fresh = [stream_id for stream_id, cursor in zip(asked, found, strict=True) if cursor is None]
    return frozenset(fresh[left:])


def _committed(cursor: Cursor, committed_at_ms: int) -> Cursor:
    if cursor.next_offset == NO_CURSOR:
        return Cursor(cursor.stream_id, status=SUCCESS)
    return Cursor(cursor.stream_id, cursor.next_offset, committed_at_ms, SUCCESS)


def _refused(cursor: Cursor) -> Cursor:
    error = InvalidRequestError(
        StatusCode.INVALID_REQUEST,
        f"next_offset must be an offset, or {NO_CURSOR} to forget the cursor,"
        f" got {cursor.next_offset}",
    )
    return Cursor(cursor.stream_id, status=status_for(error))


def describe_some(store: MetadataStore, group: str, stream_ids: Sequence[int]) -> list[Cursor]:
    """Return the cursors of streams (SPEC "DESCRIBE_CURSORS"), in the order asked for."""
    found = store.cursors_of(group, stream_ids)
    return [
        Cursor(stream_id, status=SUCCESS) if cursor is None else _described(cursor)
        for stream_id, cursor in zip(stream_ids, found, strict=True)
    ]


def describe_after(store: MetadataStore, group: str, stream_id: int) -> list[Cursor]:
    """Return the group's next cursors beyond a stream id, one frame's worth of them."""
    return list(map(_described, store.cursors_after(group, stream_id, limits.RESULTS_PER_FRAME)))


def list_groups_after(store: MetadataStore, group: str) -> list[Cursor]:
    """Return the groups whose names come after `group`, one frame's worth of them."""
    return [
        Cursor(group=each.name, committed_at_ms=each.committed_at_ms, status=SUCCESS)
        for each in store.groups_after(group, limits.RESULTS_PER_FRAME)
    ]


def _described(cursor: CursorRecord) -> Cursor:
    return Cursor(cursor.stream_id, cursor.next_offset, cursor.committed_at_ms, SUCCESS)
