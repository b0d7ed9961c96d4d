"""A gateway that listens: its connections, and its place among the other gateways."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Final

from sbp_core.client.async_client import AsyncClient
from sbp_core.errors import ConfigurationError
from sbp_core.kafka.connection import ARRIVAL_SECONDS, Connection
from sbp_core.kafka.gateway import Gateway
from sbp_core.kafka.memory import Memory
from sbp_core.kafka.peers import Node, Peers
from sbp_core.kafka.record_sets import warm_up
from sbp_core.kafka.signing_in import SignIn
from sbp_core.kafka.topics import Topics
from sbp_core.server.accepting import Acceptor, is_spare
from sbp_core.settings.kafka_settings import KafkaSettings
from sbp_core.settings.listening import Exposure
from sbp_core.web.callers import Callers

_LOG: Final = logging.getLogger(__name__)
CONNECTIONS_MAX: Final = 2_000
_GRACE_SECONDS: Final = 1.0
"""Clients keep their connections open: requests under way have this long at a stop."""


class KafkaListener:
    """Accepts connections of Kafka's protocol, on the loop that `start` is called on."""

    def __init__(self, settings: KafkaSettings, callers: Callers) -> None:
        self._settings = settings
        self._callers = callers
        self._tls = settings.tls_contexts()
        self._own = AsyncClient(settings.endpoint, connecting=settings.connecting)
        self._gateway: Gateway | None = None
        self._memory = Memory()
        self._acceptor = Acceptor(self._on_accepted)
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int, exposure: Exposure) -> int:
        """Listen, and join the other gateways; return the port.

        Raises ConfigurationError when the address cannot be listened on, or must not be.
        """
        await asyncio.to_thread(warm_up)
        try:
            port = await self._acceptor.start(host, port, exposure)
        except OSError as error:
            raise ConfigurationError(
                f"sbp kafka cannot listen on {host}:{port}: {error.strerror or error}; choose"
                " another --port (0 picks a free one)"
            ) from error
        settings = self._settings
        self._gateway = Gateway(
            Peers(Node(settings.advertise_host or host, port)),
            Topics(settings.topics or ("*",)),
            partition_count=settings.partitions,
            replica_count=settings.replicas,
            creates_topics=not settings.no_auto_create,
        )
        await self._gateway.peers.start(self._own)
        return port

    async def stop(self, grace_seconds: float = 0.0) -> None:
        """Leave the other gateways, close the port, and after a while all connections."""
        if self._gateway is not None:
            await self._gateway.peers.stop(self._own)
            self._gateway.groups.close()  # members learn within the grace time that they must move
        self._acceptor.close()
        if self._serving and grace_seconds:
            await asyncio.wait(self._serving, timeout=min(grace_seconds, _GRACE_SECONDS))
        for each in self._serving:
            each.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._own.close()

    def _on_accepted(self, accepted: socket.socket, address: str) -> None:
        if self._gateway is None or is_spare(accepted) or len(self._serving) >= CONNECTIONS_MAX:
            _LOG.warning("connection refused address=%s: too many are open", address)
            accepted.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(self._gateway, accepted, address))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, gateway: Gateway, accepted: socket.socket, address: str) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        context = None if self._tls is None else self._tls.current()
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=context,
                ssl_handshake_timeout=None if context is None else ARRIVAL_SECONDS,
            )
        except (OSError, TimeoutError) as error:
            _LOG.debug("connection lost at once address=%s: %s", address, error)
            accepted.close()
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        sign_in = SignIn(self._callers, is_needed=self._settings.needs_token)
        connection = Connection(
            reader,
            writer,
            gateway=gateway,
            memory=self._memory,
            sign_in=sign_in,
            address=address,
        )
        await connection.serve()
