"""A placement driver and range servers: together, or as a child process.

`Cluster` runs them on the event loop of the caller, or the range servers in a process each; `sbp
serve` is that and signals around it.
`LocalCluster` runs `sbp serve` as a child of this process, for demos, tests and notebooks.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, ClassVar, Final, Self

from sbp_core import limits
from sbp_core.errors import ConfigurationError, SbpError
from sbp_core.lake import metrics as lake_metrics
from sbp_core.lake.catalog import open_catalog
from sbp_core.log.disk import Disk
from sbp_core.pd import PlacementDriver
from sbp_core.pd.metadata.data_dir import has_metadata
from sbp_core.pd.metadata.sqlite_inspection import remedy_of_lost_metadata
from sbp_core.processes import (
    COMMAND,
    POLL_SECONDS,
    STOP_SECONDS,
    RangeServerProcess,
    end_process,
    kill_group,
    reserved_ports,
    tls_options,
)
from sbp_core.rangeserver.server import RangeServer
from sbp_core.rangeserver.server_id import load_identity
from sbp_core.regular_files import DIRECTORY_MODE, open_private
from sbp_core.server.metrics import Catalog, Reading
from sbp_core.server.served import Condition, Unready
from sbp_core.settings.listening import is_wildcard, join_address
from sbp_core.settings.server_settings import ClusterSettings, RangeServerSettings
from sbp_core.tls import ServerTls

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog as LakeCatalog

    from sbp_core.lake.service import Lake


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where the parts of a cluster are reached, each "host:port"."""

    pd: str
    range_servers: tuple[str, ...]
    kafka: str | None = None
    """For clients of Kafka; None if they are not served."""


_LAKE_SECONDS: Final = 5.0
"""A laptop's user looks at the table soon."""


class Cluster:
    """A placement driver and range servers on the running event loop, started and stopped once.

    `make_process` makes a range server that runs in a process of its own; these start together.
    `failed` ends with the reason when a part must not go on. The owner then stops the cluster and
    exits with an error.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        *,
        disk: Disk | None = None,
        make_process: Callable[[RangeServerSettings], RangeServerProcess] | None = None,
    ) -> None:
        self._settings = settings
        self._disk = disk
        self._make_process = make_process
        self._placement_driver: PlacementDriver | None = None
        self._range_servers: list[RangeServer | RangeServerProcess] = []
        self._landing: asyncio.Task[None] | None = None
        self._lake: Lake | None = None
        self._gateway = AsyncExitStack()
        self._kafka: str | None = None
        self._unready: Unready | None = Unready("starting", "the servers are being started")
        self.failed: asyncio.Future[SbpError] = asyncio.get_running_loop().create_future()

    catalogs: ClassVar[Sequence[Catalog]] = (
        *PlacementDriver.catalogs,
        RangeServer.catalogs[-1],
        lake_metrics.METRICS,
    )

    @property
    def endpoints(self) -> Endpoints:
        """Where clients connect, once the cluster is started."""
        if self._placement_driver is None:
            raise RuntimeError("the cluster is not running")
        return Endpoints(
            self._placement_driver.endpoint,
            tuple(server.endpoint for server in self._range_servers),
            self._kafka,
        )

    @property
    def admin_endpoints(self) -> list[str]:
        """Where the admin endpoints of range servers are that run in processes of their own."""
        processes = (each for each in self._range_servers if isinstance(each, RangeServerProcess))
        return [each.admin_endpoint for each in processes if each.admin_endpoint is not None]

    async def start(self) -> list[list[str]]:
        """Start all parts; return what each range server found in its log, in lines.

        On return every range server is known to the placement driver. Raises ConfigurationError
        when an address or a folder cannot be had, LogError when a log cannot be opened, and
        InvalidRequestError when a folder belongs to another cluster; nothing runs on then.
        """
        try:
            self._check_metadata_are_there()
            driver = PlacementDriver(self._settings.placement_driver())
            driver.failed.add_done_callback(self._on_failure)
            await driver.start()
            self._placement_driver = driver
            driver_endpoint = join_address(self._local_host(), driver.port)
            settings = [
                self._settings.range_server(index, driver_endpoint)
                for index in range(self._settings.range_servers)
            ]
            if self._make_process is not None:
                made = map(self._make_process, settings)
                found = list(await asyncio.gather(*(self._start(each) for each in made)))
            else:
                found = [await self._start(RangeServer(each, disk=self._disk)) for each in settings]
            if self._settings.lake:
                folder = str(self._settings.data_dir / "lake")
                catalog = await asyncio.to_thread(open_catalog, None, folder)
                self._landing = asyncio.create_task(self._land(driver_endpoint, catalog))
            if self._settings.kafka:
                await self._serve_kafka(driver_endpoint)
            self._unready = None
            return found
        except BaseException:
            await self.stop()
            raise

    async def _land(self, endpoint: str, catalog: LakeCatalog) -> None:
        """Land streams in tables until this is cancelled."""
        from sbp_core.client import AsyncClient
        from sbp_core.lake.landing import LandingSettings
        from sbp_core.lake.service import Lake

        async with AsyncClient(endpoint) as client:
            settings = LandingSettings(_LAKE_SECONDS)
            self._lake = Lake(client, lambda: catalog, settings, self._settings.lake_rules)
            await self._lake.run()

    async def _serve_kafka(self, endpoint: str) -> None:
        """Serve clients of Kafka, until `stop`."""
        from sbp_core.client.connecting import Connecting
        from sbp_core.kafka import listener_class
        from sbp_core.settings.kafka_settings import KafkaSettings
        from sbp_core.web.callers import Callers

        own = self._settings
        settings = KafkaSettings(
            endpoint=endpoint,
            connecting=Connecting(),
            host=own.host,
            port=own.kafka_port,
            insecure=own.insecure,
            advertise_host=own.advertise_host,
        )
        callers = Callers(settings)
        listener = listener_class()(settings, callers)
        self._gateway.push_async_callback(callers.close)
        self._gateway.push_async_callback(listener.stop)
        port = await listener.start(own.host, own.kafka_port, settings.exposure)
        self._kafka = join_address(own.advertise_host or own.host, port)

    async def _start(self, server: RangeServer | RangeServerProcess) -> list[str]:
        self._range_servers.append(server)
        server.failed.add_done_callback(self._on_failure)
        return await server.start()

    def _check_metadata_are_there(self) -> None:
        """Raise ConfigurationError where range servers are of a cluster whose metadata are gone."""
        driver = self._settings.placement_driver().data_dir
        if has_metadata(driver):
            return
        for index in range(self._settings.range_servers):
            folder = self._settings.range_server(index, "unused:1").data_dir
            identity = load_identity(folder)
            if identity is not None:
                raise ConfigurationError(
                    f"data_dir: {driver} holds no metadata, and {folder} belongs to cluster"
                    f" {identity.cluster_id}: the metadata of that are gone. Nothing was changed."
                    f" {remedy_of_lost_metadata(driver)}"
                )

    def unready(self) -> list[Unready]:
        """Return why a part that runs in this process does not serve; nothing if all do."""
        found = [reason for each in self._observed() for reason in each.unready()]
        return found if found or self._unready is None else [self._unready]

    def condition(self) -> Condition:
        """Return what else an operator should know."""
        return {key: each for part in self._observed() for key, each in part.condition().items()}

    async def read_metrics(self) -> list[Reading]:
        """Return the metrics of the parts that run in this process."""
        observed = [*self._observed(), *([] if self._lake is None else [self._lake])]
        return [reading for each in observed for reading in await each.read_metrics()]

    def _observed(self) -> list[PlacementDriver | RangeServer]:
        """Return the parts that run in this process."""
        driver = [] if self._placement_driver is None else [self._placement_driver]
        return [*driver, *(each for each in self._range_servers if isinstance(each, RangeServer))]

    async def stop(self) -> None:
        """Let open calls finish, then close everything. Raises the first failure, if any."""
        self._unready = Unready("stopping", "the servers are being stopped")
        if self._landing is not None:
            self._landing.cancel()
            await asyncio.gather(self._landing, return_exceptions=True)
        await self._gateway.aclose()
        servers, self._range_servers = self._range_servers, []
        ends = await asyncio.gather(*(server.stop() for server in servers), return_exceptions=True)
        driver, self._placement_driver = self._placement_driver, None
        if driver is not None:
            await driver.stop()
        for end in ends:
            if end is not None:
                raise end

    def _local_host(self) -> str:
        """Return where this process reaches its own placement driver."""
        host = self._settings.host
        if is_wildcard(host):
            return "::1" if ":" in host else "127.0.0.1"
        return host

    def _on_failure(self, future: asyncio.Future[SbpError]) -> None:
        if not future.cancelled() and not self.failed.done():
            self.failed.set_result(future.result())


_LOG_TAIL_BYTES: Final = 4 * limits.KIB
"""Below the ports that systems give to outgoing connections: none of those can take one of ours
while the server is down."""


class LocalCluster:
    """`sbp serve` as a child process; a context manager that starts and stops it.

    Without `data_dir` the data lives in a temporary folder, as long as this object. The ports are
    free ones, chosen once: after `kill` or `stop`, `restart` serves the same data at the same
    endpoints. `options` are further options of `sbp serve`, `tls` the files of one that speaks TLS,
    whose certificate must be for 127.0.0.1. The child ends when this process does,
    however that ends. Its output is in `log_path`.
    """

    def __init__(
        self,
        data_dir: Path | str | None = None,
        *,
        range_servers: int = 1,
        options: Sequence[str] = (),
        tls: ServerTls | None = None,
        start_timeout_ms: int = limits.REQUEST_TIMEOUT_MS,
    ) -> None:
        self._resources = ExitStack()
        if data_dir is None:
            data_dir = self._resources.enter_context(tempfile.TemporaryDirectory(prefix="sbp-"))
        self.data_dir: Final = Path(data_dir).absolute()
        self.log_path: Final = self.data_dir / "serve.log"
        self._ready_path = self.data_dir / "ready.json"
        self._range_server_count = range_servers
        self._options = (*options, *tls_options(tls))
        self._start_timeout_ms = start_timeout_ms
        self._first_port: int | None = None
        self._endpoints: Endpoints | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[..., LocalCluster] | None = None

    @property
    def endpoint(self) -> str:
        """The placement driver's "host:port", for clients; known from the first start on."""
        return self._known_endpoints().pd

    @property
    def range_servers(self) -> tuple[str, ...]:
        """The range servers' endpoints; known from the first start on."""
        return self._known_endpoints().range_servers

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        return self._running().pid

    def start(self) -> Self:
        """Start the server and wait until it serves.

        Raises SbpError with the end of its log when it ends before that, or takes too long.
        """
        if self._process is not None:
            raise RuntimeError("the cluster was started already")
        self.data_dir.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        self._ready_path.unlink(missing_ok=True)
        if self._first_port is None:
            ports = reserved_ports(1 + self._range_server_count)
            self._first_port = self._resources.enter_context(ports)
        with os.fdopen(open_private(self.log_path, os.O_WRONLY | os.O_APPEND), "ab") as log:
            process = self._popen(self._command(self._first_port), log)
        self._process = process
        self._end = weakref.finalize(self, end_process, process, os.getpid())
        self._endpoints = self._wait_until_ready(process)
        return self

    def kill(self) -> None:
        """End all its processes at once (SIGKILL), as a crash would."""
        self._reap(signal.SIGKILL)

    def stop(self) -> None:
        """Let the server finish what it does (SIGTERM) and end.

        Raises SbpError with the end of its log when it ends with an error, or not in time.
        """
        exit_code = self._reap(signal.SIGTERM)
        if exit_code != 0:
            raise self._error(f"`sbp serve` ended with exit code {exit_code}")

    def restart(self) -> None:
        """Start again on the same data and ports; a server that still runs is stopped before."""
        if self._process is not None:
            self.stop()
        self.start()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self._resources.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._resources:
            if self._process is None:
                return
            if error is None:
                self.stop()
            else:
                self.kill()

    def _command(self, first_port: int) -> list[str]:
        options = {
            "--data-dir": self.data_dir,
            "--pd-port": first_port,
            "--range-server-port": first_port + 1,
            "--range-servers": self._range_server_count,
            "--ready-file": self._ready_path,
        }
        pairs = [str(word) for pair in options.items() for word in pair]
        return [*COMMAND, "serve", "--until-stdin-closes", *pairs, *self._options]

    def _popen(self, command: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start the process in a session of its own."""
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> Endpoints:
        deadline = time.monotonic() + self._start_timeout_ms / 1000
        while not self._ready_path.exists():
            exit_code = process.poll()
            if exit_code is not None:
                self._reap(signal.SIGKILL)
                raise self._error(
                    f"`sbp serve` ended with exit code {exit_code} before it was ready"
                )
            if time.monotonic() > deadline:
                self._reap(signal.SIGKILL)
                raise self._error(f"`sbp serve` was not ready within {self._start_timeout_ms} ms")
            time.sleep(POLL_SECONDS)
        ready = json.loads(self._ready_path.read_text(encoding="utf-8"))
        return Endpoints(ready["pd"], tuple(ready["range_servers"]))

    def _reap(self, signal_number: signal.Signals) -> int:
        """Send a signal, wait for the end; return the exit code, negative for a signal's number."""
        process = self._running()
        if signal_number is signal.SIGKILL:
            kill_group(process)
        else:
            process.send_signal(signal_number)
        try:
            return process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise self._error(f"`sbp serve` did not end within {STOP_SECONDS:.0f} s") from None
        finally:
            if self._end is not None:
                self._end()
            self._process = self._end = None

    def _error(self, what: str) -> SbpError:
        tail = self.log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", errors="replace")
        return SbpError(f"{what}. The end of {self.log_path}:\n{tail.strip() or '(empty)'}")

    def _known_endpoints(self) -> Endpoints:
        if self._endpoints is None:
            raise RuntimeError("the cluster was not started")
        return self._endpoints

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the cluster is not running")
        return self._process
