"""The gateways of a cluster: which there are, and which serves what.

A gateway is a member of a group at the placement driver; the members of the group are the gateways.
The stream that a member subscribes to is its address, HOST:PORT, which names no stream. Each
partition, and each group, belongs to the gateway with the highest hash of the two (rendezvous
hashing), so that one that comes or goes moves only its own. Any gateway serves any partition: this
only spreads the work. Groups are served by their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from sbp_core.client.async_client import AsyncClient
from sbp_core.client.types import Membership
from sbp_core.errors import MemberUnknownError, SbpError
from sbp_core.group_limits import GATEWAYS_GROUP

_LOG: Final = logging.getLogger(__name__)
_SESSION_MS: Final = 6_000
_HEARTBEAT_SECONDS: Final = 1.5
_NODE_ID_MASK: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, order=True)
class Node:
    """A gateway, and where clients reach it. Its id follows from the address."""

    host: str
    port: int

    @property
    def node_id(self) -> int:
        """The id of the broker that clients take it for."""
        return zlib.crc32(str(self).encode()) & _NODE_ID_MASK

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def maybe_of(cls, address: str) -> Node | None:
        """Return the node of an address, None for the subscription of something else."""
        host, _, port = address.rpartition(":")
        return cls(host, int(port)) if host and port.isdecimal() else None


@lru_cache(100_000)
def _owner(nodes: tuple[Node, ...], key: str) -> Node:
    def weight(node: Node) -> bytes:
        return hashlib.blake2b(f"{key}@{node}".encode(), digest_size=8).digest()

    return max(nodes, key=weight)


class Peers:
    """The gateways, as this one knows them; `own` is always one of them."""

    def __init__(self, own: Node) -> None:
        self.own: Final = own
        self.nodes: tuple[Node, ...] = (own,)
        self._member_id: Final = uuid.uuid4().hex
        self._keeping: asyncio.Task[None] | None = None

    @property
    def controller(self) -> Node:
        """The gateway that clients ask to create topics: any can."""
        return self.nodes[0]

    def server_of(self, key: str) -> Node:
        """Return the gateway that serves a partition; `key` is the id of its stream."""
        return _owner(self.nodes, key)

    def coordinator_of(self, group: str) -> Node:
        """Return the gateway that coordinates a group."""
        return _owner(self.nodes, f"group {group}")

    def is_coordinator(self, group: str) -> bool:
        """Whether this gateway coordinates a group."""
        return self.coordinator_of(group) == self.own

    async def start(self, client: AsyncClient) -> None:
        """Register this gateway, and follow the others. Without the right to, it stays alone."""
        try:
            membership = await self._join(client)
            await self._look(client)
        except SbpError as error:
            _LOG.warning(
                "gateway not registered: %s; other gateways of the cluster do not know this one",
                error,
            )
            return
        self._keeping = asyncio.create_task(self._keep(client, membership))

    async def stop(self, client: AsyncClient) -> None:
        """Leave the others, which serve the groups of this gateway at once."""
        if self._keeping is None:
            return
        self._keeping.cancel()
        with contextlib.suppress(SbpError):
            await client.leave_group(GATEWAYS_GROUP, self._member_id)

    async def _join(self, client: AsyncClient) -> Membership:
        return await client.join_group(
            GATEWAYS_GROUP,
            [str(self.own)],
            member_id=self._member_id,
            session_timeout_ms=_SESSION_MS,
        )

    async def _look(self, client: AsyncClient) -> None:
        members = (await client.describe_group(GATEWAYS_GROUP)).members
        self._learn([pattern for each in members for pattern in each.patterns])

    def _learn(self, addresses: Sequence[str]) -> None:
        found = {Node.maybe_of(each) for each in addresses} - {None}
        nodes = tuple(sorted({self.own, *(each for each in found if each is not None)}))
        if nodes != self.nodes:
            _LOG.info("gateways known count=%d", len(nodes))
            self.nodes = nodes

    async def _keep(self, client: AsyncClient, membership: Membership) -> None:
        while True:
            await asyncio.sleep(_HEARTBEAT_SECONDS)
            try:
                try:
                    membership = await client.group_heartbeat(membership, ())
                except MemberUnknownError:
                    membership = await self._join(client)
                await self._look(client)
            except SbpError as error:
                _LOG.warning("gateways not looked up: %s", error)
