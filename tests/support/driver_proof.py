"""Connections to a range server that have proven to be its placement driver's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from raw_client import RawClient

from sbp_core.client import AsyncClient
from sbp_core.errors import StatusCode
from sbp_core.pd.proving import prove
from sbp_core.server.trust import proof_of
from sbp_core.wire.headers import ClientRole, HeartbeatRequest
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import check_status


@dataclass(frozen=True)
class Known:
    """What a range server and its placement driver know of it."""

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


async def prove_all(client: AsyncClient, *servers: tuple[str, Path]) -> None:
    """Let the client's connections to range servers, (endpoint, data_dir), be the driver's."""
    for endpoint, data_dir in servers:
        known = Known.of(data_dir)
        assert await prove(client, endpoint, known.cluster_id, [known.secret], timeout_ms=30_000)
