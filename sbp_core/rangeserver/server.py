"""A range server from start to stop: its log, its operations, its membership in the cluster.

Read hosted_ranges.py and hosting.py first (the ranges), then appending/commit.py (the way into the
log), appending/append_handler.py and fetching/fetch_handler.py (the two hot paths).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from typing import ClassVar, Final

from sbp_core.errors import LogError, SbpError
from sbp_core.log.bodies import RecentBodies
from sbp_core.log.disk import Disk, OsDisk
from sbp_core.log.durable_log import Log
from sbp_core.log.full_disk import Patience, PatientDisk
from sbp_core.rangeserver.appending.append_handler import AppendHandler
from sbp_core.rangeserver.appending.append_items import InFlight
from sbp_core.rangeserver.appending.commit import GroupCommitter
from sbp_core.rangeserver.appending.end_txn import EndTxnHandler, StagedSweep
from sbp_core.rangeserver.appending.staging import Stagings
from sbp_core.rangeserver.bounds import DEFAULT_BOUNDS, Bounds
from sbp_core.rangeserver.cached_rights import CachedRights
from sbp_core.rangeserver.fetching.fetch_handler import FetchHandler
from sbp_core.rangeserver.hosted_ranges import RangeTable
from sbp_core.rangeserver.hosting import RangeHost, StreamWaiters
from sbp_core.rangeserver.housekeeping.disk_space import DiskSpace, SpaceFreer
from sbp_core.rangeserver.housekeeping.keeper import Housekeeping, LogNotes
from sbp_core.rangeserver.housekeeping.retention import ClockNote
from sbp_core.rangeserver.membership import Membership
from sbp_core.rangeserver.observing import METRICS, Observation
from sbp_core.rangeserver.range_handlers import RangeOperations
from sbp_core.rangeserver.replicating.copying import ReadEntriesHandler
from sbp_core.rangeserver.replicating.secondary import ReplicateHandler, Secondary
from sbp_core.rangeserver.replicating.settling import Settler
from sbp_core.rangeserver.server_id import (
    IDENTITY_NAME,
    check_log_is_there,
    remedy_without_identity,
)
from sbp_core.rangeserver.server_load import HostProbe, Metrics
from sbp_core.server.gate import gate_of
from sbp_core.server.guard import Guard
from sbp_core.server.listener import Listener
from sbp_core.server.metrics import COMMON, Catalog, Reading
from sbp_core.server.quota_rules import maybe_quota_file
from sbp_core.server.runtime import Clock, SystemClock
from sbp_core.server.served import Condition, Unready
from sbp_core.server.trust import ServerRole
from sbp_core.settings.server_settings import RangeServerSettings
from sbp_core.wire.headers import RangeServer as RangeServerTable
from sbp_core.wire.headers import ReportMetricsRequest
from sbp_core.wire.opcodes import Opcode

_LOG: Final = logging.getLogger(__name__)


def _log_recovery(log: Log) -> None:
    report = log.recovery
    _LOG.info(
        "log opened folder=%s segments=%d ranges=%d end_position=%d",
        *(log.directory, len(report.segment_bases), len(log.ranges()), report.end_position),
    )
    for line in report.lines():
        _LOG.warning("log recovered folder=%s: %s", log.directory, line)


class RangeServer:
    """One range server.

    `failed` is done with the reason when the server must not go on: its log has failed, or the
    placement driver refuses it. The owner then stops the server and exits with an error.
    """

    def __init__(
        self,
        settings: RangeServerSettings,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        probe: HostProbe | None = None,
        bounds: Bounds = DEFAULT_BOUNDS,
    ) -> None:
        self._settings = settings
        self._bounds = bounds
        self._clock = clock or SystemClock()
        self._disk = disk or OsDisk()
        self._patience = None if disk else Patience(settings.data_dir / "log")
        """None for a given disk, which fails when it is full."""
        self._probe = probe or HostProbe()
        self._metrics = Metrics(self._clock)
        self._waiters = StreamWaiters()
        self._readers = ThreadPoolExecutor(
            max(1, bounds.reads_at_work_max), thread_name_prefix="sbp-log-reader"
        )
        self._started = AsyncExitStack()
        """The parts that `stop` ends, in reverse order of their start."""
        self._started.callback(self._readers.shutdown)
        self._started.callback(self._end_patience)
        self._endpoint = ""
        self._settler: Settler | None = None
        self._observation: Observation | None = None
        """Set while the server serves; otherwise `_unready` has the reason."""
        self._unready = Unready("recovering", "the log is being opened")
        self.failed: asyncio.Future[SbpError] = asyncio.get_running_loop().create_future()

    catalogs: ClassVar[Sequence[Catalog]] = (COMMON, METRICS)

    @property
    def endpoint(self) -> str:
        """Address for clients, "host:port", after the start."""
        return self._endpoint

    async def start(self) -> list[str]:
        """Recover the log, listen, join the cluster; return the findings of recovery, in lines.

        Raises LogError if the log cannot be opened or is corrupt, ConfigurationError if the address
        or folder cannot be used, InvalidRequestError if the cluster refuses this server,
        UnsupportedError if its placement driver speaks another protocol.
        """
        settings, started = self._settings, self._started
        self._log = log = await asyncio.get_running_loop().run_in_executor(
            self._readers, self._open_log
        )
        started.callback(log.close)
        _log_recovery(log)
        started.push_async_callback(LogNotes(log.high_water).stop)
        self._unready = Unready("joining", "the placement driver has not answered yet")
        self._membership = membership = self._make_membership(log)
        # The last heartbeat reports the end of the log: after the last commit, before `close`.
        started.push_async_callback(membership.leave)
        await membership.check_log()
        committer = GroupCommitter(log, settings.sync_interval_ms, settings.sizes, self._clock)
        self._committer = committer
        started.push_async_callback(committer.stop)
        self._disk_space = self._make_disk_space(committer)
        await self._disk_space.refresh()
        self._host = host = RangeHost(
            *(RangeTable(log.ranges()), committer, self._waiters, membership, log.writers),
            tls=settings.client_tls,
        )
        in_flight = InFlight()
        stagings = Stagings(log.staged, in_flight, stagings_max=self._bounds.stagings_max)
        end_txn = EndTxnHandler(host, stagings, committer)
        started.push_async_callback(end_txn.stop)
        started.push_async_callback(host.primary.stop)
        self._secondary = secondary = Secondary(log.staged, committer)
        self._listener = self._make_listener(
            host, end_txn, stagings, in_flight, secondary=secondary
        )
        # The background parts start after the listener, and stop after it as well: they may wait
        # for a slow disk, and clients must be told first that the server stops.
        background = await started.enter_async_context(AsyncExitStack())
        started.callback(self._end_patience)  # once clients know that the server stops
        started.push_async_callback(self._listener.drain)
        committer.start(host.publish, host.primary)
        port = await self._listener.start(settings.host, settings.port, settings.exposure)
        self._endpoint = settings.public_endpoint(port)
        committer.failed.add_done_callback(self._on_failure)
        membership.refused.add_done_callback(self._on_failure)
        await membership.join(self._endpoint)
        self._settler = settler = self._make_settler(host, log, secondary, membership)
        background.push_async_callback(settler.stop)
        self._housekeeping = self._make_housekeeping(host, log, membership, end_txn)
        background.push_async_callback(self._housekeeping.stop)
        self._observation = self._observe(host)
        _LOG.info(
            "range server serves server_id=%d address=%s", membership.server_id, self._endpoint
        )
        return log.recovery.lines()

    def _make_membership(self, log: Log) -> Membership:
        settings = self._settings
        return Membership(
            settings.placement_driver,
            settings.data_dir,
            self._disk,
            settings.heartbeat_interval_ms,
            self._report,
            high_water=log.high_water,
            rack=settings.rack,
            tls=settings.client_tls,
        )

    def _observe(self, host: RangeHost) -> Observation:
        assert self._settler is not None
        return Observation(
            *(self._log, self._committer, host, self._metrics, self._listener, self._membership),
            disk_space=self._disk_space,
            scrubber=self._settler.scrubber,
            housekeeping=self._housekeeping,
            missing_replicas=self._missing_replicas,
            clock=self._clock,
        )

    def _make_settler(
        self, host: RangeHost, log: Log, secondary: Secondary, membership: Membership
    ) -> Settler:
        return Settler(
            *(host, log, self._committer, secondary, membership),
            disk_space=self._disk_space,
            readers=self._readers,
            tls=self._settings.client_tls,
            scrub_bytes_per_s=self._settings.scrub_bytes_per_s,
        )

    def _make_disk_space(self, committer: GroupCommitter) -> DiskSpace:
        settings = self._settings
        return DiskSpace(
            settings.data_dir,
            settings.disk_free_floor_bytes,
            probe=self._probe,
            clock=self._clock,
            threads=self._readers,
            pending_bytes=lambda: committer.pending_bytes,
            append_bytes_max=settings.sizes.frame_bytes,
        )

    def _make_housekeeping(
        self, host: RangeHost, log: Log, membership: Membership, end_txn: EndTxnHandler
    ) -> Housekeeping:
        settings = self._settings
        return Housekeeping(
            host,
            log,
            membership,
            SpaceFreer(
                log, partial(self._probe.disk_free_bytes, settings.data_dir), self._disk_space
            ),
            StagedSweep(
                *(log.staged, membership, end_txn.drop, settings.staged_timeout_ms),
                ask_ms=self._bounds.staged_ask_ms,
            ),
            disk_space=self._disk_space,
            clock=self._clock,
            interval_ms=settings.retention_check_interval_ms,
            measured=lambda: self._metrics.streams.named,
            clock_note=ClockNote(settings.data_dir, self._disk),
            bounds=self._bounds,
        )

    def _make_listener(
        self,
        host: RangeHost,
        end_txn: EndTxnHandler,
        stagings: Stagings,
        in_flight: InFlight,
        *,
        secondary: Secondary,
    ) -> Listener:
        settings, membership = self._settings, self._membership
        append = AppendHandler(
            host,
            self._log,
            self._committer,
            stagings,
            in_flight,
            disk_space=self._disk_space,
            readers=self._readers,
            clock=self._clock,
            metrics=self._metrics,
            check_driver=membership.check_driver,
            batch_bytes_max=settings.sizes.batch_bytes,
        )
        fetch = FetchHandler(
            host,
            self._log,
            self._waiters,
            self._readers,
            clock=self._clock,
            metrics=self._metrics,
            bounds=self._bounds,
        )
        rights = CachedRights(membership.check_rights, membership.claim_txns, self._clock)
        self._started.push_async_callback(rights.stop)
        return Listener(
            Guard(rights).wrap(
                {
                    Opcode.APPEND: append,
                    Opcode.END_TXN: membership.only_for_driver(end_txn),
                    Opcode.FETCH: fetch,
                    Opcode.REPLICATE: ReplicateHandler(host, secondary, self._disk_space),
                    Opcode.READ_ENTRIES: ReadEntriesHandler(host, self._log, self._readers),
                    **RangeOperations(host, self._log, membership, self._readers).by_opcode(),
                }
            ),
            role=ServerRole.RANGE_SERVER,
            clock=self._clock,
            connections_per_address_max=settings.connections_per_address_max,
            in_flight_bytes_max=settings.sizes.server_in_flight_bytes,
            sizes=settings.sizes,
            tls=settings.tls_contexts(),
            gate=gate_of(settings),
            quota_file=maybe_quota_file(settings),
        )

    def _open_log(self) -> Log:
        """Open or create the log. Raises LogError if the log of an identity is missing."""
        settings = self._settings
        directory = settings.data_dir / "log"
        identity = check_log_is_there(settings.data_dir, self._disk)
        log = Log.open(
            directory,
            disk=self._disk,
            now_ms=self._clock.wall_ms,
            segment_bytes=settings.segment_bytes,
            written_by=PatientDisk(self._patience) if self._patience else None,
        )
        log.recent = RecentBodies(self._bounds.recent_bodies_bytes_max)
        if identity is None and log.ranges():
            log.close()
            raise LogError(
                f"{directory} holds the ranges of an unknown range server:"
                f" {settings.data_dir / IDENTITY_NAME} is missing. Nothing was changed."
                f" {remedy_without_identity(settings.data_dir)}"
            )
        return log

    async def stop(self) -> None:
        """Hand over ranges, refuse new requests, finish the open ones, close the log.

        Idempotent.
        """
        self._observation, self._unready = None, Unready("stopping", "the server is being stopped")
        settler, self._settler = self._settler, None
        if settler is not None:
            await settler.hand_over()
        self._waiters.close()
        await self._started.aclose()

    async def _report(self, server: RangeServerTable) -> ReportMetricsRequest:
        """Return the load, without free space while appends are refused. Raises OSError."""
        loop = asyncio.get_running_loop()
        free = await self._disk_space.measure()
        used = await loop.run_in_executor(self._readers, self._probe.memory_used_bytes)
        return self._metrics.report(
            server,
            disk_free_bytes=0 if self._disk_space.is_refusing else free,
            memory_used_bytes=used,
            unindexed_bytes=self._committer.pending_bytes,
            missing_replicas=self._missing_replicas(),
        )

    def _end_patience(self) -> None:
        if self._patience is not None:
            self._patience.end()

    def _missing_replicas(self) -> int:
        """Return the number of ranges that lack a replica, or are damaged here."""
        damaged = 0 if self._settler is None else self._settler.scrubber.damaged_count
        return self._host.primary.incomplete_count + damaged

    def unready(self) -> list[Unready]:
        """Return the reasons why the server is not ready; none if it is."""
        if self._observation is None:
            return [self._unready]
        return list(self._observation.unready())

    def condition(self) -> Condition:
        """Return the endpoint, for operators."""
        return {"range_server": {"endpoint": self._endpoint}}

    async def read_metrics(self) -> list[Reading]:
        """Return the present metrics; none while the server does not serve."""
        if self._observation is None:
            return []
        return [each async for each in self._observation.read()]

    def _on_failure(self, future: asyncio.Future[SbpError]) -> None:
        if not future.cancelled() and not self.failed.done():
            self.failed.set_result(future.result())
