"""Operations of consumer groups: their cursors, and their members."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from sbp_core import group_limits
from sbp_core.client.operations.calls import Context, ask, unanswered
from sbp_core.client.operations.range_placement import check_errors, chunks
from sbp_core.client.types import (
    NO_CURSOR,
    CursorInfo,
    GroupDescription,
    GroupInfo,
    MemberInfo,
    Membership,
)
from sbp_core.errors import ConfigurationError, NotFoundError, SbpError
from sbp_core.session.negotiation import FeatureName
from sbp_core.wire.headers import (
    CommitCursorsRequest,
    CommitCursorsResponse,
    Cursor,
    DescribeCursorsRequest,
    DescribeCursorsResponse,
    DescribeGroupRequest,
    DescribeGroupResponse,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error, with_message

_HEARTBEAT_TRIES: Final = 3
"""Tries of a heartbeat that fit into a session."""

_ANY_OFFSET: Final = Cursor().expected_offset


async def commit_cursors(
    context: Context,
    group: str,
    offsets: Mapping[int, int],
    *,
    membership: Membership | None = None,
    expected: Mapping[int, int] | None = None,
) -> None:
    """Store the offsets that a consumer group reads next, by stream id, durably.

    Offsets may go back; NO_CURSOR deletes a cursor. Raises NotFoundError naming the missing
    streams. While a group has members, only a member may commit, with its `membership`. Raises
    MemberUnknownError if the member was expelled, StreamNotHeldError for a stream that the member
    does not hold. The cursors of other streams are set nevertheless.

    `expected` are the present cursors by stream id; NO_CURSOR stands for no cursor. Raises
    ConditionFailedError, with the `current_offset`, for another present cursor, which is not set.
    If the answer is lost the outcome is UNKNOWN, and nothing is sent again.
    """
    expected = expected or {}
    if not expected.keys() <= offsets.keys():
        raise ConfigurationError("expected names a stream for which no offset is committed")
    for stream_id, offset in (*offsets.items(), *expected.items()):
        if not NO_CURSOR <= offset < 2**63:
            raise ConfigurationError(
                f"cursor {offset} of stream {stream_id} is not an offset, 0 or more, nor"
                f" {NO_CURSOR} to forget the cursor"
            )
    feature = None if membership is None else FeatureName.GROUPS
    if expected:  # a server with this feature has groups, too
        feature = FeatureName.COMPARE_AND_SET
    errors: dict[int, SbpError] = {}
    for chunk in chunks(list(offsets)):
        header = CommitCursorsRequest(
            timeout_ms=context.timeout_ms,
            group=group,
            cursors=tuple(
                Cursor(
                    stream_id,
                    offsets[stream_id],
                    expected_offset=expected.get(stream_id, _ANY_OFFSET),
                )
                for stream_id in chunk
            ),
            member_id=None if membership is None else membership.member_id,
            generation=-1 if membership is None else membership.generation,
        )
        answers = await ask(
            context,
            Opcode.COMMIT_CURSORS,
            header,
            CommitCursorsResponse,
            is_repeatable=not expected,
            feature=feature,
        )
        for stream_id, cursor in _answered(answers, chunk).items():
            error = maybe_error(cursor.status)
            if isinstance(error, NotFoundError):
                errors[stream_id] = error
            elif error is not None:
                errors[stream_id] = with_message(error, f"cursor of stream {stream_id}: ")
    check_errors(errors)


async def describe_cursors(
    context: Context, group: str, stream_ids: Sequence[int] = ()
) -> list[CursorInfo]:
    """Return the cursors of a group, in the given streams or in all."""
    found: list[CursorInfo] = []
    for chunk in chunks(list(dict.fromkeys(stream_ids))) if stream_ids else [()]:
        header = DescribeCursorsRequest(context.timeout_ms, group, tuple(chunk))
        answers = await ask(context, Opcode.DESCRIBE_CURSORS, header, DescribeCursorsResponse)
        cursors = [cursor for answer in answers for cursor in answer.cursors]
        if chunk:
            cursors = list(_answered(answers, chunk).values())
        for cursor in cursors:
            error = maybe_error(cursor.status)
            if error is not None:
                raise with_message(error, f"cursor of stream {cursor.stream_id}: ")
            if cursor.next_offset != NO_CURSOR:
                found.append(
                    CursorInfo(cursor.stream_id, cursor.next_offset, cursor.committed_at_ms)
                )
    return found


async def list_groups(context: Context) -> list[GroupInfo]:
    """Return the consumer groups that have cursors or members, by name."""
    header = DescribeCursorsRequest(timeout_ms=context.timeout_ms)
    answers = await ask(context, Opcode.DESCRIBE_CURSORS, header, DescribeCursorsResponse)
    return [
        GroupInfo(cursor.group, cursor.committed_at_ms if cursor.committed_at_ms >= 0 else None)
        for answer in answers
        for cursor in answer.cursors
        if cursor.group is not None
    ]


def _answered(
    answers: Sequence[CommitCursorsResponse] | Sequence[DescribeCursorsResponse],
    stream_ids: Sequence[int],
) -> dict[int, Cursor]:
    """Return the answered cursor of each stream, in the given order."""
    results = [cursor for answer in answers for cursor in answer.cursors]
    if [cursor.stream_id for cursor in results] != list(stream_ids):
        raise unanswered(f"some of the {len(stream_ids)} cursors that were asked for")
    return dict(zip(stream_ids, results, strict=True))


async def join_group(
    context: Context,
    group: str,
    patterns: Sequence[str],
    *,
    member_id: str | None = None,
    session_timeout_ms: int = group_limits.GROUP_SESSION_MS,
    handover_timeout_ms: int = group_limits.GROUP_HANDOVER_MS,
) -> Membership:
    """Become a member of a group, which shares the streams whose names match.

    `patterns` are names, prefixes followed by `*`, or `*`. A member is expelled if it is silent for
    its session timeout, or does not give up a stream within its hand-over timeout. A call with the
    `member_id` of a member changes its patterns and timeouts. Raises UnsupportedError if the
    placement driver knows no members.
    """
    # SPEC "JOIN_GROUP"
    member_id = member_id or f"{context.random.getrandbits(128):032x}"
    header = JoinGroupRequest(
        context.timeout_ms,
        group,
        member_id,
        tuple(patterns),
        session_timeout_ms,
        handover_timeout_ms,
    )
    answers = await ask(
        context, Opcode.JOIN_GROUP, header, JoinGroupResponse, feature=FeatureName.GROUPS
    )
    answer = answers[-1]
    return Membership(group, member_id, answer.generation, answer.stream_ids, session_timeout_ms)


async def group_heartbeat(
    context: Context, membership: Membership, held: Collection[int]
) -> Membership:
    """Stay a member; return the streams to read from now on.

    `held` are the ids of the streams that the member still reads or processes. Give up the held
    streams that are not in the result: commit what was processed, and send the next heartbeat
    without them at once. The call is retried for one session timeout. Raises MemberUnknownError if
    the member was expelled: others may read its streams already.
    """
    # SPEC "GROUP_HEARTBEAT"
    session_ms = membership.session_timeout_ms
    budget_ms = min(context.policy.budget_ms, session_ms)
    context = replace(
        context,
        timeout_ms=min(context.timeout_ms, session_ms // _HEARTBEAT_TRIES),
        policy=replace(context.policy, budget_ms=budget_ms),
    )
    header = GroupHeartbeatRequest(
        context.timeout_ms,
        membership.group,
        membership.member_id,
        membership.generation,
        tuple(sorted(held)),
    )
    answers = await ask(
        context, Opcode.GROUP_HEARTBEAT, header, GroupHeartbeatResponse, feature=FeatureName.GROUPS
    )
    answer = answers[-1]
    if answer.generation < membership.generation:
        return membership
    return replace(membership, generation=answer.generation, stream_ids=answer.stream_ids)


async def leave_group(context: Context, group: str, member_id: str) -> None:
    """Leave a group; the other members get the streams at once.

    Stop reading before. Nothing happens if the member was expelled.
    """
    # SPEC "LEAVE_GROUP"
    header = LeaveGroupRequest(context.timeout_ms, group, member_id)
    await ask(context, Opcode.LEAVE_GROUP, header, LeaveGroupResponse, feature=FeatureName.GROUPS)


async def describe_group(context: Context, group: str) -> GroupDescription:
    """Return the members of a group, and the streams of each."""
    # SPEC "DESCRIBE_GROUP"
    header = DescribeGroupRequest(context.timeout_ms, group)
    answers = await ask(
        context, Opcode.DESCRIBE_GROUP, header, DescribeGroupResponse, feature=FeatureName.GROUPS
    )
    members = tuple(
        MemberInfo(
            each.member_id or "",
            each.patterns,
            each.stream_ids,
            each.revoked_ids,
            each.session_timeout_ms,
            each.handover_timeout_ms,
            each.subject,
        )
        for answer in answers
        for each in answer.members
    )
    return GroupDescription(group, answers[-1].generation, members)
