"""The state that all requests to a gateway share: topics, producers, groups, other gateways."""

from __future__ import annotations

from dataclasses import dataclass, field

from sbp_core.client.async_client import AsyncClient
from sbp_core.kafka.groups.coordinator import Groups
from sbp_core.kafka.peers import Peers
from sbp_core.kafka.producers import Producers
from sbp_core.kafka.schemas import Schemas
from sbp_core.kafka.stream_ends import StreamEnds
from sbp_core.kafka.topics import Topics
from sbp_core.wire.headers import ClientRole, HeartbeatRequest, HeartbeatResponse
from sbp_core.wire.opcodes import Opcode


@dataclass(slots=True)
class Gateway:
    """The state of a gateway. Nothing of it has to outlive the process.

    A topic that is created without saying more gets `partition_count` partitions with
    `replica_count` replicas each. With `creates_topics`, one that a client writes to or asks for is
    created.
    """

    peers: Peers
    topics: Topics
    partition_count: int = 1
    replica_count: int = 1
    creates_topics: bool = True
    producers: Producers = field(default_factory=Producers)
    schemas: Schemas = field(default_factory=Schemas)
    ends: StreamEnds = field(default_factory=StreamEnds)
    groups: Groups = field(default_factory=Groups)
    _cluster_id: str = ""

    async def cluster_id(self, client: AsyncClient) -> str:
        """Return the id of the cluster."""
        if not self._cluster_id:
            header = HeartbeatRequest(client_role=ClientRole.CLIENT)
            answers = await client.ask(Opcode.HEARTBEAT, header, HeartbeatResponse)
            self._cluster_id = answers[-1].cluster_id or ""
        return self._cluster_id
