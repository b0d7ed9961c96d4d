"""FindCoordinator, JoinGroup, SyncGroup, Heartbeat and LeaveGroup: being a member of a group.

SyncGroup and Heartbeat do not ask the cluster whether the caller may use the group: only a caller
that was allowed to join knows the id of a member, and members stay while no placement driver
answers.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode

from sbp_core import group_limits
from sbp_core.errors import SbpError
from sbp_core.kafka.calls import Api, Call
from sbp_core.kafka.groups.coordinator import MEMBER_BYTES_MAX
from sbp_core.kafka.groups.member import Joined, Joining, Synced, Syncing
from sbp_core.kafka.groups.refusals import group_code, misdirected, refused
from sbp_core.kafka.messages import Fields
from sbp_core.limits import GROUP_NAME_LENGTH_MAX

_OF_GROUP: Final = 0
"""The type of the key of a group in FindCoordinator."""
_PROTOCOLS_MAX: Final = 100
"""Protocols of a member."""


async def find_coordinator(call: Call) -> Fields:
    """Name the gateway that coordinates a group."""
    body = call.body
    if call.version >= 4:
        return {"coordinators": [_coordinator(call, key) for key in body.coordinator_keys]}
    return _coordinator(call, body.key)


def _coordinator(call: Call, key: str) -> Fields:
    kind = getattr(call.body, "key_type", _OF_GROUP)
    if kind != _OF_GROUP or not key:
        code, why = ErrorCode.invalid_group_id, "a group has a name"
        if kind != _OF_GROUP:  # the code at which all clients give up
            code = ErrorCode.transactional_id_authorization_failed
            why = "the gateway has no transactions"
        failed = {"node_id": -1, "host": "", "port": -1, "error_message": why}
        return {"key": key, "error_code": code, **failed}
    node = call.gateway.peers.coordinator_of(key)
    return {"key": key, "node_id": node.node_id, "host": node.host, "port": node.port}


async def join_group(call: Call) -> Fields:
    """Let a member join; the answer comes when the group begins its next generation."""
    joined = await _joined(call)
    return {
        "error_code": joined.error,
        "generation_id": joined.generation,
        "protocol_type": joined.protocol_type,
        "protocol_name": joined.protocol,
        "leader": joined.leader_id,
        "skip_assignment": joined.skips_assignment,
        "member_id": joined.member_id,
        "members": [
            {"member_id": member_id, "group_instance_id": instance_id, "metadata": metadata}
            for member_id, instance_id, metadata in joined.members
        ],
    }


async def _joined(call: Call) -> Joined:
    body = call.body
    session_ms = _ms(body.session_timeout)
    rebalance_ms = _ms(getattr(body, "rebalance_timeout", body.session_timeout))
    if rebalance_ms < 0:
        rebalance_ms = session_ms
    rebalance_ms = max(rebalance_ms, group_limits.GROUP_SESSION_MS_MIN)
    asked = Joining(
        body.member_id,
        getattr(body, "group_instance_id", None),
        call.request.client_id,
        f"/{call.address}",
        session_ms / 1000,
        min(rebalance_ms, group_limits.GROUP_HANDOVER_MS_MAX) / 1000,
        body.protocol_type,
        tuple((each.name, each.metadata) for each in body.protocols),
        needs_id=call.version >= 4,
        may_skip=call.version >= 9,
    )
    code = misdirected(call, body.group_id)
    if code is ErrorCode.none:
        code = _why_unfit(asked, session_ms)
    if code is ErrorCode.none:
        try:
            if await call.gateway.groups.rights.has_own_members(call.client, body.group_id):
                code = ErrorCode.inconsistent_group_protocol
        except SbpError as error:
            code = group_code(error)
    if code is not ErrorCode.none:
        return Joined(asked.member_id, code)
    joined: Joined = await call.gateway.groups.join(body.group_id, asked)
    return joined


def _why_unfit(asked: Joining, session_ms: int) -> ErrorCode:
    shortest, longest = group_limits.GROUP_SESSION_MS_MIN, group_limits.GROUP_SESSION_MS_MAX
    if not shortest <= session_ms <= longest:
        return ErrorCode.invalid_session_timeout
    is_instance_fit = (
        asked.instance_id is None or 1 <= len(asked.instance_id) <= GROUP_NAME_LENGTH_MAX
    )
    is_small = asked.size_bytes <= MEMBER_BYTES_MAX and len(asked.protocols) <= _PROTOCOLS_MAX
    return ErrorCode.none if is_instance_fit and is_small else ErrorCode.invalid_request


def _ms(found: timedelta) -> int:
    return found // timedelta(milliseconds=1)


async def sync_group(call: Call) -> Fields:
    """Give a member its assignment, when the leader of the generation has brought it."""
    body = call.body
    assignments = {each.member_id: each.assignment for each in body.assignments}
    code = misdirected(call, body.group_id)
    if any(len(each) > MEMBER_BYTES_MAX for each in assignments.values()):
        code = ErrorCode.invalid_request
    synced = Synced(code)
    if code is ErrorCode.none:
        asked = Syncing(
            body.member_id,
            getattr(body, "group_instance_id", None),
            body.generation_id,
            getattr(body, "protocol_type", None),
            getattr(body, "protocol_name", None),
            assignments,
        )
        synced = await call.gateway.groups.sync(body.group_id, asked)
    return {
        "error_code": synced.error,
        "protocol_type": synced.protocol_type,
        "protocol_name": synced.protocol,
        "assignment": synced.assignment,
    }


async def heartbeat(call: Call) -> Fields:
    """Keep a member, and ask it to join again if the group prepares a rebalance."""
    body = call.body
    code = misdirected(call, body.group_id)
    if code is ErrorCode.none:
        instance_id = getattr(body, "group_instance_id", None)
        code = call.gateway.groups.heartbeat(
            body.group_id, body.member_id, instance_id, body.generation_id
        )
    return {"error_code": code}


async def leave_group(call: Call) -> Fields:
    """Remove a member, or several in newer versions."""
    body: Any = call.body
    leaving = (
        [(body.member_id, None)]
        if call.version < 3
        else [(each.member_id, each.group_instance_id) for each in body.members]
    )
    code = await refused(call, body.group_id)
    if code is not ErrorCode.none:
        return {"error_code": code}
    codes = call.gateway.groups.leave(body.group_id, leaving)
    if call.version < 3:
        return {"error_code": codes[0]}
    return {
        "members": [
            {"member_id": member_id, "group_instance_id": instance_id, "error_code": each}
            for (member_id, instance_id), each in zip(leaving, codes, strict=True)
        ]
    }


APIS: Final = (
    Api(10, 0, 4, find_coordinator),
    Api(11, 0, 9, join_group),
    Api(12, 0, 4, heartbeat),
    Api(13, 0, 5, leave_group),
    Api(14, 0, 5, sync_group),
)
