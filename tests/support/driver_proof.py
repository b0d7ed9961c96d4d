"""Connections to a range server that have proven to be its placement driver's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from raw_client import RawClient

from sbp_core.client import AsyncClient
from sbp_core.client.programs.program import Call
from sbp_core.errors import PermissionDeniedError, StatusCode
from sbp_core.server.peers import prove
from sbp_core.server.trust import proof_of
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import ClientRole, HeartbeatRequest
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import check_status


@dataclass(frozen=True)
class Known:
    """The identity of a range server: known to itself and its placement driver."""

    server_id: int
    cluster_id: str
    secret: str

    @classmethod
    def of(cls, data_dir: Path) -> Known:
        """Read it from the range server's data directory."""
        content = json.loads((data_dir / "identity.json").read_text(encoding="utf-8"))
        return cls(content["server_id"], content["cluster_id"], content["server_secret"])

    async def prove(self, client: RawClient) -> None:
        """Let a connection be the placement driver's."""
        asked = HeartbeatRequest("pd", ClientRole.PD, cluster_id=self.cluster_id)
        (answer,) = await client.ask(Opcode.HEARTBEAT, asked)
        assert answer.status.code == StatusCode.PERMISSION_DENIED
        proof = proof_of(self.secret, answer.status.detail)
        proven = HeartbeatRequest(
            "pd", ClientRole.PD, cluster_id=self.cluster_id, server_secret=proof
        )
        (answer,) = await client.ask(Opcode.HEARTBEAT, proven)
        check_status(answer.status)


@asynccontextmanager
async def driver_at(endpoint: str, data_dir: Path) -> AsyncIterator[RawClient]:
    """A connection of the placement driver to the range server on `data_dir`."""
    async with RawClient.at(endpoint) as client:
        await Known.of(data_dir).prove(client)
        yield client


class DrivingClient(AsyncClient):
    """A client that proves to be the placement driver to servers, below `folder`, that ask."""

    def __init__(self, endpoint: str, folder: Path) -> None:
        super().__init__(endpoint)
        self._folder = folder

    async def exchange(self, call: Call) -> list[Frame]:
        """Do what `call` does."""
        try:
            return await super().exchange(call)
        except PermissionDeniedError:
            known = [Known.of(path.parent) for path in self._folder.rglob("identity.json")]
            secrets = [each.secret for each in known]
            cluster_id = known[0].cluster_id
            await prove(self, call.endpoint, cluster_id, secrets)
        return await super().exchange(call)
