"""One run: a cluster, clients and faults that follow from a seed, and the judgement at its end."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from random import Random

from sim_cluster import Machine, SimulatedCluster, address_of_client, pick
from sim_loop import NOBODY
from sim_workload import Workload
from sim_world import World, new_world

from tests.support.faults.checker import assert_sound, chosen, final_contents
from tests.support.faults.workload import Operation

STREAMS = 3
FAULT_PAUSE_SECONDS = 0.5
HEAL_SECONDS = 60.0
"""Simulated time in which all clients finish once all servers work again."""
ERROR_CHARACTERS = 2_000
MEMORY_FOLDER = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Setup:
    """The sizes that all runs of a series have in common."""

    replicas: int = 1
    faults: int = 6


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a run; `lines` are its events, `error` is why it failed."""

    seed: int
    lines: list[str]
    operations: int
    acknowledged: int
    simulated_seconds: float
    error: str | None


def run_seed(seed: int, setup: Setup = Setup()) -> Report:
    """Run one seed to its end."""
    home = MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="sbp-simulation-", dir=home))
    try:
        with new_world(seed) as world:
            run = Run(world, folder, setup)
            error: str | None = None
            try:
                world.loop.run_until_complete(run.main())
            except Exception as failure:
                error = f"{type(failure).__name__}: {failure}"[:ERROR_CHARACTERS]
            run.cluster.driver.kill()
            operations = run.workload.history.operations()
            return Report(
                seed,
                world.lines,
                len(operations),
                len(chosen(operations, "append", "ok")) + len(chosen(operations, "commit", "ok")),
                world.loop.time(),
                error,
            )
    finally:
        shutil.rmtree(folder)


class Run:
    """One run, from the start of the servers to the judgement."""

    def __init__(self, world: World, folder: Path, setup: Setup) -> None:
        self._world = world
        self._setup = setup
        self._rng: Random = world.random("faults")
        of_replicas = world.random("replicas")
        servers = 2 if setup.replicas == 1 else of_replicas.choice([3, 4])
        self.cluster = SimulatedCluster(world, folder, servers)
        self.workload = Workload(world)
        self._weights = _WEIGHTS if setup.replicas == 1 else _WEIGHTS | _WEIGHTS_OF_REPLICAS
        self._frail = of_replicas.choice(self.cluster.servers)
        """The one server whose disk may lose what was synced: there is a copy elsewhere."""

    async def main(self) -> None:
        """Run. Raises AssertionError if a promise was broken."""
        world, cluster, workload = self._world, self.cluster, self.workload
        cluster.start()
        await workload.create_streams(STREAMS, self._setup.replicas)
        workload.start(self._rng)
        for _ in range(self._rng.randint(1, self._setup.faults)):
            await asyncio.sleep(self._rng.random() * FAULT_PAUSE_SECONDS)
            await self._fault()
            workload.raise_failure()
        await asyncio.sleep(self._rng.random() * FAULT_PAUSE_SECONDS)
        world.note("all faults are over")
        world.network.heal()
        cluster.start()
        try:
            await workload.finish(HEAL_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}; servers: {cluster.refusals or 'run'}") from error
        await workload.audit(HEAL_SECONDS)
        await self._check_replicas()
        operations = workload.history.operations()
        world.lines.append(repr(operations))
        assert_sound(operations)
        self._check_appended(operations)
        assert not world.loop.faults, world.loop.faults

    def _check_appended(self, operations: list[Operation]) -> None:
        """Raise AssertionError if a record is missing whose offset its writer was not told."""
        contents = final_contents(operations)
        present = {record for content in contents.values() for record in content.records.values()}
        trimmed = {
            record
            for append in chosen(operations, "append")
            if contents[append.request["stream"]].start
            for record in append.request["records"]
        }
        missing = {*self.workload.appended} - present - trimmed
        assert not missing, f"acknowledged, and not there: {sorted(missing)}"

    async def _check_replicas(self) -> None:
        """Raise AssertionError if copies of ended ranges differ, or do not become equal."""
        deadline = self._world.loop.time() + HEAL_SECONDS
        while unsettled := self.cluster.unsettled_copies():
            late = f"copies not settled {HEAL_SECONDS} s after all faults were over: {unsettled}"
            assert self._world.loop.time() < deadline, late
            await asyncio.sleep(1)
        for key, ends in self.cluster.ends_of_copies(self.workload.first_ranges).items():
            assert len(set(ends.values())) == 1, f"copies of range {key} differ: {ends}"

    async def _fault(self) -> None:
        """Do something to the cluster; some of it ends by itself, all of it at the end."""
        rng, network = self._rng, self._world.network
        machine = rng.choice(self.cluster.machines)
        kind = pick(rng, self._weights)
        if kind in {"disk lost", "damage"}:
            machine = self._frail
        self._world.note(f"fault: {kind} at {machine.name}")
        if kind == "kill":
            machine.kill()
        elif kind == "power cut":
            self._cut_power(machine)
        elif kind == "power cut of all":
            for each in self.cluster.machines:
                self._cut_power(each)
        elif kind == "death at a disk operation":
            self._die_later(machine)
        elif kind == "stop":
            await machine.stop()
            machine.start()
        elif kind == "pause":
            await self._pause(machine)
        elif kind == "partition":
            self._partition(machine, is_one_way=rng.random() < 0.5)
        elif kind == "reset":
            for _ in range(rng.randint(1, 3)):
                network.reset_some()
        elif kind == "slow network":
            network.slow_down(machine.address, rng.choice([10, 100, 1_000]))
        elif kind == "slow disk" and machine.process is not None:
            machine.process.slowness = rng.choice([10, 100, 1_000])
        elif kind == "full disk" and machine.disk is not None:
            machine.disk.is_full = True
        elif kind == "disk lost":
            self._cut_power(machine)
            machine.replace_disk()
        elif kind == "damage":
            await self._damage()
        elif kind == "isolation":
            await self._isolate(rng.choice(self.cluster.servers))
        elif kind == "clock":
            machine.clock.offset_ms += rng.choice([-3_600_000, -5_000, 5_000, 3_600_000])
        elif kind == "heal":
            network.heal()
            self.cluster.start()

    def _cut_power(self, machine: Machine, seconds_max: float = 2) -> None:
        """Cut the power, for a moment."""
        machine.kill(is_power_lost=True)
        seconds = self._rng.random() * seconds_max
        loop = self._world.loop
        loop.call_later(seconds, machine.power_on, context=NOBODY)
        loop.call_later(seconds + self._rng.random() * 0.1, machine.start, context=NOBODY)

    async def _isolate(self, server: Machine) -> None:
        """Cut a server off from the other ones, not from clients, and then its power."""
        for each in self.cluster.servers:
            if each is not server:
                self._world.network.block(server.address, each.address)
        await asyncio.sleep(self._rng.random() * 0.5)
        self._cut_power(server, 4)
        self._world.network.heal()

    async def _damage(self) -> None:
        """Damage what the frail server has synced, while others are behind it or down."""
        rng, frail = self._rng, self._frail
        behind, *down = rng.sample([each for each in self.cluster.servers if each is not frail], 2)
        for each in self.cluster.servers:
            if each is not behind:
                self._world.network.block(each.address, behind.address)
        await asyncio.sleep(rng.random() * 0.5)
        for each in down:
            self._cut_power(each, rng.choice([0.5, 4]))
        self._cut_power(frail, 0.3)
        frail.damage()
        await asyncio.sleep(rng.random() * 0.2)
        self._world.network.heal()

    def _die_later(self, machine: Machine) -> None:
        """Let a process end between two operations on its disk, or its machine lose power."""
        if machine.disk is not None:
            has_power = self._rng.random() < 0.5
            die = machine.kill if has_power else lambda: self._cut_power(machine)
            machine.disk.kill_in(self._rng.randint(1, 12), die)

    async def _pause(self, machine: Machine) -> None:
        process = machine.process
        if process is not None:
            process.is_paused = True
            await asyncio.sleep(self._rng.choice([0.1, 1.0, 5.0]) * self._rng.random())
            if process.is_alive:
                self._world.loop.resume(process)

    def _partition(self, machine: Machine, *, is_one_way: bool) -> None:
        """Cut a machine off from others, clients too."""
        others = [each.address for each in self.cluster.machines if each is not machine]
        others += [address_of_client(number) for number in range(8)]
        for other in self._rng.sample(others, self._rng.randint(1, len(others))):
            pair = [(machine.address, other), (other, machine.address)]
            if is_one_way:
                pair = [self._rng.choice(pair)]
            for source, target in pair:
                self._world.network.block(source, target)


_WEIGHTS = {
    "kill": 4,
    "power cut": 4,
    "power cut of all": 1,
    "death at a disk operation": 4,
    "stop": 2,
    "pause": 3,
    "partition": 4,
    "reset": 3,
    "slow network": 2,
    "slow disk": 2,
    "full disk": 1,
    "clock": 2,
    "heal": 4,
}

_WEIGHTS_OF_REPLICAS = {
    "disk lost": 2,
    "damage": 5,
    "isolation": 4,
}
"""Faults for ranges with copies. Disks lose data at one server only: nothing copies it again."""
