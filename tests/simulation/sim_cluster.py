"""The machines of a simulated cluster: each runs one server, starts it again, and may fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

from sim_loop import NOBODY, Process
from sim_world import SimulatedClock, SimulatedDisk, SimulatedProbe, World

from sbp_core.errors import LogCorruptionError, LogWriteError, SbpError
from sbp_core.limits import KIB
from sbp_core.log.recovery.inspection import inspect_log, repair_log
from sbp_core.log.recovery.opening import has_segments
from sbp_core.log.segment import maybe_segment_base
from sbp_core.log.segment_scan import Damage, SegmentScanner
from sbp_core.log.states.range_states import LoggedRange, RangeKey, RangeState
from sbp_core.pd import PlacementDriver
from sbp_core.rangeserver.hosted_ranges import HostedRange
from sbp_core.rangeserver.server import RangeServer
from sbp_core.replication import Prefix
from sbp_core.segment_format import EntryKind
from sbp_core.settings.server_settings import PlacementDriverSettings, RangeServerSettings

DRIVER_ADDRESS, DRIVER_PORT = "10.0.0.1", 12378
DRIVER = f"{DRIVER_ADDRESS}:{DRIVER_PORT}"
SERVER_PORT = 10911
SEGMENT_BYTES = 64 * KIB
HEARTBEAT_MS = 300
RESTART_SECONDS = 0.2
RESTART_SECONDS_MAX = 5.0
"""After starts that failed."""
REPAIR_SECONDS = 2.0
"""Until an operator repairs a log that is damaged, at most."""


class BrokenServerError(BaseException):
    """A server failed with an error that it does not report: the run ends at once."""


class Machine:
    """A machine with a disk and a clock, and the process of its server while one runs."""

    def __init__(self, world: World, name: str, address: str, *, has_disk: bool = True) -> None:
        self.name = name
        self.address = address
        self.disk = SimulatedDisk() if has_disk else None
        self.clock = SimulatedClock(world.loop)
        self.process: Process | None = None
        self.is_held_down = False
        """Whether the server stays down until `start`."""
        self.refusals: list[str] = []
        """Why a start failed, without one that succeeded afterwards."""
        self._world = world
        self._rng = world.random(f"machine {name}")
        self._server: Any = None

    def make_server(self) -> Any:
        """Return a server that was not started."""
        raise NotImplementedError

    def on_refused(self, error: SbpError) -> None:
        """A start failed."""

    @property
    def is_serving(self) -> bool:
        """Whether its process runs and has started."""
        return self.process is not None and self._server is not None

    def start(self) -> None:
        """Start a process that runs the server, if none runs."""
        self.is_held_down = False
        if self.process is None:
            self.process = process = Process(self.name, self.address, self.disk)
            process.ended = self._world.loop.create_future()
            self._world.note(f"{self.name} starts")
            process.context.run(self._world.loop.create_task, self._run_or_break(process))

    def kill(self, *, is_power_lost: bool = False) -> None:
        """End the process in the middle of whatever it does; without power, its cache is lost."""
        process = self.process
        if process is None:
            return
        self._world.note(f"{self.name} dies{' without power' if is_power_lost else ''}")
        self._end(process, is_power_lost=is_power_lost)
        if self.disk is not None:
            if is_power_lost:
                self.disk.lose_power(self._rng.randrange)
            else:
                self.disk.kill_process()

    def power_on(self) -> None:
        """Let the network reach the machine again, after it lost power."""
        self._world.network.power_on(self.address)

    async def stop(self) -> None:
        """Stop the server in good order."""
        process, server = self.process, self._server
        if process is None or server is None:
            return
        self._world.note(f"{self.name} stops")
        self._server = None
        self.is_held_down = True
        try:
            await self._in(process, server.stop)
        except LogWriteError as error:  # its disk is full: the log has no note of its end
            self._world.note(f"{self.name} stops without that: {error}")
        if process.is_alive:
            self._end(process, is_power_lost=False)

    def _end(self, process: Process, *, is_power_lost: bool) -> None:
        process.is_alive = False
        process.ended.set_result(None)
        self.process = self._server = None
        self._world.network.end_process(process, is_power_lost=is_power_lost)
        for close in [*process.on_death]:
            close()
        if not is_power_lost and not self.is_held_down:
            seconds = min(RESTART_SECONDS * 2 ** len(self.refusals), RESTART_SECONDS_MAX)
            delay = seconds * (1 + self._rng.random())
            self._world.loop.call_later(delay, self._start_again, context=NOBODY)

    def _start_again(self) -> None:
        if not self.is_held_down:
            self.start()

    async def _run_or_break(self, process: Process) -> None:
        try:
            await self._run(process)
        except Exception as error:
            raise BrokenServerError from error

    async def _run(self, process: Process) -> None:
        server = self.make_server()
        try:
            await server.start()
        except SbpError as error:
            self._world.note(f"{self.name} does not start: {type(error).__name__}")
            self.refusals.append(str(error))
            await self._stop(server)
            self._end(process, is_power_lost=False)
            self.on_refused(error)
            return
        self.refusals.clear()
        self._server = server
        self._world.note(f"{self.name} serves")
        error = await asyncio.shield(server.failed)
        self._world.note(f"{self.name} fails: {type(error).__name__}")
        logging.getLogger(__name__).info("%s fails: %s", self.name, error)
        if self._server is server:
            self._server = None
            await self._stop(server)
            self._end(process, is_power_lost=False)

    async def _stop(self, server: Any) -> None:
        try:
            await server.stop()
        except LogWriteError as error:  # its disk is full, or has failed
            self._world.note(f"{self.name} does not close its log: {error}")

    async def _in(self, process: Process, work: Callable[[], Awaitable[None]]) -> None:
        """Do something in a process, for as long as it lives."""

        async def do() -> None:
            await work()

        task = process.context.run(self._world.loop.create_task, do())
        await asyncio.wait({task, process.ended}, return_when=asyncio.FIRST_COMPLETED)
        if task.done() and process.is_alive:
            task.result()


class RangeServerMachine(Machine):
    """A machine with a range server."""

    is_damaged = False
    """Whether its disk lost what was synced, so that not all can be read here any more."""

    def make_server(self) -> RangeServer:
        settings = RangeServerSettings(
            data_dir=Path("/data") / self.name,
            placement_driver=DRIVER,
            host=self.address,
            port=SERVER_PORT,
            insecure=True,
            segment_bytes=SEGMENT_BYTES,
            heartbeat_interval_ms=HEARTBEAT_MS,
            retention_check_interval_ms=1_000,
        )
        assert self.disk is not None
        self.disk.is_full = False
        return RangeServer(
            settings, clock=self.clock, disk=self.disk, probe=SimulatedProbe(self.disk)
        )

    def replace_disk(self) -> None:
        """Put in an empty disk, while the machine has no power."""
        self.disk = SimulatedDisk()
        self._world.note(f"{self.name} has an empty disk")

    def damage(self) -> None:
        """Change a byte of one of the last entries of which the log proves that they were synced.

        Mostly of a batch: the server starts with it. With other entries an operator has to act.
        """
        assert self.disk is not None
        segments = sorted(each for each in self.disk.names if each.suffix == ".log")
        if not segments:
            return
        self.is_damaged = True
        base = maybe_segment_base(segments[-1].name)
        assert base is not None
        file = self.disk.open(segments[-1], is_writable=False)
        scanner = SegmentScanner(file, base, file.size())
        found = [each for each in scanner.entries() if not isinstance(each, Damage)]
        synced = [each for each in found if each[1].end <= scanner.durable_upto]
        if self._rng.random() < 0.8:
            synced = [each for each in synced if each[0].kind is EntryKind.BATCH]
        if synced:
            _, location = self._rng.choice(synced[-3:])
            self.disk.flip(segments[-1], location.end - 1 - base)
            self._world.note(f"{self.name} is damaged at {location.position}")

    def on_refused(self, error: SbpError) -> None:
        """Let an operator do what the message says."""
        if isinstance(error, LogCorruptionError) and self.is_damaged:
            self._world.loop.call_later(
                self._rng.random() * REPAIR_SECONDS, self._repair, context=NOBODY
            )

    def _repair(self) -> None:
        """Do what `sbp log repair` does."""
        folder = Path("/data") / self.name / "log"
        if self.process is None and self.disk is not None and has_segments(self.disk, folder):
            repair_log(self.disk, folder, inspect_log(self.disk, folder), self.clock.wall_ms())
            self._world.note(f"{self.name} is repaired")

    def hosted(self, key: RangeKey) -> HostedRange | None:
        """Return a range as the server that runs has it."""
        return self._server._host.table.maybe_range(key) if self.is_serving else None

    def copies(self) -> dict[RangeKey, LoggedRange]:
        """Return the replicated ranges in its log."""
        ranges = self._server._log.ranges() if self.is_serving else []
        return {each.key: each for each in ranges if each.prefix is not None}

    def ended_copies(self) -> dict[RangeKey, LoggedRange]:
        """Return those of them that are not open, or have a successor here."""
        copies = self.copies()
        last = dict(sorted(copies))
        return {
            key: each
            for key, each in copies.items()
            if each.state is not RangeState.OPEN or each.range_index < last[each.stream_id]
        }


class DriverMachine(Machine):
    """A machine with a placement driver, whose metadata are in a real folder."""

    def __init__(self, world: World, folder: Path) -> None:
        super().__init__(world, "pd", DRIVER_ADDRESS, has_disk=False)
        self._folder = folder

    def make_server(self) -> PlacementDriver:
        settings = PlacementDriverSettings(
            data_dir=self._folder,
            host=DRIVER_ADDRESS,
            port=DRIVER_PORT,
            insecure=True,
            heartbeat_timeout_ms=5 * HEARTBEAT_MS,
        )
        return PlacementDriver(settings, self.clock)


class SimulatedCluster:
    """One placement driver and some range servers."""

    def __init__(self, world: World, folder: Path, range_servers: int) -> None:
        self.world = world
        self.driver = DriverMachine(world, folder)
        self.servers = [
            RangeServerMachine(world, f"server-{number}", f"10.0.0.{number + 2}")
            for number in range(range_servers)
        ]
        self.machines: list[Machine] = [self.driver, *self.servers]

    def start(self) -> None:
        """Start what does not run, on machines that all work."""
        for machine in self.machines:
            machine.power_on()
            machine.clock.offset_ms = 0
            if machine.disk is not None:
                machine.disk.is_full = False
            if machine.process is not None:
                machine.process.slowness = 1.0
                self.world.loop.resume(machine.process)
            machine.start()

    def unsettled_copies(self) -> list[str]:
        """Return the copies of ended ranges that are not complete, on servers that lost nothing."""
        return [
            f"{server.name} {key}"
            for server in self.servers
            for key, each in server.ended_copies().items()
            if each.is_unsettled and not server.is_damaged
        ]

    def ends_of_copies(
        self, first_ranges: Mapping[int, int]
    ) -> dict[RangeKey, dict[str, tuple[int, Prefix | None]]]:
        """Return where the settled copies of each range end, by server that lost nothing.

        Some copies of ranges before the first one of their stream ended after they were trimmed
        away. These are without entries, and left out.
        """
        found: dict[RangeKey, dict[str, tuple[int, Prefix | None]]] = {}
        for server in self.servers:
            if server.is_damaged:
                continue
            for key, each in server.ended_copies().items():
                is_trimmed = key[1] < first_ranges[key[0]] and not each.seq
                if each.state is RangeState.SEALED and each.is_whole and not is_trimmed:
                    found.setdefault(key, {})[server.name] = each.next_offset, each.prefix
        return found

    def is_sealed(self, key: RangeKey) -> bool:
        """Whether a server has sealed a range."""
        hosted = [each.hosted(key) for each in self.servers]
        return any(each is not None and each.state is RangeState.SEALED for each in hosted)

    @property
    def refusals(self) -> list[str]:
        """Why servers do not start."""
        return [each for machine in self.machines for each in machine.refusals]


def address_of_client(number: int) -> str:
    """Return the address of a client, which is a machine of its own."""
    return f"10.0.1.{number + 1}"


def pick(rng: Random, weights: dict[str, int]) -> str:
    """Choose a name by its weight."""
    return rng.choices([*weights], [*weights.values()])[0]
