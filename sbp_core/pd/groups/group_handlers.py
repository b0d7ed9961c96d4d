"""JOIN_GROUP, GROUP_HEARTBEAT, LEAVE_GROUP and DESCRIBE_GROUP: the members of consumer groups."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from typing import Final

from sbp_core import group_limits as limits
from sbp_core.access.rights import check_pattern
from sbp_core.client.operations.range_placement import chunks
from sbp_core.errors import SbpError, invalid
from sbp_core.pd.groups.group import Group, Holding, Member
from sbp_core.pd.groups.group_operations import GroupOperations
from sbp_core.pd.metadata.store import MetadataStore, StoreThread
from sbp_core.pd.model import check_group_name
from sbp_core.server.answers import each_of, in_parts
from sbp_core.server.dispatch import Answer, Response, ServerCall
from sbp_core.server.request_checks import NOT_GIVEN, check_number
from sbp_core.server.runtime import Clock, cancel_all
from sbp_core.wire.headers import (
    DescribeGroupRequest,
    DescribeGroupResponse,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    GroupMember,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
)
from sbp_core.wire.status import SUCCESS, shown

_LOG: Final = logging.getLogger(__name__)
_MEMBER_ID: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{limits.MEMBER_ID_LENGTH_MAX}}}")
_REST: Final = 4
"""Pause after a group was tended, in multiples of the time that it took: clients matter more."""
_REST_SECONDS_MAX: Final = 1.0
"""The longest such pause: the store may have been waited for."""
_NO_GENERATION: Final = -1
_MEMBERS_PER_FRAME: Final = 10
"""Each has up to GROUP_PATTERNS_MAX patterns."""


class GroupHandlers:
    """Serves the members of groups, and expels silent members."""

    def __init__(self, store: StoreThread, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._keeping: list[asyncio.Task[None]] = []
        self.operations: Final = GroupOperations()

    async def start(self) -> None:
        """Continue with the members that the last leader had; look for silent ones."""
        await self._store.run(self.operations.resume, self._clock.monotonic())
        for find in (self.operations.overdue, self.operations.outdated):
            self._keeping.append(asyncio.create_task(self._keep_tending(find)))

    async def stop(self) -> None:
        """Stop looking."""
        await cancel_all(self._keeping)

    async def join(self, call: ServerCall) -> Answer:
        """SPEC "JOIN_GROUP": durable when it is answered; may be repeated."""
        request = call.decode(JoinGroupRequest)
        name = _checked_group(call, request.group)
        session_ms, handover_ms = request.session_timeout_ms, request.handover_timeout_ms
        least, also = limits.GROUP_SESSION_MS_MIN, {0: NOT_GIVEN}
        session_max, handover_max = limits.GROUP_SESSION_MS_MAX, limits.GROUP_HANDOVER_MS_MAX
        check_number("session_timeout_ms", session_ms, least, session_max, also=also)
        check_number("handover_timeout_ms", handover_ms, least, handover_max, also=also)
        member = Member(
            _checked_member_id(request.member_id),
            _checked_patterns(request.patterns),
            session_ms or limits.GROUP_SESSION_MS,
            handover_ms or limits.GROUP_HANDOVER_MS,
            call.restricted_subject,
        )
        now, wall_ms = self._clock.monotonic(), self._clock.wall_ms()
        group = await self._store.run(self.operations.join, name, member, now, wall_ms)
        assigned = tuple(group.assigned(member.member_id))
        return Response(
            JoinGroupResponse(status=SUCCESS, generation=group.generation, stream_ids=assigned)
        )

    async def heartbeat(self, call: ServerCall) -> Answer:
        """SPEC "GROUP_HEARTBEAT": what the member is to read from now on."""
        request = call.decode(GroupHeartbeatRequest)
        name = _checked_group(call, request.group)
        member_id = _checked_member_id(request.member_id)
        group = await self._store.run(
            self.operations.heartbeat,
            name,
            member_id,
            generation=request.generation,
            held=frozenset(request.stream_ids),
            subject=call.restricted_subject,
            now=self._clock.monotonic(),
        )
        assigned = tuple(group.assigned(member_id))
        return Response(
            GroupHeartbeatResponse(status=SUCCESS, generation=group.generation, stream_ids=assigned)
        )

    async def leave(self, call: ServerCall) -> Answer:
        """SPEC "LEAVE_GROUP": others get the streams of the member; may be repeated."""
        request = call.decode(LeaveGroupRequest)
        name = _checked_group(call, request.group)
        member_id = _checked_member_id(request.member_id)
        await self._store.run(self.operations.leave, name, member_id, call.restricted_subject)
        return Response(LeaveGroupResponse(status=SUCCESS))

    async def describe(self, call: ServerCall) -> Answer:
        """SPEC "DESCRIBE_GROUP": the members by id; none for a group without members."""
        name = _checked_group(call, call.decode(DescribeGroupRequest).group)
        group = await self._store.run(
            lambda store: store.groups.maybe_group(name) or Group(_NO_GENERATION)
        )
        held: dict[str, list[Holding]] = {each: [] for each in sorted(group.members)}
        for each in group.holdings.values():
            held[each.member_id].append(each)
        members = [_described(group.members[key], some) for key, some in held.items()]
        return in_parts(
            each_of(chunks(members, _MEMBERS_PER_FRAME)),
            lambda part: DescribeGroupResponse(
                status=SUCCESS, generation=group.generation, members=part
            ),
        )

    async def _keep_tending(self, find: Callable[[MetadataStore, float], Sequence[str]]) -> None:
        """Tend the groups that `find` names, one at a time: requests are served in between."""
        clock = self._clock
        while True:
            await asyncio.sleep(limits.GROUP_SWEEP_MS / 1000)
            try:
                for name in await self._store.run(find, clock.monotonic()):
                    began = clock.monotonic()
                    await self._store.run(self.operations.tend, name, began)
                    took = clock.monotonic() - began
                    await asyncio.sleep(min(_REST * took, _REST_SECONDS_MAX))
            except SbpError as error:  # a store that fails, or does not lead
                _LOG.debug("group members not looked for: %s", error)


def _described(member: Member, held: Sequence[Holding]) -> GroupMember:
    return GroupMember(
        member_id=member.member_id,
        patterns=member.patterns,
        session_timeout_ms=member.session_timeout_ms,
        handover_timeout_ms=member.handover_timeout_ms,
        stream_ids=tuple(sorted(each.stream_id for each in held if each.revoked is None)),
        revoked_ids=tuple(sorted(each.stream_id for each in held if each.revoked is not None)),
        subject=member.subject,
    )


def _checked_group(call: ServerCall, name: str | None) -> str:
    check_group_name(name or "")
    return name or ""


def _checked_member_id(member_id: str | None) -> str:
    if member_id is None or _MEMBER_ID.fullmatch(member_id) is None:
        raise invalid(
            f"{shown(member_id or '')} cannot be the id of a member: use 1 to"
            f" {limits.MEMBER_ID_LENGTH_MAX} of A-Z a-z 0-9 . _ -, at random"
        )
    return member_id


def _checked_patterns(patterns: Sequence[str]) -> tuple[str, ...]:
    check_number("the number of patterns", len(patterns), 1, limits.GROUP_PATTERNS_MAX)
    for each in patterns:
        check_pattern(each)
        if " " in each:
            raise invalid(f"{shown(each)} matches no stream: their names have no spaces")
    return tuple(dict.fromkeys(patterns))
