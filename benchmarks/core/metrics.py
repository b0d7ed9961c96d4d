"""`python -m benchmarks.core.metrics`: what metrics, scrapes and a flood of HTTP cost appends.

One server with an admin endpoint. Clients append small batches, each waiting for its
acknowledgement: alone, while `/metrics` is read ten times a second, and while 50 connections ask
for `/readyz` as fast as they are answered. With `--beside DIR` a server of another checkout, such
as one that counts nothing, appends in the same rounds.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import os
import selectors
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import psutil

from benchmarks.core.load import Load, run
from benchmarks.core.servers import batch
from benchmarks.harness.folders import new_folder
from benchmarks.harness.tables import table
from sbp_core.client import Client, StreamSpec
from sbp_core.cluster import LocalCluster

_ROUNDS: Final = 9
_SECONDS: Final = 3.0
_CLIENTS: Final = 32
_VALUE_BYTES: Final = 1024
_SCRAPES_PER_S: Final = 10
_FLOOD_CONNECTIONS: Final = 50


class _Taken(NamedTuple):
    """Appends in a second, microseconds of the server's processor for each, HTTP in a second."""

    per_second: float
    cost_us: float
    http_per_s: float = 0.0


def _row(name: str, found: Sequence[_Taken], alone: Sequence[_Taken]) -> tuple[str, ...]:
    ratios = [mine.per_second / other.per_second for mine, other in zip(found, alone, strict=True)]
    return (
        name,
        f"{median(each.per_second for each in found):,.0f}",
        f"{median(each.cost_us for each in found):.1f}",
        f"{median(ratios):.3f}",
        f"{min(ratios):.2f} to {max(ratios):.2f}",
        f"{median(each.http_per_s for each in found):,.0f}",
    )


class _Side:
    """A server, and a stream to append to."""

    def __init__(self, stack: ExitStack, folder: Path, *options: str) -> None:
        self.cluster = stack.enter_context(LocalCluster(folder, options=options))
        client = stack.enter_context(Client(self.cluster.endpoint))
        (stream,) = client.create_streams([StreamSpec("records")])
        (server,) = self.cluster.range_servers
        self._process = psutil.Process(self.cluster.pid)
        self._load = Load(
            int(server.rpartition(":")[2]),
            (stream.stream_id,),
            batch(_VALUE_BYTES),
            _CLIENTS,
            1,
            _SECONDS,
        )

    @property
    def admin(self) -> tuple[str, int]:
        """Where the admin endpoint is."""
        ready = json.loads((self.cluster.data_dir / "ready.json").read_text(encoding="utf-8"))
        host, _, port = ready["admin"].rpartition(":")
        return host, int(port)

    def append(self) -> _Taken:
        """Append for a while."""
        before = self._process.cpu_times()
        answers = run(self._load)
        now = self._process.cpu_times()
        assert answers.failed == answers.refused == 0
        used = now.user + now.system - before.user - before.system
        return _Taken(answers.per_second, 1e6 * used / answers.asked)


@contextmanager
def _nothing(_: tuple[str, int]) -> Iterator[list[float]]:
    yield [0.0]


@contextmanager
def _scrapes(admin: tuple[str, int]) -> Iterator[list[float]]:
    """Read the metrics all the time; the list gets how many times a second that was done."""
    ended, count = threading.Event(), [0.0]

    def scrape() -> None:
        while not ended.wait(1 / _SCRAPES_PER_S):
            with urllib.request.urlopen(f"http://{admin[0]}:{admin[1]}/metrics") as answer:
                assert answer.status == 200
                answer.read()
            count[0] += 1

    thread = threading.Thread(target=scrape)
    thread.start()
    began_at = time.monotonic()
    try:
        yield count
    finally:
        ended.set()
        thread.join()
        count[0] /= time.monotonic() - began_at


def _flood_for_ever(admin: tuple[str, int], total: ctypes.c_longlong) -> None:
    request = b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    selector = selectors.DefaultSelector()

    def connect() -> None:
        peer = socket.create_connection(admin)
        selector.register(peer, selectors.EVENT_READ, peer)
        peer.sendall(request)

    for _ in range(_FLOOD_CONNECTIONS):
        connect()
    while True:
        for key, _ in selector.select():
            try:
                received = key.data.recv(1 << 16)
            except ConnectionError:
                received = b""
            if not received:
                selector.unregister(key.data)
                key.data.close()
                connect()
            elif received.startswith(b"HTTP/1.1 200"):
                total.value += 1
                key.data.sendall(request)


@contextmanager
def _flood(admin: tuple[str, int]) -> Iterator[list[float]]:
    context = multiprocessing.get_context("spawn")
    total = context.Value("q", 0, lock=False)
    process = context.Process(target=_flood_for_ever, args=(admin, total), daemon=True)
    process.start()
    count = [0.0]
    while not total.value:
        time.sleep(0.01)
    before, began_at = total.value, time.monotonic()
    try:
        yield count
    finally:
        count[0] = (total.value - before) / (time.monotonic() - began_at)
        process.kill()
        process.join()


_LOADS: Final = {"alone": _nothing, "10 scrapes/s": _scrapes, "HTTP flood": _flood}


@contextmanager
def _packages_of(folder: Path) -> Iterator[None]:
    """Let child processes run the code of another checkout."""
    before = os.environ.get("PYTHONPATH")
    here = Path.cwd()
    os.environ["PYTHONPATH"] = str(folder)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(here)
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def measure(rounds: int, beside: Path | None) -> None:
    """Measure all in turn, and print a table."""
    with new_folder() as folder, ExitStack() as stack:
        side = _Side(stack, folder / "metrics", "--admin-port", "0")
        other = None
        if beside is not None:
            with _packages_of(beside):
                other = _Side(stack, folder / "beside")
        found: dict[str, list[_Taken]] = {}
        for number in range(rounds + 1):
            for name in list(_LOADS)[:: 1 if number % 2 else -1]:
                with _LOADS[name](side.admin) as count:
                    taken = side.append()
                if number:  # the first round warms up
                    found.setdefault(name, []).append(taken._replace(http_per_s=count[0]))
            if other is not None:
                taken = other.append()
                if number:
                    found.setdefault("beside", []).append(taken)
        lines = [
            _row(name, found[name], found["alone"]) for name in (*_LOADS, "beside") if name in found
        ]
        header = ("load", "appends/s", "server us", "ratio", "spread", "HTTP/s")
        print(table(header, lines, text_columns={0}))
        print("ratio: to `alone` of the same round; us: processor time of the server per append")


def main(arguments: Sequence[str]) -> int:
    """Measure; print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.core.metrics")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help=f"rounds ({_ROUNDS})")
    parser.add_argument("--beside", type=Path, metavar="DIR", help="another checkout to compare")
    settings = parser.parse_args(arguments)
    measure(settings.rounds, settings.beside)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
