"""A placement driver that does not lead: a real listener that names the leader and no more."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sbp_core.errors import NotLeaderError, StatusCode
from sbp_core.server.dispatch import ServerCall
from sbp_core.server.listener import Listener
from sbp_core.server.runtime import SystemClock
from sbp_core.wire.dialect import ServerRole, Speech
from sbp_core.wire.headers import (
    RESPONSE_TABLES,
    ClientRole,
    HeartbeatRequest,
    HeartbeatResponse,
    PlacementDriverCluster,
    PlacementDriverNode,
    encode_header,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import status_for


def cluster_of(leader: str | None, *followers: str) -> PlacementDriverCluster:
    """A cluster of nodes at these addresses."""
    nodes = [PlacementDriverNode("follower", each) for each in followers]
    if leader is not None:
        nodes.append(PlacementDriverNode("leader", leader, is_leader=True))
    return PlacementDriverCluster(tuple(nodes))


class Follower:
    """Answers every operation with PD_NOT_LEADER and the cluster in `detail`.

    A client's greeting it answers like any placement driver. `is_system_error` chooses the form.
    """

    def __init__(
        self, code: StatusCode = StatusCode.PD_NOT_LEADER, *, is_system_error: bool = False
    ) -> None:
        self.endpoint = ""
        self.detail = b""
        self.asked: Counter[Opcode] = Counter()
        self._code = code
        self._is_system_error = is_system_error

    def name(self, leader: str | None, *followers: str) -> None:
        """From now on name these nodes."""
        self.detail = encode_header(cluster_of(leader, *followers))

    async def serve(self, call: ServerCall) -> None:
        if call.opcode is Opcode.HEARTBEAT:
            request = call.decode(HeartbeatRequest)
            if request.client_role != ClientRole.RANGE_SERVER:
                await call.respond(HeartbeatResponse(client_id=request.client_id))
                return
        self.asked[call.opcode] += 1
        error = NotLeaderError(self._code, "not the leader", self.detail)
        if self._is_system_error:
            raise error
        await call.respond(RESPONSE_TABLES[call.opcode](status=status_for(error)))


@asynccontextmanager
async def follower_pd(
    code: StatusCode = StatusCode.PD_NOT_LEADER, *, is_system_error: bool = False
) -> AsyncIterator[Follower]:
    """Run a follower on a free port."""
    follower = Follower(code, is_system_error=is_system_error)
    handlers = dict.fromkeys(RESPONSE_TABLES, follower.serve)
    listener = Listener(handlers, speech=Speech(ServerRole.PLACEMENT_DRIVER), clock=SystemClock())
    follower.endpoint = f"127.0.0.1:{await listener.start('127.0.0.1', 0)}"
    try:
        yield follower
    finally:
        await listener.drain(timeout_ms=100)
