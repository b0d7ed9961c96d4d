"""The authenticated identity of a peer.

The subject of a certificate is a distinguished name (RFC 4514, such as `CN=billing,O=Acme`). That
of a token is its `sub`, in which no `=` is accepted. So neither can be taken for the other.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """A subject, and whether it is an administrator or a server of the cluster.

    `expires_at_ms` is when it ends, in ms since the epoch, UTC; None for that of a certificate,
    which ends with its connection.
    """

    subject: str
    is_admin: bool = False
    is_server: bool = False
    expires_at_ms: int | None = None

    def __str__(self) -> str:
        return self.subject
