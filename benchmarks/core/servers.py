"""`python -m benchmarks.core.servers`: the servers without Spark, by the raw disk and loopback.

Each ratio compares two things that ran in turn in this run: appends with plain writes and
fdatasync, fetches of cached data with plain bytes through a socket. Then 1, 16 and 256 clients
append small batches, each waiting for its acknowledgement: the case for group commit. As many
clients send PINGs; the difference is the share of the disk in a round trip.

Clients are our own, all in this process, and take a good part of the two processors themselves;
and bare sockets (load.py, raw_reader.py), so that it is the servers.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

import pyarrow as pa

from benchmarks.core.load import Generator, Load, run
from benchmarks.core.raw_reader import RawReader
from benchmarks.harness.folders import new_folder
from benchmarks.harness.tables import table
from sbp_core.client import AppendItem, AsyncClient, FetchItem, StreamSpec
from sbp_core.cluster import LocalCluster
from sbp_core.log.entry import COMMIT_MARKER
from sbp_core.records import ROWS_SCHEMA, encode_rows

_MIB: Final = 1024 * 1024
_LARGE_BYTES: Final = _MIB - 2048
"""A value that makes a batch of 1 MiB."""
_ROUND_BATCHES: Final = 256
_ROUNDS: Final = 5
_IN_FLIGHT: Final = 8
_SYNC_BYTES: Final = _IN_FLIGHT * _MIB
"""The raw side syncs as often as our client lets the server: once per what is in flight."""
_LARGE_SECONDS: Final = 0.5
_READ_BATCHES: Final = 4
"""Batches in an answer of a reader that asks for much at a time."""
_RECENT_BATCHES: Final = 32
"""The last batches of a range; a range server has at least this number in memory."""
_SMALL_BYTES: Final = 1024
_SMALL_SECONDS: Final = 4.0
_WARM_UP_SECONDS: Final = 0.5
_CLIENT_COUNTS: Final = (1, 16, 256)


@dataclass(frozen=True, slots=True)
class Acknowledgements:
    """Results of clients that append one small batch at a time. Latencies in ms."""

    kind: str
    client_count: int
    per_second: float
    median_ms: float
    p99_ms: float
    per_sync: float
    ping_p99_ms: float


def batch(value_bytes: int) -> bytes:
    """Return a record batch of one random value."""
    columns = [
        pa.nulls(1, ROWS_SCHEMA.field("key").type),
        pa.array([os.urandom(value_bytes)], ROWS_SCHEMA.field("value").type),
        pa.nulls(1, ROWS_SCHEMA.field("headers").type),
        pa.array([0], ROWS_SCHEMA.field("timestamp").type),
    ]
    rows = pa.record_batch(columns, schema=ROWS_SCHEMA)
    return encode_rows(rows, stream_id=0, timestamp_ms=0)


async def append_seconds(client: AsyncClient, stream_id: int, data: bytes) -> float:
    """Append a round of large batches, some of them in flight at a time."""
    left = iter(range(_ROUND_BATCHES))

    async def work() -> None:
        for _ in left:
            await client.append([AppendItem(stream_id, data)])

    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(_IN_FLIGHT)))
    return time.perf_counter() - started


def socket_append_seconds(endpoint: str, stream_id: int, data: bytes) -> float:
    """Append large batches over a bare socket, as many in flight; return what a round takes."""
    port = int(endpoint.rpartition(":")[2])
    answers = run(Load(port, (stream_id,), data, 1, _IN_FLIGHT, _LARGE_SECONDS, _WARM_UP_SECONDS))
    assert answers.acknowledged > 0 == answers.failed + answers.refused
    return _ROUND_BATCHES / answers.per_second


def raw_append_seconds(path: Path, data: bytes) -> float:
    """Write the same bytes to the end of a file, with fdatasync.

    The file goes on as a log does: the page cache of a file that is rewritten gets memory that
    was in use a moment ago, which a virtual machine has at hand. Other memory it first has to get
    from its host, for several times what it costs to copy the bytes there.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    started = time.perf_counter()
    for number in range(1, _ROUND_BATCHES + 1):
        os.write(descriptor, data)
        if number * len(data) % _SYNC_BYTES < len(data):
            os.fdatasync(descriptor)
    os.fdatasync(descriptor)
    seconds = time.perf_counter() - started
    os.close(descriptor)
    return seconds


async def fetch_seconds(client: AsyncClient, stream_id: int, data: bytes) -> float:
    """Fetch a round of large batches with our client, one by one, some in flight at a time."""
    left = iter(range(_ROUND_BATCHES))

    async def work() -> None:
        for offset in left:
            item = FetchItem(stream_id, offset, None, len(data))
            async for outcome in client.fetch([item]):
                assert outcome.error is None, outcome.error
                assert len(outcome.payload) == len(data)

    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(_IN_FLIGHT // 2)))
    return time.perf_counter() - started


def reader_seconds(endpoint: str, stream_id: int, first: int, data: bytes) -> float:
    """Fetch batches from `first` on, _READ_BATCHES in an answer, as often as makes a round.

    Each time on a connection of its own: a server gives up those that are idle for long.
    """
    answers = _RECENT_BATCHES // _READ_BATCHES
    offsets = range(first, first + _RECENT_BATCHES, _READ_BATCHES)
    with RawReader(endpoint) as reader:
        seconds, received = reader.read_seconds(
            stream_id,
            [*offsets] * (_ROUND_BATCHES // _RECENT_BATCHES),
            max_bytes=_READ_BATCHES * len(data),
            in_flight=2,
        )
    assert received == answers * (_ROUND_BATCHES // _RECENT_BATCHES) * _READ_BATCHES * len(data)
    return seconds


def raw_fetch_seconds(data: bytes) -> float:
    """Receive the same bytes from another process over the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = multiprocessing.get_context("spawn").Process(
            target=_send, args=(listener.getsockname()[1], data)
        )
        sender.start()
        connection, _ = listener.accept()
        buffer = bytearray(len(data))
        left = _ROUND_BATCHES * len(data)
        connection.recv(1)
        started = time.perf_counter()
        while left:
            left -= connection.recv_into(buffer)
        seconds = time.perf_counter() - started
        connection.close()
        sender.join()
    return seconds


def _send(port: int, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"!")
        for _ in range(_ROUND_BATCHES):
            connection.sendall(data)


async def of_clients(
    endpoint: str, log: Path, stream_id: int, client_count: int
) -> Acknowledgements:
    """Let clients append one small batch after the other, each on a connection of its own."""
    clients = [AsyncClient(endpoint) for _ in range(client_count)]
    data = batch(_SMALL_BYTES)

    async def append(client: AsyncClient) -> None:
        await client.append([AppendItem(stream_id, data)])

    async def ping(client: AsyncClient) -> None:
        await client.ping()

    await _latencies(clients, append, _WARM_UP_SECONDS)
    syncs = _commit_count(log)
    latencies = await _latencies(clients, append, _SMALL_SECONDS)
    syncs = _commit_count(log) - syncs
    pings = await _latencies(clients, ping, _WARM_UP_SECONDS)
    await asyncio.gather(*(client.close() for client in clients))
    return Acknowledgements(
        "AsyncClient",
        client_count,
        len(latencies) / _SMALL_SECONDS,
        1000 * median(latencies),
        1000 * _p99(latencies),
        len(latencies) / syncs,
        1000 * _p99(pings),
    )


async def _latencies(
    clients: Sequence[AsyncClient], call: Callable[[AsyncClient], Awaitable[None]], seconds: float
) -> list[float]:
    """Let every client make calls, one after the other; return how long each took."""
    latencies: list[float] = []
    until = time.perf_counter() + seconds

    async def work(client: AsyncClient) -> None:
        while (began := time.perf_counter()) < until:
            await call(client)
            latencies.append(time.perf_counter() - began)

    await asyncio.gather(*map(work, clients))
    return latencies


def of_sockets(endpoint: str, log: Path, stream_id: int, client_count: int) -> Acknowledgements:
    """Do the same over bare sockets, of a process of their own."""
    port = int(endpoint.rpartition(":")[2])
    appends = Load(port, (stream_id,), batch(_SMALL_BYTES), client_count, 1, _SMALL_SECONDS)
    generator = Generator(appends)
    generator.wait_connected()
    syncs = _commit_count(log)
    generator.start()
    answers = generator.finish()
    syncs = _commit_count(log) - syncs
    assert answers.acknowledged > 0 == answers.failed + answers.refused
    pings = run(replace(appends, batch=None))
    return Acknowledgements(
        "socket",
        client_count,
        answers.per_second,
        answers.latency_ms(50),
        answers.latency_ms(99),
        answers.asked / syncs,
        pings.latency_ms(99),
    )


def _commit_count(log: Path) -> int:
    """Return the group commits in a log: each begins with a marker."""
    return sum(path.read_bytes().count(COMMIT_MARKER) for path in log.glob("*.log"))


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[max(0, int(len(values) * 0.99) - 1)]


def p99_sync_ms(folder: Path) -> float:
    """Return the 99th percentile of a small write with fdatasync, in ms."""
    path = folder / "syncs"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    data = os.urandom(_SMALL_BYTES)
    seconds = []
    for _ in range(1000):
        started = time.perf_counter()
        os.write(descriptor, data)
        os.fdatasync(descriptor)
        seconds.append(time.perf_counter() - started)
    os.close(descriptor)
    path.unlink()
    return 1000 * _p99(seconds)


def _ratio_row(
    name: str, ceiling: str, own: Sequence[float], raw: Sequence[float]
) -> tuple[str, ...]:
    ratios = [raw_s / own_s for own_s, raw_s in zip(own, raw, strict=True)]
    mb = _ROUND_BATCHES * _MIB / 1e6
    return (
        name,
        f"{mb / median(own):,.0f}",
        ceiling,
        f"{mb / median(raw):,.0f}",
        f"{median(ratios):.2f}",
        f"{min(ratios):.2f} to {max(ratios):.2f}",
    )


async def _measure(folder: Path, cluster: LocalCluster, report: Callable[[str], None]) -> None:
    log = folder / "data" / "range-server-0" / "log"
    data = batch(_LARGE_BYTES)
    sides = ("socket append", "append", "raw append", "fetch", "memory", "page cache", "raw fetch")
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    async with AsyncClient(cluster.endpoint) as client:
        stream, other = await client.create_streams([StreamSpec("large"), StreamSpec("other")])
        server = cluster.range_servers[0]
        for number in range(_ROUNDS + 1):
            first = number * _ROUND_BATCHES
            recent = first + _ROUND_BATCHES - _RECENT_BATCHES
            times = (
                socket_append_seconds(server, other.stream_id, data),
                await append_seconds(client, stream.stream_id, data),
                raw_append_seconds(folder / "raw", data),
                await fetch_seconds(client, stream.stream_id, data),
                reader_seconds(server, stream.stream_id, recent, data),
                reader_seconds(server, stream.stream_id, first, data),
                raw_fetch_seconds(data),
            )
            for side, taken in zip(sides, times, strict=True):
                if number:  # the first round warms up
                    seconds[side].append(taken)
    rows = [
        _ratio_row(name, ceiling, seconds[side], seconds[raw])
        for name, side, ceiling, raw in (
            ("append 1 MiB", "socket append", "write + fdatasync", "raw append"),
            ("append 1 MiB, AsyncClient", "append", "write + fdatasync", "raw append"),
            ("fetch 4 x 1 MiB, in the server's memory", "memory", "loopback", "raw fetch"),
            ("fetch 4 x 1 MiB, in the page cache", "page cache", "loopback", "raw fetch"),
            ("fetch 1 MiB, AsyncClient", "fetch", "loopback", "raw fetch"),
        )
    ]
    header = ("what", "MB/s", "ceiling", "its MB/s", "ratio", "spread")
    report(table(header, rows, text_columns={0, 2}) + "\n")
    sync_ms = p99_sync_ms(folder)
    report(f"p99 of 1 KiB + fdatasync {sync_ms:.2f} ms\n")
    waits = ("median ms", "p99 ms", "PING p99 ms")
    columns = ("by", "clients", "acks/s", *waits, "bound", "acks/sync")
    found: list[Acknowledgements] = []
    for count in _CLIENT_COUNTS:
        by_clients = await of_clients(cluster.endpoint, log, stream.stream_id, count)
        by_sockets = of_sockets(cluster.range_servers[0], log, stream.stream_id, count)
        found += by_clients, by_sockets
    lines = [
        (
            each.kind,
            f"{each.client_count}",
            f"{each.per_second:,.0f}",
            f"{each.median_ms:.2f}",
            f"{each.p99_ms:.2f}",
            f"{each.ping_p99_ms:.2f}",
            f"{each.p99_ms / (sync_ms + each.ping_p99_ms):.1f}",
            f"{each.per_sync:.1f}",
        )
        for each in sorted(found, key=lambda each: each.kind)
    ]
    report(table(columns, lines, text_columns={0}))
    report("bound: p99 of an append / (p99 of fdatasync + p99 of as many clients' PINGs)")


def main(arguments: Sequence[str]) -> int:
    """Measure; print two tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.core.servers", description=__doc__)
    parser.parse_args(arguments)
    with new_folder() as folder, LocalCluster(folder / "data") as cluster:
        asyncio.run(_measure(folder, cluster, lambda text: print(text, flush=True)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
