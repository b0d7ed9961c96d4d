"""`python -m benchmarks.core.moves`: appends while a range server that was added gets its share.

A placement driver and three range servers, an `sbp` command each on this machine. Clients append
records of 1 KiB to streams with three replicas, one record at a time, each to its own streams in
turn. A fourth range server starts, and `sbp cluster balance --yes` moves ranges to it. The appends
per second before and during that are compared. The worst pause is the longest append. Each record
is numbered by its client, so every stream has to end where its client counted.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.core.server_process import Server
from benchmarks.core.servers import batch
from benchmarks.harness.folders import new_folder
from benchmarks.harness.tables import table
from sbp_core.client import AppendItem, AsyncClient, StreamSpec, Writer
from sbp_core.processes import COMMAND, reserved_ports

_SERVERS: Final = 3
_VALUE_BYTES: Final = 1024
_CREATED_AT_ONCE: Final = 250
_QUIET: Final = ("--log-level", "error")


class Load:
    """Appends one record after the other to streams in turn, until `stop`."""

    def __init__(self, client: AsyncClient, stream_ids: Sequence[int]) -> None:
        self.counts = dict.fromkeys(stream_ids, 0)
        self.worst_seconds = 0.0
        self._client = client
        self._is_stopping = False
        self._task = asyncio.create_task(self._run())

    @property
    def count(self) -> int:
        """How many records were acknowledged."""
        return sum(self.counts.values())

    async def stop(self) -> None:
        """Stop after the append that is in progress. Raises what an append failed with."""
        self._is_stopping = True
        await self._task

    async def _run(self) -> None:
        writer, payload = Writer(), batch(_VALUE_BYTES)
        while not self._is_stopping:
            for stream_id in self.counts:
                began = time.monotonic()
                await self._client.append([AppendItem(stream_id, payload)], writer=writer)
                self.counts[stream_id] += 1
                self.worst_seconds = max(self.worst_seconds, time.monotonic() - began)


async def _balance(endpoint: str) -> str:
    words = (*COMMAND, "cluster", "balance", "--yes", "--endpoint", endpoint)
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0, output
    return output.decode().splitlines()[-1]


async def _rate(loads: Sequence[Load], work: asyncio.Future[str] | None, seconds: float) -> float:
    """Return the appends per second until some work is done, or for a time."""
    before, began = sum(each.count for each in loads), time.monotonic()
    for each in loads:
        each.worst_seconds = 0.0
    await (asyncio.sleep(seconds) if work is None else work)
    return (sum(each.count for each in loads) - before) / (time.monotonic() - began)


async def measure(
    endpoint: str, added: Server, stream_count: int, client_count: int, seconds: float
) -> None:
    """Append, balance, and print a table."""
    async with AsyncClient(endpoint) as client:
        stream_ids: list[int] = []
        for first in range(0, stream_count, _CREATED_AT_ONCE):
            numbers = range(first, min(first + _CREATED_AT_ONCE, stream_count))
            specs = [StreamSpec(f"s{at}", replica_count=_SERVERS) for at in numbers]
            stream_ids += (each.stream_id for each in await client.create_streams(specs))
        loads = [Load(client, stream_ids[at::client_count]) for at in range(client_count)]
        rows = []
        await _rate(loads, None, seconds)  # connections are made, and placements looked up
        before = await _rate(loads, None, seconds)
        rows.append(("before", before, max(each.worst_seconds for each in loads), seconds))
        await asyncio.to_thread(added.start)
        began = time.monotonic()
        during = await _rate(loads, asyncio.ensure_future(_balance(endpoint)), seconds)
        took = time.monotonic() - began
        rows.append(("balance", during, max(each.worst_seconds for each in loads), took))
        after = await _rate(loads, None, seconds)
        rows.append(("after", after, max(each.worst_seconds for each in loads), seconds))
        for each in loads:
            await each.stop()
        ends = {each.stream_id: each for each in await client.stream_bounds(stream_ids)}
        counted = {stream_id: count for each in loads for stream_id, count in each.counts.items()}
        off = sum(abs(ends[each].next_offset - count) for each, count in counted.items())
        led = sorted(each.led_ranges for each in await client.range_servers())
    shown = [(name, f"{rate:.0f}", f"{worst:.2f}", f"{t:.1f}") for name, rate, worst, t in rows]
    print(table(("appends", "per second", "worst s", "for s"), shown, text_columns={0}))
    print(f"during / before: {during / before:.2f}; records lost or doubled: {off};", end=" ")
    print(f"open ranges led: {led}; load of the machine: {os.getloadavg()[0]:.1f}")


def _end(added: Server) -> None:
    if added.is_running:
        added.end(signal.SIGTERM)


def main(arguments: Sequence[str]) -> int:
    """Measure; print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.core.moves")
    parser.add_argument("--streams", type=int, default=1_000, help="how many there are (1000)")
    parser.add_argument("--clients", type=int, default=64, help="that append at a time (64)")
    parser.add_argument("--seconds", type=float, default=10.0, help="before and after (10)")
    settings = parser.parse_args(arguments)
    logging.getLogger("sbp_core.client").setLevel(logging.ERROR)  # each stream that moved
    with ExitStack() as stack:
        folder: Path = stack.enter_context(new_folder())
        first = stack.enter_context(reserved_ports(_SERVERS + 2))
        driver = Server(folder, "pd", first, *_QUIET)
        servers = [
            Server(folder, "range-server", first + at, "--pd", driver.endpoint, *_QUIET)
            for at in range(1, _SERVERS + 2)
        ]
        for each in (driver, *servers[:-1]):
            each.start()
            stack.callback(each.end, signal.SIGTERM)
        stack.callback(_end, servers[-1])
        asyncio.run(
            measure(
                *(driver.endpoint, servers[-1], settings.streams),
                *(settings.clients, settings.seconds),
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
