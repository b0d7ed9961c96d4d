"""The world of one seed: what time, random numbers, sockets, threads and disks are within it."""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import pkgutil
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import ENOSPC
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy.random  # noqa: F401 - its import takes random numbers, so not within a run
import pytest
from sim_loop import RUNNING, Process, ProcessDied, SimulatedExecutor, SimulatedLoop
from sim_network import Network, SimulatedAcceptor, SimulatedSocket

import sbp_core
from sbp_core.pd.metadata.store import MetadataStore
from sbp_core.rangeserver.server_load import HostProbe
from tests.support.cluster import allow_small_segments
from tests.support.disk import FaultyDisk

EPOCH_SECONDS = 1_700_000_000
BLOCK_BYTES = 512
FREE_BYTES = 1 << 40

_IN_PLACE_OF = {
    "ThreadPoolExecutor": SimulatedExecutor,
    "Acceptor": SimulatedAcceptor,
    "AsyncSocket": SimulatedSocket,
}
"""Classes by the names under which modules of the project import those that they replace."""


class World:
    """A seed, the loop and network that follow from it, and all that happened."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.lines: list[str] = []
        """One for each event; equal for equal seeds."""
        self.loop = SimulatedLoop(self.random("loop"))
        self.network = Network(self.loop, self.random("network"), self.note)
        self.loop.network = self.network

    def random(self, purpose: str) -> Random:
        """Return random numbers that depend on nothing but the seed and the purpose."""
        return Random(f"{self.seed} {purpose}")

    def note(self, what: str) -> None:
        """Note an event."""
        self.lines.append(f"{self.loop.time():.6f} {what}")


class SimulatedDisk(FaultyDisk):
    """A disk that gets full, and that may end its process between two operations."""

    def __init__(self) -> None:
        super().__init__(BLOCK_BYTES)
        self.is_full = False
        self._dies_in = 0
        self._die: Callable[[], None] = lambda: None

    def kill_in(self, operations: int, die: Callable[[], None]) -> None:
        """Call `die` instead of the change of the disk that has this number, counted from now."""
        self._dies_in, self._die = operations, die

    def flip(self, path: Path, position: int) -> None:
        """Change one byte on the platter."""
        for data in (self.names[path].cached, self.names[path].durable):
            data[position] ^= 1

    def enter(self, operation: str, path: Path) -> None:
        super().enter(operation, path)
        if operation in {"size", "pread", "list_names", "open", "make_directory", "drop_cache"}:
            return
        if self._dies_in:
            self._dies_in -= 1
            if not self._dies_in:
                self._die()
                raise ProcessDied
        if self.is_full and operation in {"pwritev", "create"}:
            raise OSError(ENOSPC, os.strerror(ENOSPC), str(path))


class SimulatedProbe(HostProbe):
    """The load of a machine with a simulated disk."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk

    def disk_free_bytes(self, folder: Path) -> int:
        del folder
        return 0 if self._disk.is_full else FREE_BYTES

    def memory_used_bytes(self) -> int:
        return 1 << 28


class SimulatedClock:
    """The clock of one machine; its wall time may jump."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.offset_ms = 0

    def monotonic(self) -> float:
        return self._loop.time()

    def wall_ms(self) -> int:
        return round((EPOCH_SECONDS + self._loop.time()) * 1000) + self.offset_ms


class KnownStore(MetadataStore):
    """The metadata in a real file. The end of the process closes it: a commit is never torn."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        process = RUNNING.get()
        assert process is not None
        process.on_death.append(super().close)

    def close(self) -> None:
        process = RUNNING.get()
        assert process is not None
        process.on_death.clear()
        super().close()


@contextmanager
def new_world(seed: int) -> Iterator[World]:
    """Make a world; within it nothing of the real one decides what happens.

    After the run the garbage collector looks at nothing that the process had before: that would
    take a tenth of the time.
    """
    modules = _modules()
    world = World(seed)
    entropy, loop = world.random("entropy"), world.loop

    def now() -> float:
        return loop.time()

    with pytest.MonkeyPatch.context() as patch:
        allow_small_segments(patch)
        for name, stand_in in _IN_PLACE_OF.items():
            for module in modules:
                if hasattr(module, name):
                    patch.setattr(module, name, stand_in)
        patch.setattr("sbp_core.pd.metadata.store.MetadataStore", KnownStore)
        patch.setattr("sbp_core.rangeserver.server_id.read_regular", _read_from_disk)
        _default_clock(patch, sys.modules["sbp_core.client.io.aio_transport"].AsyncPool, now)
        patch.setattr(os, "urandom", entropy.randbytes)
        patch.setattr(random, "_urandom", entropy.randbytes)
        for name in ("monotonic", "perf_counter"):
            patch.setattr(time, name, now)
        patch.setattr(time, "thread_time", lambda: 0.0)
        patch.setattr(time, "time", lambda: EPOCH_SECONDS + now())
        patch.setattr(time, "time_ns", lambda: int((EPOCH_SECONDS + now()) * 1e9))
        _give_hashes(patch, loop)
        patch.setattr("sbp_core.limits.LOG_RESERVE_BYTES", BLOCK_BYTES)
        gc.freeze()
        gc.disable()  # what is collected when would depend on what ran before
        try:
            yield world
        finally:
            loop.close()
            gc.collect()  # before the next run puts all that there is out of its sight
            gc.enable()


@cache
def _modules() -> list[Any]:
    """Import all modules of the project that may run in a simulation."""
    packages = ("client", "log", "pd", "rangeserver", "server", "session", "wire")
    found = [
        each.name
        for each in pkgutil.walk_packages(sbp_core.__path__, "sbp_core.")
        if each.name.split(".")[1] in packages and ".migrations" not in each.name
    ]
    return [importlib.import_module(name) for name in found]


def _default_clock(patch: pytest.MonkeyPatch, target: Any, now: Callable[[], float]) -> None:
    """Let objects of a class that are given no clock have this one."""
    make = target.__init__

    def make_with_clock(self: Any, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **{"clock": now, **options})

    patch.setattr(target, "__init__", make_with_clock)


def _give_hashes(patch: pytest.MonkeyPatch, loop: SimulatedLoop) -> None:
    """Let objects that are kept in sets have hashes that do not depend on their addresses."""
    from sbp_core.client.io.aio_connection import AsyncConnection
    from sbp_core.server.outgoing import Backlog
    from sbp_core.server.peer import Peer

    def serial_of(self: Any) -> int:
        serial: int | None = self.__dict__.get("_serial")
        if serial is None:
            serial = self.__dict__["_serial"] = next(loop.serials)
        return serial

    for each in (AsyncConnection, Backlog, Peer, asyncio.Event):
        patch.setattr(each, "__hash__", serial_of)


def _read_from_disk(path: Path, bytes_max: int) -> bytes:
    """Read a small file of the range server that runs."""
    process: Process | None = RUNNING.get()
    assert process is not None
    data: bytes = process.disk.open(path, is_writable=False).pread(bytes_max, 0)
    return data
