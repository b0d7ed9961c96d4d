"""A range server, or a placement driver, as a process of its own, to be killed.

async with (
    PlacementDriverProcess(folder) as driver,
    RangeServerProcess(folder, driver.endpoint, heartbeat_interval_ms=50) as server,
):
    await server.kill()
    await server.start()
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from sbp_core.pd import PlacementDriver, PlacementDriverSettings
from sbp_core.rangeserver.range_server_settings import RangeServerSettings
from sbp_core.rangeserver.server import RangeServer

START_SECONDS = 90


class ServerProcess:
    """Starts and kills the process; it comes back on the same data and port."""

    def __init__(self, *words: str) -> None:
        self.endpoint = ""
        self._words = words
        self._port = "0"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """The process id while it runs."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Return once it serves; of a range server the placement driver then knows."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            __file__,
            *self._words,
            self._port,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(START_SECONDS):
            self.endpoint = (await self._process.stdout.readline()).decode().strip()
        assert self.endpoint, "the server did not start"
        self._port = self.endpoint.rpartition(":")[2]

    async def kill(self) -> None:
        """SIGKILL: no GOAWAY, no last words."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()
        self._process = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            await self.kill()


class RangeServerProcess(ServerProcess):
    """A range server."""

    def __init__(self, folder: Path, placement_driver: str, *, heartbeat_interval_ms: int) -> None:
        super().__init__("range-server", str(folder), placement_driver, str(heartbeat_interval_ms))


class PlacementDriverProcess(ServerProcess):
    """A placement driver, alone, or one of several on the database `store`."""

    def __init__(
        self, folder: Path, *, store: str | None = None, name: str = "placement-driver"
    ) -> None:
        super().__init__("pd", str(folder), store or "", name)


async def serve(kind: str, folder: str, *words: str) -> None:
    """Run until standard input ends, as it does with the test's process."""
    port = words[-1]
    server: RangeServer | PlacementDriver
    if kind == "range-server":
        placement_driver, interval_ms, _ = words
        server = RangeServer(
            RangeServerSettings(
                data_dir=Path(folder),
                placement_driver=placement_driver,
                port=int(port),
                heartbeat_interval_ms=int(interval_ms),
            )
        )
    else:
        store, name, _ = words
        server = PlacementDriver(
            PlacementDriverSettings(
                data_dir=Path(folder), port=int(port), store=store or None, name=name
            )
        )
    await server.start()
    print(server.endpoint, flush=True)
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, sys.stdin.read)
    await server.stop()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
