"""A placement driver from start to stop: its store, membership and listener.

Read model.py first (the values), then streams/stream_handlers.py (the operations),
server_membership.py (which servers are alive), and txns/publications.py (how a committed batch
becomes visible).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import ClassVar, Final

from sbp_core import limits
from sbp_core.errors import SbpError
from sbp_core.pd.driver_metrics import LEADER, METRICS, TERM
from sbp_core.pd.election import Election
from sbp_core.pd.metadata.store import StoreThread, is_shared, open_store
from sbp_core.pd.server_membership import Membership
from sbp_core.pd.streams.stream_handlers import PlacementDriverHandlers
from sbp_core.server.gate import gate_of
from sbp_core.server.listener import Listener
from sbp_core.server.metrics import COMMON, Catalog, Reading
from sbp_core.server.quota_rules import maybe_quota_file
from sbp_core.server.runtime import Clock, SystemClock
from sbp_core.server.served import Condition, Unready
from sbp_core.server.trust import ServerRole
from sbp_core.settings.server_settings import PlacementDriverSettings

_LOG: Final = logging.getLogger(__name__)


class PlacementDriver:
    """One placement driver with its metadata in a directory. It starts once and stops once.

    `failed` ends with the reason when its metadata can no longer be read or written. The owner then
    stops it and exits with an error.
    """

    def __init__(
        self,
        settings: PlacementDriverSettings,
        clock: Clock | None = None,
        *,
        fail_over_interval_ms: int = limits.FAIL_OVER_INTERVAL_MS,
    ) -> None:
        self._settings = settings
        self._fail_over_interval_ms = fail_over_interval_ms
        self._clock = clock or SystemClock()
        self._membership = Membership(
            self._clock, settings.heartbeat_timeout_ms, settings.fail_over_after_ms
        )
        self._started = AsyncExitStack()
        """The parts that `stop` ends, in reverse order of their start."""
        self._unready: Unready | None = Unready("starting", "the metadata are being opened")
        self._port: int | None = None
        self.failed: asyncio.Future[SbpError] = asyncio.get_running_loop().create_future()

    catalogs: ClassVar[Sequence[Catalog]] = (COMMON, METRICS)

    async def start(self) -> str:
        """Open the metadata and listen; return the endpoint, host:port.

        Raises ConfigurationError when the data directory or the address cannot be used.
        """
        settings = self._settings
        async with AsyncExitStack() as started:
            self._store = store = await StoreThread.open(
                lambda: open_store(settings.home, settings)
            )
            started.push_async_callback(store.close)
            store.failed.add_done_callback(self._on_failure)
            self._handlers = handlers = self._make_handlers(store)
            started.push_async_callback(handlers.stop)
            self._listener = listener = Listener(
                handlers.by_opcode(),
                role=ServerRole.PLACEMENT_DRIVER,
                clock=self._clock,
                connections_per_address_max=settings.connections_per_address_max,
                in_flight_bytes_max=limits.DRIVER_IN_FLIGHT_BYTES_MAX,
                tls=settings.tls_contexts(),
                gate=gate_of(settings),
                quota_file=maybe_quota_file(settings),
            )
            started.push_async_callback(listener.drain)
            started.push_async_callback(handlers.rest)  # else `drain` waits for these calls
            if isinstance(handlers, PlacementDriverHandlers):
                await handlers.start()
            self._port = await listener.start(settings.host, settings.port, settings.exposure)
            if isinstance(handlers, Election):  # it announces the port
                await handlers.start(self.endpoint)
            self._started = started.pop_all()
        self._unready = None
        return self.endpoint

    def _make_handlers(self, store: StoreThread) -> PlacementDriverHandlers | Election:
        settings = self._settings

        def make(store: StoreThread) -> PlacementDriverHandlers:
            return PlacementDriverHandlers(
                store,
                self._membership,
                self._clock,
                lambda: self.endpoint,
                name=settings.name,
                batch_number_leap_max=settings.batch_number_leap_max,
                replace_server_after_ms=settings.replace_server_after_ms,
                fail_over_interval_ms=self._fail_over_interval_ms,
                tls=settings.client_tls,
            )

        if not is_shared(settings.home):
            return make(store)
        return Election(
            str(settings.home),
            store,
            self._membership,
            self._clock,
            name=settings.name,
            make_handlers=make,
        )

    async def stop(self) -> None:
        """Let open calls finish, then close the connections and the metadata."""
        self._unready = Unready("stopping", "the server is being stopped")
        await self._started.aclose()

    @property
    def endpoint(self) -> str:
        """Where clients connect, host:port; known once started."""
        return self._settings.public_endpoint(self.port)

    @property
    def port(self) -> int:
        """The port that it listens on; known once started."""
        if self._port is None:
            raise RuntimeError("the placement driver was not started")
        return self._port

    @property
    def live_server_count(self) -> int:
        """Range servers that can be given new ranges now."""
        return len(self._membership.live_server_ids())

    def unready(self) -> list[Unready]:
        """Return why this placement driver, or the cluster, does not serve; empty if it serves."""
        if self._unready is not None:
            return [self._unready]
        if self.failed.done():
            return [Unready("store_failed", f"the metadata cannot be used: {self.failed.result()}")]
        handlers = self._handlers
        found = [*handlers.unready()] if isinstance(handlers, Election) else []
        return found if handlers.observation is None else [*found, *handlers.observation.unready()]

    def condition(self) -> Condition:
        """Return its role, and which placement driver leads."""
        found: dict[str, object] = {"name": self._settings.name}
        if self._unready is None:
            found |= {"endpoint": self.endpoint, "role": "leader", "leader": self.endpoint}
            if isinstance(self._handlers, Election) and not self._handlers.term:
                found |= {"role": "follower", "leader": self._handlers.leader}
        return {"placement_driver": found}

    async def read_metrics(self) -> list[Reading]:
        """Return its metrics as they are now; none while it does not serve."""
        if self._unready is not None:
            return []
        handlers = self._handlers
        term = handlers.term if isinstance(handlers, Election) else 1
        found = [*self._listener.read_metrics(), LEADER.of(term > 0), TERM.of(term)]
        if handlers.observation is not None:
            with contextlib.suppress(SbpError):  # the term is over, or the store fails: not ready
                found += [each async for each in handlers.observation.read()]
        return found

    def _on_failure(self, future: asyncio.Future[SbpError]) -> None:
        if not future.cancelled():
            self.failed.set_result(future.result())
