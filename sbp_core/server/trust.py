"""How the servers of a cluster know each other: by its id, and a secret for each range server.

Servers and peers of different clusters are kept apart (SPEC "HEARTBEAT", extension).

The placement driver makes the secret with the server's id. The range server sends it with its
heartbeats. The placement driver never sends it: a server hands out a challenge, other random bytes
for each connection, and only the proof that follows from both goes back. So a process that listens
where a range server was learns nothing that it could use at the placement driver or elsewhere.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from typing import Final

from sbp_core import limits
from sbp_core.access.identity import Identity
from sbp_core.errors import (
    InvalidRequestError,
    PermissionDeniedError,
    SbpError,
    UnauthenticatedError,
)
from sbp_core.wire.headers import ClientRole, HeartbeatRequest, HeartbeatResponse, Status
from sbp_core.wire.status import shown

SECRETS_FEATURE: Final = "server-secrets"
"""Offered in the HEARTBEAT of a range server, accepted by a placement driver that keeps secrets."""


class ServerRole(enum.StrEnum):
    """The two kinds of servers."""

    PLACEMENT_DRIVER = "placement driver"
    RANGE_SERVER = "range server"


def new_secret() -> str:
    """Return a new secret of a range server."""
    return secrets.token_hex(limits.SERVER_SECRET_BYTES)


def is_same(given: str | None, expected: str) -> bool:
    """Whether a peer gave what is expected, in a time that does not depend on the answer."""
    return hmac.compare_digest((given or "").encode(), expected.encode())


def proof_of(secret: str, challenge: bytes) -> str:
    """Return what a placement driver answers to a server's challenge."""
    return hmac.new(secret.encode(), challenge, hashlib.sha256).hexdigest()


@dataclass(slots=True)
class Standing:
    """The proven identity of the peer of a connection; nothing at first.

    `identity` is the subject of a certificate or token, if the server asks for identities; it may
    have expired.
    `server_ids` are the range servers of the connection, at a placement driver: several if servers
    share the connection.
    """

    identity: Identity | None = None
    is_certificate_read: bool = False
    is_refusal_logged: bool = False
    is_placement_driver: bool = False
    server_ids: set[int] = field(default_factory=set)
    challenge: bytes = field(
        default_factory=lambda: secrets.token_bytes(limits.CHALLENGE_BYTES), repr=False
    )


def denied(message: str, detail: bytes = b"") -> PermissionDeniedError:
    """Return the error of a request that its sender may not make."""
    return PermissionDeniedError.of(message, detail)


def check_cluster(request: HeartbeatRequest, own: str) -> None:
    """Raise InvalidRequestError when a peer's HEARTBEAT claims another cluster than our `own`.

    Also when a server claims none, because a server knows its cluster.
    """
    claimed = request.cluster_id
    is_server = request.client_role in {ClientRole.RANGE_SERVER, ClientRole.PD}
    if is_server and not claimed:
        raise InvalidRequestError.of(
            f"this is cluster {own}; the HEARTBEAT of a server must carry the id of its cluster"
        )
    if claimed and claimed != own:
        raise InvalidRequestError.of(
            f"this is cluster {own}, and the peer is of cluster {shown(claimed)}. Connect to the"
            " placement driver of that one, or, if both should be the same, restore the right data"
            " directory: that of the placement driver, or of the peer. No data was changed"
        )


def heartbeat_answer(
    request: HeartbeatRequest, status: Status, cluster_id: str
) -> HeartbeatResponse:
    """Return what every server answers to a HEARTBEAT."""
    return HeartbeatResponse(
        client_id=request.client_id,
        client_role=request.client_role,
        range_server=request.range_server,
        status=status,
        cluster_id=cluster_id,
    )


def is_denial(error: SbpError) -> bool:
    """Whether an error says that a peer has no identity, or not the rights."""
    return isinstance(error, UnauthenticatedError | PermissionDeniedError)
