"""The methods of the asyncio client for consumer groups: their cursors and members."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sbp_core import group_limits
from sbp_core.client.group_members import GroupDescription, Membership
from sbp_core.client.io.aio_transport import AsyncPool
from sbp_core.client.operations import membership as members
from sbp_core.client.operations import positions
from sbp_core.client.operations.calls import Context
from sbp_core.client.types import CursorInfo, GroupInfo


class AsyncGroupMethods:
    """The methods of a client for consumer groups, over its connections."""

    def __init__(self, context: Context, pool: AsyncPool) -> None:
        self._context = context
        self._pool = pool

    async def commit_cursors(
        self,
        group: str,
        offsets: Mapping[int, int],
        *,
        membership: Membership | None = None,
        expected: Mapping[int, int] | None = None,
    ) -> None:
        """Remember the offsets that a consumer group reads next, by stream id; durably.

        Offsets may go back. NO_CURSOR forgets a cursor. Raises NotFoundError naming the missing
        streams. While a group has members, one of them has to commit, with its `membership`: that
        raises MemberUnknownError if it is no longer a member, StreamNotHeldError for a stream that
        it does not hold. The cursors of other streams are set nevertheless.

        With `expected`, offsets by stream id, a cursor that is elsewhere is not set: that raises
        ConditionFailedError, with the `current_offset`. NO_CURSOR expects that there is none. If
        the answer is lost the outcome is UNKNOWN, and nothing is sent again: see what is committed.
        """
        await positions.commit_cursors(self._context, group, offsets, membership, expected)

    async def describe_cursors(
        self, group: str, stream_ids: Sequence[int] = ()
    ) -> list[CursorInfo]:
        """Return the cursors that a group has, all of them or those of the streams named."""
        return await positions.describe_cursors(self._context, group, stream_ids)

    async def list_groups(self) -> list[GroupInfo]:
        """Return the consumer groups that have cursors or members, by name."""
        return await positions.list_groups(self._context)

    async def join_group(
        self,
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
        return await members.join_group(
            self._context,
            group,
            patterns,
            member_id=member_id,
            session_timeout_ms=session_timeout_ms,
            handover_timeout_ms=handover_timeout_ms,
        )

    async def group_heartbeat(self, membership: Membership, held: Collection[int]) -> Membership:
        """Stay a member; return what it is to read from now on.

        `held` are the streams, by id, of which anything is still being read or processed. Streams
        that are in it and not in the result are to be given up: commit what was processed, and
        leave them out of the next call, at once. It is retried for one session timeout. Raises
        MemberUnknownError: others may read the streams already.
        """
        return await members.group_heartbeat(self._context, membership, held)

    async def leave_group(self, group: str, member_id: str) -> None:
        """Let a member leave, which reads nothing any more; others get its streams at once.

        Nothing happens if it is not a member.
        """
        await members.leave_group(self._context, group, member_id)

    async def describe_group(self, group: str) -> GroupDescription:
        """Return the members of a group, and the streams of each."""
        return await members.describe_group(self._context, group)
