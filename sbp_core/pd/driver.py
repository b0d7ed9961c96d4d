"""A placement driver from start to stop: its settings, store, membership and listener.

Read model.py first (the values), then streams/stream_handlers.py (the operations),
server_membership.py (which servers are alive), and txns/publications.py (how a committed batch
becomes visible).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import reprlib
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from sbp_core import limits
from sbp_core.errors import ConfigurationError, SbpError
from sbp_core.pd.capacity import CapacityLimits
from sbp_core.pd.driver_metrics import LEADER, METRICS, TERM
from sbp_core.pd.election import Election
from sbp_core.pd.metadata.store import StoreThread, is_shared, open_store
from sbp_core.pd.server_membership import Membership
from sbp_core.pd.streams.stream_handlers import PlacementDriverHandlers
from sbp_core.server.listener import Listener
from sbp_core.server.metrics import COMMON, Catalog, Reading
from sbp_core.server.quota_rules import maybe_quota_file
from sbp_core.server.runtime import Clock, SystemClock
from sbp_core.server.served import Condition, Unready
from sbp_core.server.settings import ListenerSettings, integer_setting, port_setting, setting
from sbp_core.server.trust import ServerRole

_LOG: Final = logging.getLogger(__name__)
_REPLACE_AFTER_MS: Final = 600_000
_REPLACE_AFTER_MS_MAX: Final = 30 * 86_400_000
_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{limits.DRIVER_NAME_LENGTH_MAX}}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementDriverSettings(ListenerSettings, CapacityLimits):
    """How one placement driver runs. Raises ConfigurationError when a value cannot work."""

    name: str = setting(
        "Name of this placement driver among those of the cluster.",
        f"letters, digits, '.', '_' and '-', 1..{limits.DRIVER_NAME_LENGTH_MAX} of them",
        default="placement-driver",
    )
    store: str | None = setting(
        "Where the metadata are: a PostgreSQL database, which several placement drivers may share,"
        " or an SQLite file; the latter in data_dir when not set.",
        "postgresql://USER@HOST:PORT/DATABASE or sqlite:///DIRECTORY/metadata.sqlite",
        default=None,
    )
    port: int = port_setting(12378)
    heartbeat_timeout_ms: int = integer_setting(
        "Time without a heartbeat after which a range server gets no new ranges; three of its"
        " heartbeats at least.",
        limits.HEARTBEAT_TIMEOUT_MS_MIN,
        limits.HEARTBEAT_TIMEOUT_MS_MAX,
        default=limits.HEARTBEAT_TIMEOUT_MS,
        unit="milliseconds",
    )
    fail_over_after_ms: int = integer_setting(
        "Time without a heartbeat, and without an answer when it is asked, after which the streams"
        " with several replicas of a range server go on elsewhere. Range servers send a heartbeat"
        " every third of it at least.",
        limits.HEARTBEAT_TIMEOUT_MS_MIN,
        limits.HEARTBEAT_TIMEOUT_MS_MAX,
        default=limits.FAIL_OVER_AFTER_MS,
        unit="milliseconds",
    )
    replace_server_after_ms: int = integer_setting(
        "Time without a heartbeat after which the sealed ranges of a range server are copied to"
        " others, as far as they have several replicas. A restart should take less.",
        limits.HEARTBEAT_TIMEOUT_MS_MIN,
        _REPLACE_AFTER_MS_MAX,
        default=_REPLACE_AFTER_MS,
        unit="milliseconds",
    )
    batch_number_leap_max: int = integer_setting(
        "How far a producer's batch number may be above its last one. A larger number is refused,"
        " as no number below it could be committed afterwards. Raise it for writes whose"
        " txnVersion grows faster, such as a time in milliseconds.",
        1,
        2**63 - 1,
        default=limits.BATCH_NUMBER_LEAP_MAX,
    )

    def __post_init__(self) -> None:
        ListenerSettings.__post_init__(self)
        if self.store is not None and (not isinstance(self.store, str) or "://" not in self.store):
            raise ConfigurationError(f"store: expected a URL, got {reprlib.repr(self.store)}")
        if not isinstance(self.name, str) or _NAME.fullmatch(self.name) is None:
            raise ConfigurationError(
                f"name: expected letters, digits, '.', '_' and '-', {limits.DRIVER_NAME_LENGTH_MAX}"
                f" at most, got {reprlib.repr(self.name)}"
            )

    @property
    def home(self) -> Path | str:
        """The data directory or URL of the metadata, for `open_store`."""
        return self.data_dir if self.store is None else self.store


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
                gate=settings.gate(),
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
