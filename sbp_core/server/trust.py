"""How the servers of a cluster know each other: by a secret for each range server.

The placement driver makes it with the server's id. The range server sends it with its heartbeats.
The placement driver never sends it: a server hands out a challenge, other random bytes for each
connection, and only the proof that follows from both goes back. So a process that listens where a
range server was learns nothing that it could use at the placement driver or elsewhere.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from typing import Final

from sbp_core import limits
from sbp_core.errors import PermissionDeniedError, StatusCode

SECRETS_FEATURE: Final = "server-secrets"
"""Offered in the HEARTBEAT of a range server, accepted by a placement driver that keeps secrets."""


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
    """What the peer of a connection has proven to be; nothing at first.

    `server_ids` are those of range servers, at a placement driver: one, unless servers share it.
    """

    is_placement_driver: bool = False
    server_ids: set[int] = field(default_factory=set)
    challenge: bytes = field(
        default_factory=lambda: secrets.token_bytes(limits.CHALLENGE_BYTES), repr=False
    )


def denied(message: str, detail: bytes = b"") -> PermissionDeniedError:
    """Return the error of a request that its sender may not make."""
    return PermissionDeniedError(StatusCode.PERMISSION_DENIED, message, detail)
