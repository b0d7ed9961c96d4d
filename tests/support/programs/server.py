"""A range server or a placement driver that runs until standard input ends.

`server range-server FOLDER PLACEMENT_DRIVER HEARTBEAT_INTERVAL_MS PORT`, or
`server pd FOLDER STORE NAME PORT`. It prints its endpoint.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from sbp_core.pd import PlacementDriver
from sbp_core.rangeserver.server import RangeServer
from sbp_core.settings.server_settings import PlacementDriverSettings, RangeServerSettings


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
