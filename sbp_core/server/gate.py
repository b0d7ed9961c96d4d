"""The gate: which identity a connection has, and which requests need one.

The gate is asked before any handler. Where identities are off, the gate keeps from peers without a
certificate what servers of a cluster ask each other. Where they are on, HEARTBEAT and PING need no
identity; all else does, and what is for servers needs that of a server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from msgspec.structs import replace

from sbp_core.access.identity import Identity, canonical_subject, subject_of_certificate
from sbp_core.errors import ConfigurationError, PermissionDeniedError, UnauthenticatedError
from sbp_core.server.served import Unready
from sbp_core.server.trust import Standing
from sbp_core.session.negotiation import identity_answer, maybe_token
from sbp_core.settings.listening import ListenerSettings
from sbp_core.wire.headers import HeartbeatRequest, HeartbeatResponse
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import is_success, status_for

if TYPE_CHECKING:
    from pathlib import Path

    from sbp_core.access.tokens import Tokens

_LOG: Final = logging.getLogger(__name__)

_BY_SERVERS: Final = frozenset(
    {
        *(Opcode.ALLOCATE_ID, Opcode.REPORT_METRICS, Opcode.CHECK_RIGHTS),
        *(Opcode.END_TXN, Opcode.READ_ENTRIES, Opcode.REPLICATE, Opcode.SYNC_RANGES),
    }
)
"""Requests of the servers of a cluster to each other, which no client makes."""


class Identified(Protocol):
    """The peer of a connection."""

    standing: Standing
    name: str
    """Its address and connection, for the log."""

    @property
    def certificate(self) -> bytes | None:
        """The certificate that it has shown, in DER."""

    @property
    def may_be_server(self) -> bool:
        """Whether it may be a server: with TLS, whether an authority in ca_file vouches for it."""


class Gate:
    """Decides which peers may ask. Identities are on if there are `admins`.

    `admins`, `servers` and `monitors` are subjects; without `tokens` certificates are the only
    identities.
    """

    def __init__(
        self,
        admins: frozenset[str] = frozenset(),
        servers: frozenset[str] = frozenset(),
        tokens: Tokens | None = None,
        monitors: frozenset[str] = frozenset(),
    ) -> None:
        self._admins = admins
        self._monitors = monitors
        self._servers = servers
        self._tokens = tokens

    @property
    def is_on(self) -> bool:
        """Whether requests need an identity."""
        return bool(self._admins)

    def check(self, peer: Identified, operation: Opcode, now_ms: int) -> None:
        """Check that a peer may send a request, by its opcode.

        Raises UnauthenticatedError without an identity, PermissionDeniedError if it has to be that
        of a server.
        """
        if operation is not Opcode.HEARTBEAT and self.is_on:
            self._living_identity(peer, operation.name, now_ms)
        if operation in _BY_SERVERS:
            self.check_is_server(peer, operation, now_ms)

    def maybe_metered(self, peer: Identified) -> str | None:
        """Return the identity that the requests of a peer count for; None without a quota.

        Servers of the cluster, administrators and peers without an identity have no quota.
        """
        identity = self._maybe_identity(peer) if self.is_on else None
        if identity is None or identity.is_server or identity.is_admin:
            return None
        return identity.subject

    def check_is_server(self, peer: Identified, operation: Opcode, now_ms: int) -> None:
        """Check that a peer may ask as a server of the cluster. Raises as `check` does."""
        if not self.is_on:
            if not peer.may_be_server:
                raise PermissionDeniedError.of(
                    f"{operation.name} of a server needs a connection with a certificate: set"
                    " cert_file and key_file in [tls] of that server, of an authority that is in"
                    " ca_file of this one"
                )
            return
        identity = self._living_identity(peer, operation.name, now_ms)
        if not identity.is_server:
            remedy = "name it in servers of [auth]"
            if identity.subject in self._servers:
                remedy = "use a certificate of an authority in ca_file of [tls]"
            raise PermissionDeniedError.of(
                f"{operation.name} is for the servers of the cluster, and {identity} is none of"
                f" them: if it should be, {remedy}{identity.remark}"
            )

    async def check_reader(
        self,
        peer: Identified,
        token: bytes | None,
        what: str,
        now_ms: int,
        *,
        is_monitoring: bool,
    ) -> None:
        """Check that a peer of the admin endpoint, which may send a token, may read something.

        `is_monitoring` says that monitors may. Raises UnauthenticatedError without an identity,
        PermissionDeniedError if it is another one.
        """
        if token is not None:
            if self._tokens is not None and self._tokens.wants_keys(token, now_ms):
                await self.fetch_keys()
            self._admit(peer, token, now_ms)
        identity = self._living_identity(peer, what, now_ms)
        is_monitor = is_monitoring and identity.subject in self._monitors
        if not identity.is_admin and not is_monitor:
            whom = "administrators and monitors" if is_monitoring else "administrators"
            raise PermissionDeniedError.of(
                f"{what} is for {whom}, and {identity} is none of them: name it in"
                f" {'monitors' if is_monitoring else 'admins'} of [auth] if it should be"
                f"{identity.remark}"
            )

    def greet(
        self, peer: Identified, request: HeartbeatRequest, response: HeartbeatResponse, now_ms: int
    ) -> HeartbeatResponse:
        """Accept the token of a HEARTBEAT, if it offers one; return what to answer then."""
        token = maybe_token(request.features)
        if token is None or not self.is_on:
            return response
        try:
            end_ms = self._admit(peer, token, now_ms)
        except UnauthenticatedError as error:
            if not peer.standing.is_refusal_logged:
                peer.standing.is_refusal_logged = True
                _LOG.warning("identity refused peer=%s: %s", peer.name, error)
            if not is_success(response.status):
                return response
            return replace(response, status=status_for(error))
        return replace(response, features=(*response.features, identity_answer(end_ms)))

    def wants_keys(self, request: HeartbeatRequest, now_ms: int) -> bool:
        """Whether `fetch_keys` should come before `greet`."""
        token = maybe_token(request.features)
        return (
            token is not None
            and self._tokens is not None
            and self._tokens.wants_keys(token, now_ms)
        )

    @property
    def failed_fetch_count(self) -> int:
        """Fetches of the keys of tokens that failed in a row."""
        return 0 if self._tokens is None else self._tokens.keys.failed_count

    def unready(self) -> Iterator[Unready]:
        """Yield why no token can be verified."""
        if self._tokens is not None and not self._tokens.keys.current():
            yield Unready(
                "token_keys_missing",
                "no token is accepted, as the keys of the issuer were not fetched yet:"
                f" {self._tokens.keys.failure}",
            )

    async def keep_fetching_keys(self) -> None:
        """Fetch the keys again until that succeeds for the first time."""
        while self._tokens is not None and not self._tokens.keys.current():
            await asyncio.sleep(self._tokens.keys.pause_ms / 1000)
            await self.fetch_keys()

    async def fetch_keys(self) -> None:
        """Fetch the keys that tokens are verified with, if they are at a URL.

        Takes FETCH_TIMEOUT_MS at most; what takes longer goes on in a thread.
        """
        if self._tokens is not None and self._tokens.keys.is_due(is_unknown=True):
            with suppress(TimeoutError):
                async with asyncio.timeout(self._tokens.keys.timeout_ms / 1000):
                    await asyncio.to_thread(self._tokens.keys.reload)

    def _living_identity(self, peer: Identified, what: str, now_ms: int) -> Identity:
        """Return the identity of a peer. Raises UnauthenticatedError without one that holds."""
        identity = self._maybe_identity(peer)
        if identity is None:
            how = "a certificate" if self._tokens is None else "a token, or a certificate"
            raise UnauthenticatedError.of(
                f"{what} needs an identity, and this connection has none: connect with"
                f" {how} of an authority that the server trusts"
            )
        if identity.has_ended(now_ms):
            raise UnauthenticatedError.of(
                f"{what} needs an identity, and that of {identity} has ended: put a new"
                " token into the token's file, or set the clock of the client right"
            )
        return identity

    def _maybe_identity(self, peer: Identified) -> Identity | None:
        """Return the identity of a peer, even if it has ended; at first that of its certificate."""
        standing = peer.standing
        if not standing.is_certificate_read:
            standing.is_certificate_read = True
            if peer.certificate is not None:
                standing.identity = self._maybe_certified(peer, peer.certificate)
        return standing.identity

    def _maybe_certified(self, peer: Identified, certificate: bytes) -> Identity | None:
        try:
            subject = subject_of_certificate(certificate)
        except ValueError as error:
            _LOG.warning("identity not readable: %s", error)
            return None
        if not subject:
            return None
        is_server = subject in self._servers and peer.may_be_server
        return Identity(subject, subject in self._admins, is_server)

    def _admit(self, peer: Identified, token: bytes, now_ms: int) -> int:
        """Let a peer have the identity of a token; return when that ends, in ms since the epoch.

        Raises UnauthenticatedError, and the peer keeps the identity that it had.
        """
        if self._tokens is None:
            raise UnauthenticatedError.of(
                "this server accepts no tokens: connect with a certificate of an authority that it"
                " trusts, or set jwks_file or jwks_url in [auth]"
            )
        former = self._maybe_identity(peer)
        if former is not None and former.is_server:
            raise UnauthenticatedError.of(
                f"this connection is that of the server {former}, which needs no token: send none"
            )
        claims = self._tokens.verify(token, now_ms)
        is_renewal = former is not None and former.expires_at_ms is not None
        if is_renewal and str(former) != claims.subject:
            raise UnauthenticatedError.of(
                f"the token is that of {claims.subject}, and this connection that of {former}: open"
                " another connection"
            )
        unused = None
        if former is not None:
            unused = former.unused_certificate if is_renewal else former.subject
        peer.standing.identity = Identity(
            claims.subject,
            is_admin=claims.subject in self._admins,
            expires_at_ms=claims.expires_at_ms,
            unused_certificate=unused,
        )
        return claims.expires_at_ms


def gate_of(settings: ListenerSettings) -> Gate:
    """Return what identifies peers. Raises ConfigurationError if its files cannot be used."""
    if not settings.auth_admins:
        return Gate()
    admins = frozenset(map(canonical_subject, settings.auth_admins))
    monitors = frozenset(map(canonical_subject, settings.auth_monitors))
    servers = frozenset(map(canonical_subject, settings.auth_servers))
    if not servers:
        assert settings.tls_cert_file is not None
        servers = frozenset({_own_subject(settings.tls_cert_file)})
    tokens = None
    if settings.auth_issuer is not None and settings.auth_audience is not None:
        from sbp_core.access.tokens import ready as tokens_of

        keys = (settings.auth_jwks_file, settings.auth_jwks_url, settings.auth_jwks_ca_file)
        tokens = tokens_of(*keys, settings.auth_issuer, settings.auth_audience)
    return Gate(admins, servers, tokens, monitors)


def _own_subject(cert_file: Path) -> str:
    try:
        subject = subject_of_certificate(cert_file.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"TLS: the certificate in {cert_file} cannot be read; give one in PEM"
        ) from error
    if not subject:
        raise ConfigurationError(
            f"[auth] servers is not set, and the certificate in {cert_file} has no subject: use one"
            " that has, as others of the same authority could be clients"
        )
    return subject
