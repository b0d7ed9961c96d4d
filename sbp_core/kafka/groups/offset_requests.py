"""OffsetCommit, OffsetFetch and OffsetDelete: the offsets of a group are cursors of the cluster.

A cursor is an offset and nothing else: the metadata that a client commits with an offset, and the
leader epoch, are not kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from sbp_core.client.types import NO_CURSOR
from sbp_core.errors import NotFoundError, PermissionDeniedError, SbpError
from sbp_core.kafka.calls import Api, Call
from sbp_core.kafka.groups.refusals import group_code, misdirected, refused
from sbp_core.kafka.messages import Fields, by_topic

_Codes = dict[tuple[str, int], ErrorCode]
"""Error codes by topic and partition."""


async def commit_offsets(call: Call) -> Fields:
    """Set the cursors of a group, for a member of the present generation or without members."""
    body, groups = call.body, call.gateway.groups
    wanted = {
        (topic.name, each.partition_index): each.committed_offset
        for topic in body.topics
        for each in topic.partitions
    }
    code = misdirected(call, body.group_id)
    if code is ErrorCode.none:
        code = groups.check_commit(
            body.group_id,
            body.member_id,
            getattr(body, "group_instance_id", None),
            body.generation_id_or_member_epoch,
        )
    codes = dict.fromkeys(wanted, code)
    if code is ErrorCode.none:
        with groups.committing(body.group_id):
            codes = await _set(call, body.group_id, wanted)
    return {"topics": _answered(body.topics, codes)}


async def delete_offsets(call: Call) -> Fields:
    """Forget cursors of a group that has no members."""
    body = call.body
    wanted = {
        (topic.name, each.partition_index): NO_CURSOR
        for topic in body.topics
        for each in topic.partitions
    }
    code = await refused(call, body.group_id)
    group = call.gateway.groups.find(body.group_id)
    if code is ErrorCode.none and group is not None and group.members:
        code = ErrorCode.non_empty_group
    if code is not ErrorCode.none:
        return {"error_code": code}
    codes = await _set(call, body.group_id, wanted, is_deleting=True)
    return {"topics": _answered(body.topics, codes)}


async def _set(
    call: Call,
    group: str,
    wanted: Mapping[tuple[str, int], int],
    *,
    is_deleting: bool = False,
) -> _Codes:
    """Set cursors; return an error code for each partition."""
    codes: _Codes = {}
    offsets: dict[int, int] = {}
    partitions: dict[int, tuple[str, int]] = {}
    try:
        for at, offset in wanted.items():
            stream_id = await call.gateway.topics.stream_id(call.client, *at)
            if stream_id is None:
                codes[at] = ErrorCode.unknown_topic_or_partition
            elif offset < 0 and not is_deleting:
                codes[at] = ErrorCode.invalid_request
            else:
                offsets[stream_id], partitions[stream_id] = offset, at
    except SbpError as error:
        return dict.fromkeys(wanted, group_code(error))
    if offsets:
        found = await _commit(call, group, offsets)
        codes |= {partitions[each]: code for each, code in found.items()}
    return codes


async def _commit(call: Call, group: str, offsets: Mapping[int, int]) -> dict[int, ErrorCode]:
    """Set cursors by stream; find the streams that are refused by halves."""
    try:
        await call.client.commit_cursors(group, offsets)
    except (NotFoundError, PermissionDeniedError) as error:
        code = ErrorCode.unknown_topic_or_partition
        if isinstance(error, PermissionDeniedError):
            code = await refused(call, group)
            if code is not ErrorCode.none:
                return dict.fromkeys(offsets, code)
            code = ErrorCode.topic_authorization_failed
        if len(offsets) == 1:
            return dict.fromkeys(offsets, code)
        items = list(offsets.items())
        halves = (items[: len(items) // 2], items[len(items) // 2 :])
        first, second = [await _commit(call, group, dict(half)) for half in halves]
        return first | second
    except SbpError as error:
        return dict.fromkeys(offsets, group_code(error))
    return dict.fromkeys(offsets, ErrorCode.none)


def _answered(topics: Sequence[Any], codes: _Codes) -> list[Fields]:
    asked = [(topic.name, each.partition_index) for topic in topics for each in topic.partitions]
    return by_topic(topics, [{"partition_index": at[1], "error_code": codes[at]} for at in asked])


async def fetch_offsets(call: Call) -> Fields:
    """Return the cursors of a group, or of several in newer versions."""
    body = call.body
    if call.version < 8:
        return await _fetched(call, body.group_id, body.topics)
    return {"groups": [await _fetched(call, each.group_id, each.topics) for each in body.groups]}


async def _fetched(call: Call, group: str, topics: Sequence[Any] | None) -> Fields:
    """Return the cursors of a group in some topics, or in all if `topics` is None."""
    asked = None
    if topics is not None:
        asked = [(topic.name, index) for topic in topics for index in topic.partition_indexes]
    code, offsets = misdirected(call, group), {}
    if code is ErrorCode.none:
        await call.gateway.groups.commits_done(group)
        try:
            offsets = await _cursors(call, group, asked)
        except SbpError as error:
            code = group_code(error)
    parts: dict[str, list[Fields]] = {}
    for topic, index in offsets if asked is None else asked:
        parts.setdefault(topic, []).append(
            {
                "partition_index": index,
                "committed_offset": offsets.get((topic, index), NO_CURSOR),
                "error_code": code,  # the first versions have no other place for it
            }
        )
    found = [{"name": topic, "partitions": each} for topic, each in parts.items()]
    return {"group_id": group, "topics": found, "error_code": code}


async def _cursors(
    call: Call, group: str, asked: Sequence[tuple[str, int]] | None
) -> dict[tuple[str, int], int]:
    """Return the offsets of a group by topic and partition. Raises SbpError."""
    topics = call.gateway.topics
    if asked is None:
        found = await call.client.describe_cursors(group)
        partitions = await topics.topic_partition(call.client, [each.stream_id for each in found])
    else:
        partitions = {}
        for at in asked:
            stream_id = await topics.stream_id(call.client, *at)
            if stream_id is not None:
                partitions[stream_id] = at
        if not partitions:  # without streams all cursors would be asked for
            return {}
        found = await call.client.describe_cursors(group, list(partitions))
    return {
        partitions[each.stream_id]: each.next_offset
        for each in found
        if each.stream_id in partitions
    }


APIS: Final = (
    Api(8, 2, 9, commit_offsets),
    Api(9, 1, 9, fetch_offsets),
    Api(47, 0, 0, delete_offsets),
)
