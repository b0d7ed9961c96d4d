"""`python -m benchmarks.core.isolation`: how long a reader at the tail waits while others catch up.

Next to each other are the ways in which a server may serve its reads.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from statistics import median
from typing import Any, Final

import pyarrow as pa

from benchmarks.harness.folders import new_folder
from benchmarks.harness.model import BenchmarkError, Series
from benchmarks.harness.tables import table
from sbp_core import limits
from sbp_core.client import AppendItem, AsyncClient, Client, FetchItem, StreamSpec
from sbp_core.cluster import Cluster
from sbp_core.records import ROWS_SCHEMA, encode_rows
from sbp_core.settings.server_settings import ClusterSettings

CLIENTS: Final = 4
FETCHES_IN_FLIGHT: Final = 8
BACKLOG_BATCHES: Final = 512
OLD_BATCHES: Final = BACKLOG_BATCHES * 3 // 4
"""The batches that the others read repeatedly; they end well before the end of the log."""
BATCH_BYTES: Final = limits.MIB - 4 * limits.KIB
RECORD_BYTES: Final = limits.KIB
RECORDS_PER_ROUND: Final = 100
PAUSE_S: Final = 0.01

_SPAWN: Final = multiprocessing.get_context("spawn")


class Side(Enum):
    """No other client reads; or others do, and reads are served in the order of their requests, as
    many as a connection asks for; or they take turns."""

    ALONE = "alone"
    FIRST_COME = "first come, first served"
    TURNS = "by turns"

    @property
    def bounds(self) -> dict[str, int]:
        """The replaced limits of the server, by name."""
        if self is not Side.FIRST_COME:
            return {}
        return {"TAIL_WINDOW_BYTES": 0, "RESPONSES_RESERVED_MAX": limits.CALLS_IN_FLIGHT_MAX}


@dataclass(frozen=True, slots=True)
class _Streams:
    backlog: int
    tail: int


@dataclass(slots=True)
class _Round:
    """The seconds of each record, to its acknowledgement and to the reader; what others read."""

    append_seconds: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Waits:
    """The results of each round of a side: seconds of appends and of records, and bytes/s."""

    side: str
    appends: Series
    records: Series
    bytes_per_s: float


def measure(folder: Path, rounds: int, *, report: Callable[[str], None]) -> list[Waits]:
    """Run the sides in turn, once unmeasured and then `rounds` times, on one log in `folder`."""
    with _server(folder, Side.ALONE) as endpoint:
        streams = _fill(endpoint)
    found: dict[Side, list[_Round]] = {side: [] for side in Side}
    for number in range(rounds + 1):
        for side in Side:
            found[side].append(_run(folder, side, streams))
        report(f"isolation: {f'round {number}' if number else 'warm-up'} done")
    return [
        Waits(
            side.value,
            Series(side.value, tuple(tuple(each.append_seconds) for each in found[side][1:])),
            Series(side.value, tuple(tuple(each.seconds) for each in found[side][1:])),
            median(each.bytes_per_s for each in found[side][1:]),
        )
        for side in Side
    ]


def show(waits: Sequence[Waits]) -> str:
    """Return the waits as a table for the terminal."""
    times = ("append p50 ms", "append p99 ms", "p50 ms", "p99 ms", "max ms")
    header = ("reads are served", *times, "catch-up MB/s")
    lines = []
    for each in waits:
        seconds = (
            *(each.appends.percentile(percent) for percent in (50, 99)),
            *(each.records.percentile(percent) for percent in (50, 99, 100)),
        )
        texts = [f"{second * 1000:.1f}" for second in seconds]
        lines.append((each.side, *texts, f"{each.bytes_per_s / 1e6:,.0f}"))
    return table(header, lines, text_columns={0})


def _fill(endpoint: str) -> _Streams:
    with Client(endpoint) as client:
        backlog, tail = client.create_streams([StreamSpec("backlog"), StreamSpec("tail")])
        item = AppendItem(backlog.stream_id, _batch(BATCH_BYTES))
        for _ in range(BACKLOG_BATCHES):
            client.append([item])
    return _Streams(backlog.stream_id, tail.stream_id)


def _batch(value_bytes: int) -> bytes:
    """Return a batch of one record, so that offsets count batches."""
    columns: dict[str, list[Any]] = {
        "key": [None],
        "value": [os.urandom(value_bytes)],
        "headers": [None],
        "timestamp": [0],
    }
    rows = pa.record_batch(columns, schema=ROWS_SCHEMA)
    return encode_rows(rows, stream_id=0, timestamp_ms=0)


def _run(folder: Path, side: Side, streams: _Streams) -> _Round:
    with _server(folder, side) as endpoint:
        if side is Side.ALONE:
            return asyncio.run(_follow_tail(endpoint, streams.tail))
        with _others(endpoint, streams.backlog) as byte_count:
            before, started = byte_count.value, time.perf_counter()
            timed = asyncio.run(_follow_tail(endpoint, streams.tail))
            timed.bytes_per_s = (byte_count.value - before) / (time.perf_counter() - started)
            return timed


async def _follow_tail(endpoint: str, stream_id: int) -> _Round:
    """Append records, one after the other, while a reader polls for each of them."""
    batch = _batch(RECORD_BYTES)
    timed = _Round()
    async with AsyncClient(endpoint) as writer, AsyncClient(endpoint) as reader:
        (bounds,) = await reader.stream_bounds([stream_id])
        for offset in range(bounds.next_offset, bounds.next_offset + RECORDS_PER_ROUND):
            polling = asyncio.create_task(_poll(reader, stream_id, offset))
            await asyncio.sleep(PAUSE_S)
            started = time.perf_counter()
            await writer.append([AppendItem(stream_id, batch)])
            timed.append_seconds.append(time.perf_counter() - started)
            timed.seconds.append(await polling - started)
    return timed


async def _poll(reader: AsyncClient, stream_id: int, offset: int) -> float:
    """Wait for the record at `offset`; return when it arrived."""
    item = FetchItem(stream_id, offset, None, limits.FETCH_BATCH_BYTES_DEFAULT)
    async for outcome in reader.fetch([item], max_wait_ms=limits.FETCH_WAIT_MS_MAX):
        _check(outcome.error, len(outcome.payload))
    return time.perf_counter()


def _check(error: Exception | None, byte_count: int) -> None:
    if error is not None:
        raise error
    if not byte_count:
        raise BenchmarkError("a fetch was answered with nothing")


@contextmanager
def _child(target: Callable[..., None], *arguments: object) -> Iterator[Connection]:
    """Run `target` in a process; give the other end of its last argument, whose end ends it."""
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=target, args=(*arguments, theirs))
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join()
    if process.exitcode != 0:
        raise BenchmarkError(f"{target.__name__} ended with exit code {process.exitcode}")


@contextmanager
def _server(folder: Path, side: Side) -> Iterator[str]:
    """Start a server; give its endpoint."""
    with _child(_serve, folder, side.bounds) as pipe:
        yield pipe.recv()


@contextmanager
def _others(endpoint: str, stream_id: int) -> Iterator[Synchronized[int]]:
    """Let others catch up; give the bytes that they have read so far."""
    byte_count = _SPAWN.Value("q", 0)
    with _child(_catch_up, endpoint, stream_id, byte_count) as pipe:
        pipe.recv()
        yield byte_count


def _serve(folder: Path, bounds: dict[str, int], pipe: Connection) -> None:
    vars(limits).update(bounds)

    async def serve() -> None:
        settings = ClusterSettings(data_dir=folder, pd_port=0, range_server_port=0)
        cluster = Cluster(settings)
        await cluster.start()
        pipe.send(cluster.endpoints.pd)
        await asyncio.to_thread(pipe.poll, None)
        await cluster.stop()

    asyncio.run(serve())


def _catch_up(
    endpoint: str, stream_id: int, byte_count: Synchronized[int], pipe: Connection
) -> None:
    async def read_for_ever(client: AsyncClient, offset: int) -> None:
        while True:
            item = FetchItem(stream_id, offset % OLD_BATCHES, None, limits.MIB)
            async for outcome in client.fetch([item]):
                _check(outcome.error, len(outcome.payload))
                byte_count.value += len(outcome.payload)
            offset += 1

    async def catch_up() -> None:
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            readers = []
            for number in range(CLIENTS):
                client = await stack.enter_async_context(AsyncClient(endpoint))
                for turn in range(FETCHES_IN_FLIGHT):
                    offset = OLD_BATCHES * (FETCHES_IN_FLIGHT * number + turn)
                    offset //= CLIENTS * FETCHES_IN_FLIGHT
                    readers.append(group.create_task(read_for_ever(client, offset)))
            await asyncio.sleep(1)  # until all of them are busy
            pipe.send(None)
            await asyncio.to_thread(pipe.poll, None)
            for reader in readers:
                reader.cancel()

    asyncio.run(catch_up())


def main(arguments: Sequence[str]) -> int:
    """Measure; print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.core.isolation", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (5)")
    settings = parser.parse_args(arguments)
    with new_folder() as folder:
        waits = measure(folder, settings.rounds, report=lambda line: print(line, file=sys.stderr))
    print(f"\n{show(waits)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
