"""Servers as a command that runs them sees them, and its admin endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from sbp_core.errors import SbpError
from sbp_core.server.metrics import Catalog, Reading


@dataclass(frozen=True, slots=True)
class Unready:
    """Why a server does not do what it is there for: a word for programs, and a text for people."""

    code: str
    reason: str


Condition = Mapping[str, object]
"""Else to know of a server: its role, and which other one leads."""


class Observed(Protocol):
    """A process as its admin endpoint shows it, for the thread of its loop."""

    catalogs: ClassVar[Sequence[Catalog]]
    """All metrics that there may be."""

    def unready(self) -> list[Unready]:
        """Return why they do not do what they are there for; nothing if they do."""

    def condition(self) -> Condition:
        """Return what else an operator should know."""

    async def read_metrics(self) -> list[Reading]:
        """Return the metrics as they are now."""


class Served(Observed, Protocol):
    """Servers, for the thread of their loop. `failed` ends with the reason when they must stop."""

    failed: asyncio.Future[SbpError]

    async def start(self) -> Any:
        """Start; return what the command prints."""

    async def stop(self) -> None:
        """Let open calls finish, and stop."""
