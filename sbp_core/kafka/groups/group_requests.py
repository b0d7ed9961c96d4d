"""DescribeGroups, ListGroups and DeleteGroups, and all APIs of consumer groups.

A group that has only cursors is Empty. A group whose members speak the cluster's own protocol is
Stable, and of another protocol type, so that Kafka's tools leave it alone.
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from sbp_core.client.types import NO_CURSOR
from sbp_core.errors import PermissionDeniedError, SbpError
from sbp_core.kafka.calls import Api, Call
from sbp_core.kafka.groups import membership_requests, offset_requests
from sbp_core.kafka.groups.group import Group, GroupState
from sbp_core.kafka.groups.refusals import group_code, misdirected, refused
from sbp_core.kafka.messages import Fields

_OF_CONSUMERS: Final = "consumer"
_OWN_TYPE: Final = "sbp"


async def describe_groups(call: Call) -> Fields:
    """Describe groups and their members."""
    return {"groups": [await _described(call, name) for name in call.body.groups]}


async def _described(call: Call, name: str) -> Fields:
    code = misdirected(call, name)
    if code is not ErrorCode.none:
        return {"group_id": name, "error_code": code}
    try:
        state, kind = await _state_of(call, name)
        group = call.gateway.groups.find(name)
        members = {} if group is None else _members(group)
        if state is GroupState.EMPTY and not await call.client.describe_cursors(name):
            state, kind = GroupState.DEAD, ""
    except SbpError as error:
        return {"group_id": name, "error_code": group_code(error)}
    return {"group_id": name, "group_state": state.value, "protocol_type": kind, **members}


async def _state_of(call: Call, name: str) -> tuple[GroupState, str]:
    """Return the state of a group that exists, and the type of its protocol.

    Raises PermissionDeniedError for a caller that may not use the group.
    """
    has_own = await call.gateway.groups.rights.has_own_members(call.client, name)
    group = call.gateway.groups.find(name)
    if group is not None and group.members:
        return group.state, group.protocol_type
    return (GroupState.STABLE, _OWN_TYPE) if has_own else (GroupState.EMPTY, _OF_CONSUMERS)


def _members(group: Group) -> dict[str, Any]:
    protocol = group.protocol if group.state is GroupState.STABLE else ""
    return {
        "protocol_data": protocol,
        "members": [
            {
                "member_id": each.member_id,
                "group_instance_id": each.instance_id,
                "client_id": each.asked.client_id,
                "client_host": each.asked.client_host,
                "member_metadata": each.metadata(protocol),
                "member_assignment": each.assignment,
            }
            for each in group.members.values()
        ],
    }


async def list_groups(call: Call) -> Fields:
    """List the groups that the caller may use, of those that this gateway coordinates."""
    wanted = {state.lower() for state in getattr(call.body, "states_filter", ())}
    found = []
    try:
        listed = {each.group for each in await call.client.list_groups()}
        names = sorted(listed.union(call.gateway.groups.names()))
        for name in filter(call.gateway.peers.is_coordinator, names):
            try:
                state, kind = await _state_of(call, name)
            except PermissionDeniedError:
                continue
            if not wanted or state.lower() in wanted:
                found.append({"group_id": name, "protocol_type": kind, "group_state": state.value})
    except SbpError as error:
        return {"error_code": group_code(error)}
    return {"groups": found}


async def delete_groups(call: Call) -> Fields:
    """Delete groups without members: a group is gone when it has no cursor."""
    return {
        "results": [
            {"group_id": name, "error_code": await _deleted(call, name)}
            for name in call.body.groups_names
        ]
    }


async def _deleted(call: Call, name: str) -> ErrorCode:
    code = await refused(call, name)
    if code is not ErrorCode.none:
        return code
    if name in call.gateway.groups.names():
        return ErrorCode.non_empty_group
    try:
        cursors = await call.client.describe_cursors(name)
        if not cursors:
            return ErrorCode.group_id_not_found
        await call.client.commit_cursors(name, {each.stream_id: NO_CURSOR for each in cursors})
    except SbpError as error:
        return group_code(error)
    return ErrorCode.none


APIS: Final = (
    *membership_requests.APIS,
    *offset_requests.APIS,
    Api(15, 0, 5, describe_groups),
    Api(16, 0, 4, list_groups),
    Api(42, 0, 2, delete_groups),
)
"""All APIs of consumer groups."""
