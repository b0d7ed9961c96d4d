"""Proving to range servers that this is their placement driver (SPEC "HEARTBEAT", extension).

A range server that wants a proof refuses what only its placement driver may ask, PERMISSION_DENIED.
The proof holds for the connection, so it is given when it is missing: on the first such request of
a connection, and whenever another server answers at an address.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from sbp_core import limits
from sbp_core.client import AsyncClient
from sbp_core.errors import PermissionDeniedError
from sbp_core.pd.metadata.store import MetadataStore
from sbp_core.pd.metadata.store_thread import StoreThread
from sbp_core.server.trust import proof_of
from sbp_core.wire.headers import (
    ClientRole,
    HeartbeatRequest,
    HeartbeatResponse,
    decode_header,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import check_status

T = TypeVar("T")


async def prove(
    client: AsyncClient, address: str, cluster_id: str, secrets: Sequence[str], *, timeout_ms: int
) -> bool:
    """Prove to the server at `address` to know its secret, one of `secrets`.

    Return whether it holds one of them; one that wants no proof does not tell. Raises
    PermissionDeniedError if it holds another one, SbpError if it does not answer.
    """

    async def greet(proof: str | None) -> None:
        request = HeartbeatRequest(
            client_id="placement-driver",
            client_role=ClientRole.PD,
            cluster_id=cluster_id,
            server_secret=proof,
        )
        frames = await client.call(address, Opcode.HEARTBEAT, request, timeout_ms=timeout_ms)
        check_status(decode_header(HeartbeatResponse, frames[-1].header).status)

    try:
        await greet(None)
    except PermissionDeniedError as error:
        challenge, refusal = error.detail, error
    else:
        return False
    for secret in secrets:
        try:
            await greet(proof_of(secret, challenge))
        except PermissionDeniedError as error:
            refusal = error
        else:
            return True
    raise refusal


def _secrets_at(store: MetadataStore, address: str) -> list[str]:
    return store.secrets.secrets_at(address)


class Prover:
    """Lets a placement driver's requests be served that need a proof."""

    def __init__(self, store: StoreThread) -> None:
        self._store = store

    async def ask(
        self, client: AsyncClient, address: str, request: Callable[[], Awaitable[T]]
    ) -> T:
        """Make a request of a range server; again, after the proof, if that is missing.

        Raises what the request raises, and what `prove` raises.
        """
        try:
            return await request()
        except PermissionDeniedError:
            secrets = await self._store.run(_secrets_at, address)
            await prove(
                client,
                address,
                self._store.cluster_id,
                secrets,
                timeout_ms=limits.PROOF_TIMEOUT_MS,
            )
        return await request()
