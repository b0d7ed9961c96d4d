"""`python -m benchmarks.core.scale`: what a stream, a range and a query cost each server.

A placement driver and a range server, an `sbp` command each on this machine. Streams are created up
to the first count, and then to the second, and each gets two small records. Processor time is that
of the streams that were added; memory and disk are the differences between the counts.
docs/explanation/scale.md multiplies the costs to a large cluster.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM
from typing import Final

import psutil

from benchmarks.core.server_process import Server
from benchmarks.core.servers import batch
from benchmarks.harness.folders import new_folder
from benchmarks.harness.tables import table
from sbp_core.client import AppendItem, Client, StreamSpec, Writer
from sbp_core.processes import reserved_ports

_COUNTS: Final = (2_000, 20_000)
_AT_ONCE: Final = 250
_IDLE_SECONDS: Final = 10.0
_POLLS: Final = 50
_MORE: Final = 6
"""Range servers that are started last."""
_QUIET: Final = ("--log-level", "error")


@dataclass(frozen=True)
class Cost:
    """Processor time of both servers in s, and the time on the clock."""

    driver_s: float
    server_s: float
    seconds: float


class Pair:
    """A placement driver, a range server, and a client of both."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with reserved_ports(2 + _MORE) as first:
            self.driver = Server(folder, "pd", first, *_QUIET)
            self.server, *self.more = (
                Server(folder, "range-server", port, "--pd", self.driver.endpoint, *_QUIET)
                for port in range(first + 1, first + 2 + _MORE)
            )
        self.driver.start()
        self.server.start()
        self.client = Client(self.driver.endpoint)
        self.stream_ids: list[int] = []

    def close(self) -> None:
        """End both."""
        self.client.close()
        for each in (*self.more, self.server, self.driver):
            if each.is_running:
                each.end(SIGTERM)

    def cost(self, work: Callable[[], object]) -> Cost:
        """Return the cost of doing something."""
        before, began = self._busy(), time.perf_counter()
        work()
        driver_s, server_s = (now - then for now, then in zip(self._busy(), before, strict=True))
        return Cost(driver_s, server_s, time.perf_counter() - began)

    def memory(self) -> tuple[int, int]:
        """Return the resident bytes of both."""
        return self._process(self.driver).memory_info().rss, (
            self._process(self.server).memory_info().rss
        )

    def stored(self) -> int:
        """Return the bytes of the placement driver's files."""
        folder = self._folder / self.driver.endpoint.rpartition(":")[2]
        return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())

    def create(self, upto: int) -> None:
        """Create streams until there are `upto`."""
        for start in range(len(self.stream_ids), upto, _AT_ONCE):
            names = [f"scale-{each}" for each in range(start, min(start + _AT_ONCE, upto))]
            made = self.client.create_streams([StreamSpec(each) for each in names])
            self.stream_ids += [each.stream_id for each in made]

    def append(self, stream_ids: Sequence[int]) -> None:
        """Append one record to each stream."""
        data = batch(100)
        with self.client.appender(writer=Writer()) as appender:
            for stream_id in stream_ids:
                appender.append([AppendItem(stream_id, data)])
            appender.finish()

    def restart(self, server: Server) -> float:
        """Stop a server in order and start it again; return how long the start takes."""
        server.end(SIGTERM)
        began = time.perf_counter()
        server.start()
        return time.perf_counter() - began

    def _busy(self) -> tuple[float, float]:
        times = [self._process(each).cpu_times() for each in (self.driver, self.server)]
        driver_s, server_s = (each.user + each.system for each in times)
        return driver_s, server_s

    def _process(self, server: Server) -> psutil.Process:
        return psutil.Process(server.pid)


def _measure(pair: Pair, upto: int) -> Iterator[tuple[str, float, float, float]]:
    """Yield what was done, its cost to both servers in us each time, and the time in s."""
    ids, client = pair.stream_ids, pair.client
    known = len(ids)

    def each(name: str, work: Callable[[], object], count: int) -> tuple[str, float, float, float]:
        found = pair.cost(work)
        return name, 1e6 * found.driver_s / count, 1e6 * found.server_s / count, found.seconds

    yield each("create a stream", lambda: pair.create(upto), upto - known)
    yield each("first append", lambda: pair.append(ids[known:]), upto - known)
    yield each("second append", lambda: pair.append(ids[known:]), upto - known)
    yield each("a second, idle", lambda: time.sleep(_IDLE_SECONDS), int(_IDLE_SECONDS))
    yield each("list the ranges of a stream", lambda: client.list_ranges(ids), len(ids))
    yield each("the bounds of a stream", lambda: client.stream_bounds(ids), len(ids))
    bounds = client.watch_bounds(ids)

    def poll() -> None:
        for _ in range(_POLLS):
            client.watch_bounds(ids, bounds)

    yield each("poll of a query, no news", poll, _POLLS)


def main(arguments: Sequence[str]) -> int:
    """Measure; print tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.core.scale")
    text = "streams (%(default)s)"
    parser.add_argument("--counts", type=int, nargs=2, default=_COUNTS, help=text)
    counts = parser.parse_args(arguments).counts
    lines, sizes, starts = [], [], []
    with new_folder() as folder, closing(Pair(folder)) as pair:
        for count in counts:
            for name, *costs in _measure(pair, count):
                lines.append((f"{count:,}", name, *(f"{each:,.1f}" for each in costs)))
            os.sync()
            sizes.append((*pair.memory(), pair.stored()))
            starts.append([pair.restart(each) for each in (pair.driver, pair.server)])
        alone = pair.cost(lambda: time.sleep(_IDLE_SECONDS))
        for each in pair.more:
            each.start()
        together = pair.cost(lambda: time.sleep(_IDLE_SECONDS))
    heading = ("streams", "to", "driver us", "server us", "in all s")
    print(table(heading, lines, text_columns={0, 1}))
    per_server = (together.driver_s - alone.driver_s) / _IDLE_SECONDS / _MORE
    print(f"\na range server takes {1e6 * per_server:,.0f} us of each second of the driver's")
    added = counts[1] - counts[0]
    names = "the driver's memory", "the range server's memory", "the driver's disk"
    for name, before, after in zip(names, *sizes, strict=True):
        print(f"a stream takes {(after - before) / added:,.0f} B of {name}")
    for count, (driver_s, server_s) in zip(counts, starts, strict=True):
        print(f"start with {count:,} streams: driver {driver_s:.2f} s, server {server_s:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
