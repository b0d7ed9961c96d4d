"""COMMIT_CURSORS and DESCRIBE_CURSORS: how far consumer groups have read.

The functions run on the store's thread: wire items and a store in, wire results out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence, Set
from typing import Final

from sbp_core import limits
from sbp_core.errors import SbpError, invalid
from sbp_core.group_limits import GATEWAYS_GROUP
from sbp_core.pd.groups.group_operations import refused_cursors
from sbp_core.pd.metadata.store import MetadataStore, StoreThread
from sbp_core.pd.model import NO_CURSOR, CursorChange, CursorRecord, check_group_name
from sbp_core.pd.streams.stream_operations import apply_accepted
from sbp_core.server.answers import cut, in_parts, with_results
from sbp_core.server.dispatch import Answer, ServerCall
from sbp_core.server.request_checks import check_number
from sbp_core.server.runtime import Clock
from sbp_core.wire.headers import (
    CommitCursorsRequest,
    CommitCursorsResponse,
    Cursor,
    DescribeCursorsRequest,
    DescribeCursorsResponse,
)
from sbp_core.wire.status import SUCCESS, status_for

_ANY_OFFSET: Final = Cursor().expected_offset
_EXPECTED: Final = {NO_CURSOR: "for no cursor", _ANY_OFFSET: "for any"}
_NEXT: Final = {NO_CURSOR: "to forget the cursor"}


class CursorHandlers:
    """Serves COMMIT_CURSORS and DESCRIBE_CURSORS from a store."""

    def __init__(self, store: StoreThread, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def commit(self, call: ServerCall) -> Answer:
        """Set cursors of a group; they are durable when they are answered, in their order."""
        request = call.decode(CommitCursorsRequest)
        check_group_name(request.group or "")
        results = await self._store.run(
            commit_cursors,
            request.group or "",
            request.cursors,
            self._clock.wall_ms(),
            member_id=request.member_id,
            generation=request.generation,
            subject=call.restricted_subject,
        )
        return with_results(CommitCursorsResponse, results)

    async def describe(self, call: ServerCall) -> Answer:
        """Describe the cursors of a group, all or for some streams; without a group, the groups."""
        request = call.decode(DescribeCursorsRequest)
        if request.group is not None:
            check_group_name(request.group)
        elif request.stream_ids:
            raise invalid("stream_ids without group: set group to describe its cursors")
        return in_parts(
            self._parts(request), lambda part: DescribeCursorsResponse(cursors=part, status=SUCCESS)
        )

    async def _parts(self, request: DescribeCursorsRequest) -> AsyncIterator[tuple[Cursor, ...]]:
        if request.group is None:
            name = ""
            while found := await self._store.run(list_groups_after, name):
                yield tuple(found)
                name = found[-1].group or ""
        elif request.stream_ids:
            for part in cut(request.stream_ids):
                yield tuple(await self._store.run(describe_some, request.group, part))
        else:
            last_id = -1
            while found := await self._store.run(describe_after, request.group, last_id):
                yield tuple(found)
                last_id = found[-1].stream_id


def commit_cursors(
    store: MetadataStore,
    group: str,
    cursors: Sequence[Cursor],
    committed_at_ms: int,
    *,
    member_id: str | None = None,
    generation: int = -1,
    subject: str | None = None,
) -> list[Cursor]:
    """Set or forget cursors (SPEC "COMMIT_CURSORS"), all in one transaction, in their order.

    Raises MemberUnknownError for an unknown member, PermissionDeniedError for a member of another
    identity, StreamNotHeldError if the group has members and the request names none.
    """
    stream_ids = [each.stream_id for each in cursors]
    refused = refused_cursors(store, group, member_id, generation, stream_ids, subject=subject)
    crowded_out = _crowded_out(store, group, cursors)
    planned = [refused.get(each.stream_id) or _plan(store, each, crowded_out) for each in cursors]
    outcomes = apply_accepted(
        planned, lambda wanted: store.cursors.commit(group, wanted, committed_at_ms)
    )
    return [
        _committed(cursor, committed_at_ms, outcome)
        for cursor, outcome in zip(cursors, outcomes, strict=True)
    ]


def _plan(store: MetadataStore, cursor: Cursor, crowded_out: Set[int]) -> CursorChange | SbpError:
    try:
        check_number("expected_offset", cursor.expected_offset, 0, also=_EXPECTED)
        check_number("next_offset", cursor.next_offset, 0, also=_NEXT)
    except SbpError as error:
        return error
    if cursor.stream_id in crowded_out:
        return store.capacity.refusal("cursors")
    expected = None if cursor.expected_offset == _ANY_OFFSET else cursor.expected_offset
    return CursorChange(cursor.stream_id, cursor.next_offset, expected)


def _crowded_out(store: MetadataStore, group: str, cursors: Sequence[Cursor]) -> Set[int]:
    """Return the streams whose cursors would exceed the limit; existing cursors may move."""
    left = max(0, store.capacity.left("cursors"))
    if len(cursors) <= left:
        return frozenset()
    asked = dict.fromkeys(each.stream_id for each in cursors if each.next_offset > NO_CURSOR)
    found = store.cursors.of_streams(group, list(asked))
    fresh = [stream_id for stream_id, cursor in zip(asked, found, strict=True) if cursor is None]
    return frozenset(fresh[left:])


def _committed(cursor: Cursor, committed_at_ms: int, error: SbpError | None) -> Cursor:
    if error is not None:
        return Cursor(cursor.stream_id, status=status_for(error))
    if cursor.next_offset == NO_CURSOR:
        return Cursor(cursor.stream_id, status=SUCCESS)
    return Cursor(cursor.stream_id, cursor.next_offset, committed_at_ms, SUCCESS)


def describe_some(store: MetadataStore, group: str, stream_ids: Sequence[int]) -> list[Cursor]:
    """Return the cursors of streams (SPEC "DESCRIBE_CURSORS"), in the order asked for."""
    found = store.cursors.of_streams(group, stream_ids)
    return [
        Cursor(stream_id, status=SUCCESS) if cursor is None else _described(cursor)
        for stream_id, cursor in zip(stream_ids, found, strict=True)
    ]


def describe_after(store: MetadataStore, group: str, stream_id: int) -> list[Cursor]:
    """Return the group's next cursors beyond a stream id, one frame's worth of them."""
    return list(map(_described, store.cursors.after(group, stream_id, limits.RESULTS_PER_FRAME)))


def list_groups_after(
    store: MetadataStore, group: str, count_max: int = limits.RESULTS_PER_FRAME
) -> list[Cursor]:
    """Return the groups whose names come after `group`, by default one frame's worth.

    A group that has members and no cursors yet has no time. The group of the gateways is left out.
    """
    times = dict.fromkeys(store.groups.names_after(group, count_max + 1), -1)
    times.pop(GATEWAYS_GROUP, None)
    for each in store.cursors.groups_after(group, count_max):
        times[each.name] = each.committed_at_ms
    return [
        Cursor(group=name, committed_at_ms=times[name], status=SUCCESS)
        for name in sorted(times)[:count_max]
    ]


def _described(cursor: CursorRecord) -> Cursor:
    return Cursor(cursor.stream_id, cursor.next_offset, cursor.committed_at_ms, SUCCESS)
