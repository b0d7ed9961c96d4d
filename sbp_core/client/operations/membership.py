"""Operations for the members of consumer groups: join, stay, leave, describe."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from sbp_core import group_limits
from sbp_core.client.group_members import GroupDescription, MemberInfo, Membership
from sbp_core.client.operations.calls import Context, ask
from sbp_core.session.negotiation import FeatureName
from sbp_core.wire.headers import (
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

_TRIES: Final = 3
"""Heartbeats that fit into a session."""


async def join_group(
    context: Context,
    group: str,
    patterns: Sequence[str],
    *,
    member_id: str | None = None,
    session_timeout_ms: int = group_limits.GROUP_SESSION_MS,
    handover_timeout_ms: int = group_limits.GROUP_HANDOVER_MS,
) -> Membership:
    """Become a member of a group that reads the streams whose names match, with others.

    `patterns` are names, begins of names followed by `*`, or `*`. A member that is silent for
    its session timeout is expelled, and one that does not give a stream up within its hand-over
    timeout. With the `member_id` of a member its patterns and timeouts are changed. Raises
    UnsupportedError if the placement driver knows no members.
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
    """Stay a member; return what it is to read from now on.

    `held` are the streams, by id, of which anything is still being read or processed. Streams
    that are in it and not in the result are to be given up: commit what was processed, and
    leave them out of the next call, at once. It is retried for one session timeout. Raises
    MemberUnknownError: others may read the streams already.
    """
    # SPEC "GROUP_HEARTBEAT"
    session_ms = membership.session_timeout_ms
    budget_ms = min(context.policy.budget_ms, session_ms)
    context = replace(
        context,
        timeout_ms=min(context.timeout_ms, session_ms // _TRIES),
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
    """Let a member leave, which reads nothing any more; others get its streams at once.

    Nothing happens if it is not a member.
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
