"""Why a caller may not use a group, as error codes of Kafka's protocol."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakKeyDictionary

from kio.schema.errors import ErrorCode

from sbp_core.client.async_client import AsyncClient
from sbp_core.errors import (
    InvalidRequestError,
    MemberUnknownError,
    PermissionDeniedError,
    SbpError,
    StreamNotHeldError,
)
from sbp_core.kafka.calls import Call
from sbp_core.kafka.problems import error_code

_RIGHT_KEPT_S: Final = 10.0
_RIGHTS_KEPT_MAX: Final = 1024
"""Groups of which is known, for each client, that it may use them."""


@dataclass(slots=True)
class GroupRights:
    """The rights on groups that clients were found to have lately.

    The cluster decides who may use a group, but the members of a group are here. So the cluster is
    asked before a caller joins a group, or sees its members.
    """

    _known: WeakKeyDictionary[AsyncClient, dict[str, tuple[float, bool]]] = field(
        default_factory=WeakKeyDictionary
    )

    async def has_own_members(self, client: AsyncClient, group: str) -> bool:
        """Return whether the group has members of the cluster's own protocol.

        Raises PermissionDeniedError for a caller that may not use the group, InvalidRequestError
        for a name that no group can have.
        """
        known = self._known.setdefault(client, {})
        now = time.monotonic()
        found_at, has_members = known.get(group, (-_RIGHT_KEPT_S, False))
        if now >= found_at + _RIGHT_KEPT_S:
            has_members = bool((await client.describe_group(group)).members)
            if len(known) >= _RIGHTS_KEPT_MAX:
                known.clear()
            known[group] = now, has_members
        return has_members


def group_code(error: SbpError) -> ErrorCode:
    """Return the code of an error about a group."""
    match error:
        case PermissionDeniedError():
            return ErrorCode.group_authorization_failed
        case InvalidRequestError():
            return ErrorCode.invalid_group_id
        case StreamNotHeldError() | MemberUnknownError():
            return ErrorCode.non_empty_group  # of members of the cluster's own protocol
    if error.retriable:
        return ErrorCode.coordinator_load_in_progress  # clients try again, here
    return error_code(error)


def misdirected(call: Call, group: str) -> ErrorCode:
    """Return why a request about a group is not for this gateway; NONE if it is."""
    if not group:
        return ErrorCode.invalid_group_id
    is_here = call.gateway.peers.is_coordinator(group) and not call.gateway.groups.is_closed
    return ErrorCode.none if is_here else ErrorCode.not_coordinator


async def refused(call: Call, group: str) -> ErrorCode:
    """Return why a caller may not use a group; NONE if it may."""
    code = misdirected(call, group)
    if code is ErrorCode.none:
        try:
            await call.gateway.groups.rights.has_own_members(call.client, group)
        except SbpError as error:
            return group_code(error)
    return code
