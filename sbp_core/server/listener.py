"""Accepts connections, bounds their number and patience, drains all of them at the end.

A server that is full closes the connection that has been unused for the longest time, and accepts
the new one. The server sends GOAWAY first, so that the client reconnects without an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Final

from sbp_core import limits
from sbp_core.errors import ConfigurationError, InvalidRequestError, SbpError, ThrottledError
from sbp_core.record_sizes import DEFAULT, RecordSizes
from sbp_core.server.accepting import Acceptor, Admission, is_spare, local_reserve, owner_of
from sbp_core.server.budget import Budget
from sbp_core.server.dispatch import Dispatcher, Handler
from sbp_core.server.gate import Gate
from sbp_core.server.metrics import COMMON, Reading
from sbp_core.server.outgoing import Unread
from sbp_core.server.peer import Peer
from sbp_core.server.quota_rules import QuotaFile
from sbp_core.server.quotas import Quotas
from sbp_core.server.runtime import Clock, Turns
from sbp_core.server.trust import ServerRole
from sbp_core.session.connection import Connection
from sbp_core.settings.listening import Exposure
from sbp_core.settings.quota_settings import NO_RULES
from sbp_core.sockets import TlsLink
from sbp_core.tls import Contexts
from sbp_core.tls_errors import PlainTextError, refusal
from sbp_core.wire.checksum import Buffer
from sbp_core.wire.opcodes import Opcode

_LOG: Final = logging.getLogger(__name__)

_CONNECTIONS: Final = COMMON.gauge("sbp_connections", "Connections that are open.", "role")
_ACCEPTED: Final = COMMON.counter(
    "sbp_connections_accepted_total", "Connections that were accepted.", "role"
)
_REFUSED: Final = COMMON.counter(
    "sbp_connections_refused_total",
    "Connections that were closed at once: their address, or the server, had too many.",
    "role",
)
_THROTTLED: Final = COMMON.counter(
    "sbp_throttled_answers_total",
    "Answers that asked for a wait, as the identity of the client is above its quota.",
    "role",
)
_ABOVE_QUOTA: Final = COMMON.counter(
    "sbp_quota_refusals_total",
    "Requests that were refused, as their identity has too many connections, or is above a rate.",
    "role",
)
_MEMORY: Final = COMMON.gauge(
    "sbp_request_memory_bytes", "Memory that requests and frames on their way take.", "role"
)
_MEMORY_MAX: Final = COMMON.gauge(
    "sbp_request_memory_limit_bytes", "The most that all connections share of it.", "role"
)
_WAITING: Final = COMMON.gauge(
    "sbp_requests_waiting", "Requests and frames that wait for this memory.", "role"
)
_OVER_QUOTA: Final = COMMON.gauge(
    "sbp_identities_over_quota", "Identities that wait, as they are above their quota.", "role"
)

_OWN_BYTES: Final = limits.CONNECTION_OWN_BYTES * (
    limits.CONNECTIONS_MAX + limits.CONNECTIONS_RESERVED + local_reserve()
)
"""Memory of the own shares of all connections together."""


class Listener:
    """A TCP listener that serves requests with the given handlers.

    `sizes` bound frames, and what one connection holds; `in_flight_bytes_max` is for all of them.
    With `tls` it speaks nothing else; `gate` identifies peers, which have the quotas in
    `quota_file`.
    """

    def __init__(
        self,
        handlers: Mapping[Opcode, Handler],
        *,
        role: ServerRole,
        clock: Clock,
        connections_per_address_max: int = limits.CONNECTIONS_PER_ADDRESS_MAX,
        connections_max: int = limits.CONNECTIONS_MAX,
        connections_reserved: int = limits.CONNECTIONS_RESERVED,
        idle_connection_ms: int = limits.IDLE_CONNECTION_MS,
        in_flight_bytes_max: int = limits.SERVER_IN_FLIGHT_BYTES_MAX,
        sizes: RecordSizes = DEFAULT,
        tls: Contexts | None = None,
        gate: Gate | None = None,
        quota_file: QuotaFile | None = None,
    ) -> None:
        self._tls = tls
        self._gate = gate or Gate()
        self._dispatcher = Dispatcher(handlers, role=role, clock=clock, gate=self._gate)
        self._role = role
        self._clock = clock
        self._idle_seconds = idle_connection_ms / 1000
        self._budget = Budget(
            in_flight_bytes_max - _OWN_BYTES, own_bytes_max=limits.CONNECTION_OWN_BYTES
        )
        self._sizes = sizes
        rules = (lambda: NO_RULES) if quota_file is None else quota_file.rules
        self._quotas = Quotas(clock.monotonic, rules)
        self._unread = Unread(sizes.server_unread_bytes, clock.monotonic)
        self._turns = Turns()
        self._accepted_count = 0
        self._peers: set[Peer] = set()
        self._departed: set[Peer] = set()
        """Peers whose connection is closed, and whose requests are still in progress."""
        self._sent_away: set[Peer] = set()
        self._no_spare_until = 0.0
        self._admission = Admission(
            connections_per_address_max,
            connections_max=connections_max,
            reserved=connections_reserved,
        )
        self._refused_count = 0
        """Connections that were refused since the last sweep."""
        self._refused_before = 0
        """Connections that were refused before the last sweep."""
        self._acceptor: Acceptor | None = None
        self._connecting: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._key_fetcher: asyncio.Task[None] | None = None

    @property
    def connection_count(self) -> int:
        """Connections that are open now."""
        return len(self._peers)

    def read_metrics(self) -> Iterator[Reading]:
        """Yield the metrics of requests and connections as they are now."""
        role = self._role.name.lower()
        yield from self._dispatcher.times.read(role)
        yield _CONNECTIONS.of(len(self._peers), role)
        yield _ACCEPTED.of(self._accepted_count, role)
        yield _REFUSED.of(self._refused_before + self._refused_count, role)
        yield _THROTTLED.of(self._quotas.throttled_count, role)
        yield _ABOVE_QUOTA.of(self._quotas.refused_count, role)
        yield _MEMORY.of(self._budget.taken_bytes, role)
        yield _MEMORY_MAX.of(self._budget.bytes_max, role)
        yield _WAITING.of(self._budget.waiting_count, role)
        yield _OVER_QUOTA.of(self._quotas.over_count, role)

    async def start(self, host: str, port: int, exposure: Exposure = Exposure.NOBODY) -> int:
        """Listen; return the port, which the system picks when `port` is 0.

        Raises ConfigurationError when the address cannot be listened on, or other machines can
        reach it, and none of them may.
        """
        await self._gate.fetch_keys()
        acceptor = Acceptor(self._on_accepted)
        try:
            bound_port = await acceptor.start(host, port, exposure)
        except OSError as error:
            # The text of a system error repeats the address. Errors of a host name are below 0.
            code = error.errno or 0
            reason = os.strerror(code) if code > 0 else error.strerror
            raise ConfigurationError(
                f"the {self._role} cannot listen on {host}:{port}: {reason}; choose"
                " another host or port (0 picks a free port)"
            ) from error
        self._acceptor = acceptor
        self._sweeper = asyncio.create_task(self._sweep_for_ever())
        self._key_fetcher = asyncio.create_task(self._gate.keep_fetching_keys())
        return bound_port

    async def drain(self, timeout_ms: int = limits.DRAIN_TIMEOUT_MS) -> None:
        """Stop accepting, send GOAWAY, let open calls finish within the time.

        Calls that are not answered, or not read by the peer, by then are cut off.
        """
        if self._acceptor is None:
            return
        self._acceptor.close()
        if self._connecting:
            await asyncio.wait(self._connecting, timeout=timeout_ms / 1000)
        for each in (self._sweeper, self._key_fetcher):
            if each is not None:
                each.cancel()
        peers = list(self._peers)
        for peer in peers:
            peer.go_away()
        finishing = {asyncio.create_task(peer.finish()): peer for peer in peers}
        if finishing:
            _, late = await asyncio.wait(finishing, timeout=timeout_ms / 1000)
            for task in late:
                task.cancel()
                finishing[task].abort()
        self._unread.close()

    def sweep(self) -> None:
        """Close the connections of peers that kept the server waiting for too long."""
        self._unread.look()
        for peer in list(self._peers):
            peer.close_if_overdue(self._idle_seconds)
        self._departed = {peer for peer in self._departed if not peer.forsake_if_overdue()}
        if self._refused_count:
            _LOG.warning("connections refused count=%d", self._refused_count)
            self._refused_before += self._refused_count
            self._refused_count = 0

    def _on_accepted(self, connection: socket.socket, address: str) -> None:
        try:
            if is_spare(connection):
                raise ThrottledError.of(
                    "the server can open only a few more files; raise its limit of open files"
                )
            owner = owner_of(address)
            self._admit(owner)
        except ThrottledError as error:
            if not self._refused_count:
                _LOG.warning("connection refused address=%s: %s", address, error)
            self._refused_count += 1
            self._turn_away(connection, error)
            return
        self._accepted_count += 1
        peer = Peer(
            self._dispatcher,
            self._clock,
            self._on_closed,
            budget=self._budget,
            unread=self._unread,
            turns=self._turns,
            connection_id=self._accepted_count,
            quotas=self._quotas,
            owner=owner,
            sizes=self._sizes,
        )
        self._peers.add(peer)
        connecting = asyncio.create_task(self._connect(peer, connection, address))
        self._connecting.add(connecting)
        connecting.add_done_callback(self._connecting.discard)

    async def _connect(self, peer: Peer, connection: socket.socket, address: str) -> None:
        loop = asyncio.get_running_loop()
        is_connected = False
        try:
            async with asyncio.timeout(limits.FIRST_FRAME_MS / 1000):
                await loop.connect_accepted_socket(lambda: self._secured(peer), connection)
            is_connected = True
        except OSError as error:
            _LOG.debug("connection lost at once peer=%s: %s", address, error)
        finally:
            if not is_connected:
                connection.close()
                self._on_closed(peer)

    def _secured(self, peer: Peer) -> Peer | TlsLink:
        """Return the protocol of a peer's connection."""
        if self._tls is None:
            return peer

        def on_refused(failure: Exception) -> list[Buffer]:
            _LOG.warning("connection ended peer=%s: %s", peer.name, refusal(failure))
            if not isinstance(failure, PlainTextError):
                return []
            return Connection().send_farewell(
                InvalidRequestError.of(
                    "this port of the server speaks TLS only: connect with TLS (ca_file of"
                    " Tls, --tls-ca, or the option tlsCaFile)"
                )
            )

        channel = self._tls.server_channel()
        return TlsLink(peer, channel, enter=self._turns.enter, on_refused=on_refused)

    def _on_closed(self, peer: Peer) -> None:
        if peer not in self._peers:
            return
        self._peers.discard(peer)
        self._admission.leave(peer.owner, was_sent_away=peer in self._sent_away)
        self._sent_away.discard(peer)
        if not peer.forsake_if_overdue():
            self._departed.add(peer)

    def _admit(self, owner: str) -> None:
        """Count a connection, in the place of another if need be. Raises ThrottledError."""
        try:
            self._admission.enter(owner)
        except ThrottledError:
            spare = self._maybe_spare(owner)
            if spare is None:
                raise
            _LOG.debug("GOAWAY sent peer=%s: a new connection needs its place", spare.name)
            self._sent_away.add(spare)
            self._admission.send_away(spare.owner)
            spare.go_away()
            self._admission.enter(owner)

    def _maybe_spare(self, owner: str) -> Peer | None:
        """Return the connection that should make room for a newcomer of `owner`, None without any.

        The connection has been unused for the longest time, and its owner has at least as many
        connections as the newcomer's owner: no owner gets more by displacing others.
        """
        now = self._clock.monotonic()
        if not self._admission.may_send_away or now < self._no_spare_until:
            return None
        is_full, count = self._admission.is_full_for(owner), self._admission.count_of(owner)
        spare_ms, spare = max(
            (
                (peer.spare_ms(), peer)
                for peer in self._peers
                if (not is_full or peer.owner == owner)
                and self._admission.count_of(peer.owner) >= count
            ),
            key=itemgetter(0),
            default=(-1.0, None),
        )
        if spare is None or spare_ms < 0:
            self._no_spare_until = now + limits.EVICTION_PAUSE_MS / 1000
            return None
        return spare

    def _turn_away(self, connection: socket.socket, reason: SbpError) -> None:
        """Say why, and close; what the peer sent until then is not looked at.

        With TLS nothing is said: that would take a handshake.
        """
        if self._tls is not None:
            connection.close()
            return
        farewell = Connection().send_farewell(reason)
        with connection, contextlib.suppress(OSError):
            connection.send(b"".join(farewell))
            connection.shutdown(socket.SHUT_WR)
            connection.recv(limits.RECEIVE_BUFFER_BYTES)  # unread bytes would reset it

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(min(self._idle_seconds, limits.SWEEP_MS / 1000))
            self.sweep()
