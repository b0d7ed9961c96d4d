"""A request as a handler gets it, and the APIs that handlers serve."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sbp_core.client.async_client import AsyncClient
from sbp_core.kafka.memory import Memory
from sbp_core.kafka.messages import Fields, Request

if TYPE_CHECKING:
    from sbp_core.kafka.gateway import Gateway


@dataclass(frozen=True, slots=True)
class Call:
    """A request, and what a handler needs to answer it.

    `client` has the identity of the caller: the cluster decides what it may do. `address` is the
    caller's host. `turn` is a lock for all that the connection looks up before it appends, `orders`
    has a lock for each stream that it appends to. Bytes that a handler keeps while it
    waits count in `memory`, which also says how large a response should be.
    """

    request: Request
    client: AsyncClient
    gateway: Gateway
    address: str
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    orders: Mapping[int, asyncio.Lock] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)

    @property
    def body(self) -> Any:
        """The message of the request."""
        return self.request.body

    @property
    def version(self) -> int:
        """The version of the API that the caller speaks."""
        return self.request.version


@dataclass(frozen=True, slots=True)
class Api:
    """An API of Kafka's protocol: its key, the versions that are served, and the handler.

    The handler returns the fields of the response; None sends no response.
    """

    key: int
    first_version: int
    last_version: int
    answer: Callable[[Call], Awaitable[Fields | None]]
