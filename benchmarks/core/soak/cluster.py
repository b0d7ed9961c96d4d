"""The servers of a soak and the console; and restarts of them."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.core.server_process import POLL_SECONDS, Served, Server
from benchmarks.core.soak import board
from benchmarks.core.soak.board import Board
from benchmarks.core.soak.records import (
    CLICKS,
    CLICKS_SCHEMA,
    GROUP,
    ORDERS,
    REPLICATED,
    UNREPLICATED,
    WRITERS,
)
from benchmarks.harness.model import BenchmarkError
from benchmarks.harness.sampler import Sampler
from sbp_core import limits
from sbp_core.client import Client

RANGE_SERVERS: Final = 3
PORTS: Final = 2 * (1 + RANGE_SERVERS) + 1
"""Ports of a cluster: two of each server, one for clients and one for HTTP, and the console's."""
_PAGES: Final = (
    *("/", "/streams", f"/streams/{ORDERS}", f"/streams/{CLICKS}/schema"),
    *(f"/streams/{ORDERS}/records", f"/streams/{CLICKS}/records"),
    *("/groups", f"/groups/{GROUP}", "/transactions", "/servers", "/audit"),
)
"""Pages of the console that are open."""
NEVER_RESTARTED: Final = f"range-server-{RANGE_SERVERS}"

_SETTINGS: Final = f"""[range_server]
segment_bytes = {limits.SEGMENT_BYTES_MIN + limits.MIB}
retention_check_interval_ms = 10000
"""
"""Small segments, so that retention removes files all the time."""
_CALM_SECONDS: Final = 5.0
"""How long a restart is watched once the server is back: others may notice it later."""
_GO_ON_SECONDS: Final = 120.0

Counts = tuple[float, tuple[int, ...]]
"""A time, and the acknowledged records of each writer."""


@dataclass(frozen=True, slots=True)
class Restart:
    """A restart: when, of what, how; times in seconds.

    The server was down for `down_s`. `pause_s` is the longest time in which a writer got no
    acknowledgement.
    """

    at_s: float
    name: str
    signal: str
    down_s: float
    pause_s: float


class Cluster:
    """The servers by name, each a process. The stream without replicas is on the first one."""

    def __init__(self, folder: Path, first_port: int) -> None:
        ports = itertools.count(first_port)
        settings = folder / "range-server.toml"
        settings.write_text(_SETTINGS)
        self.servers: dict[str, Served] = {}
        self.metrics: dict[str, str] = {}
        """The URLs of the metrics of servers, by their names."""

        def add(name: str, command: str, *words: str) -> Served:
            port, http_port = next(ports), next(ports)
            words += ("--admin-port", str(http_port))
            self.metrics[name] = f"http://127.0.0.1:{http_port}/metrics"
            self.servers[name] = Server(folder, command, port, *words)
            return self.servers[name]

        self.endpoint = add("pd", "pd").endpoint
        for number in range(1, RANGE_SERVERS + 1):
            words = ("--pd", self.endpoint, "--config", str(settings), "--rack", f"rack-{number}")
            add(f"range-server-{number}", "range-server", *words)
        self.pages = list(self.metrics.values())
        """URLs of pages that are looked at."""
        console = Served(folder, "console", next(ports), "--endpoint", self.endpoint)
        self.servers["console"] = console
        self.pages += [f"http://{console.endpoint}{page}" for page in _PAGES]

    @property
    def pids(self) -> dict[str, int]:
        """The process ids of the servers as they were started last."""
        return {name: server.pid for name, server in self.servers.items()}

    def start(self) -> dict[str, int]:
        """Start all servers and create the streams; return their ids by name."""
        driver, first, *others = self.servers.values()
        driver.start()
        first.start()
        with Client(self.endpoint) as client:
            created = client.create_streams([UNREPLICATED])
            for server in others:
                server.start()
            created += client.create_streams(REPLICATED)
            stream_ids = {each.label: each.stream_id for each in created}
            client.register_schema(stream_ids[CLICKS], CLICKS_SCHEMA, version=1)
        return stream_ids

    def check(self) -> None:
        """Raise BenchmarkError if one has ended."""
        for name, server in self.servers.items():
            if not server.is_running:
                raise BenchmarkError(f"{name} has ended; its log is above")

    def stop(self) -> None:
        """End the servers that were started."""
        for server in reversed(self.servers.values()):
            if server.is_running:
                server.end(signal.SIGTERM)


def planned_restarts(names: Sequence[str]) -> Iterator[tuple[str, signal.Signals]]:
    """Yield restarts without end: each server in turn, SIGTERM and SIGKILL alternately.

    A server gets the other one in the next turn.
    """
    for turn in itertools.count():
        for place, name in enumerate(names):
            is_kill = (turn + place) % 2
            yield name, signal.SIGKILL if is_kill else signal.SIGTERM


def restart(cluster: Cluster, counters: Board, name: str, number: signal.Signals) -> Restart:
    """Restart a server at once, as a supervisor does; return when all writers go on.

    Raises BenchmarkError if one does not.
    """
    server = cluster.servers[name]
    began_at = time.monotonic()

    def look() -> Counts:
        found = tuple(counters[board.acknowledged(each)] for each in range(len(WRITERS)))
        return time.monotonic(), found

    with Sampler(look, interval_s=POLL_SECONDS) as sampler:
        server.end(number)
        server.start()
        _, before = look()
        back_at = time.monotonic()
        time.sleep(_CALM_SECONDS)
        while any(now == then for now, then in zip(look()[1], before, strict=True)):
            if time.monotonic() > back_at + _GO_ON_SECONDS:
                raise BenchmarkError(
                    f"{name} was restarted {_GO_ON_SECONDS:.0f} s ago, and a writer still has no"
                    " acknowledgement"
                )
            time.sleep(POLL_SECONDS)
    pause_s = longest_pause(sampler.samples)
    return Restart(began_at, name, number.name, back_at - began_at, pause_s)


def longest_pause(samples: Sequence[Counts]) -> float:
    """Return the longest time in which the count of one writer stayed as it was, in seconds."""
    longest = 0.0
    for writer in range(len(samples[0][1])):
        since = samples[0][0]
        for (_, before), (at, counts) in itertools.pairwise(samples):
            longest = max(longest, at - since)
            if counts[writer] != before[writer]:
                since = at
    return longest
