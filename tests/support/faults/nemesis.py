"""Faults of a cluster: of its servers, disks, networks and its database, one by one.

Each fault heals what it did, after the clients got on in spite of it, where a majority is left.

Bits flip on, and the disk is lost of, the first server only: a record is acknowledged when two
servers have it, and no more than one disk may lose it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random

from sbp_core import limits
from sbp_core.client import Client
from sbp_core.errors import SbpError
from sbp_core.wire.opcodes import Opcode
from tests.support.clock import until
from tests.support.faults.proxy import Delay, Direction, Fault, Hold, Swallow
from tests.support.machines import Machine, Machines, start_all
from tests.support.metadata import PostgresqlServer, pooler
from tests.support.real_disks import SmallMemory

SERVERS = 3
DISK_BYTES = 2 << 30
"""The disk that is filled has more than the free space below which a server stores nothing."""
FLAPS = 3
FULL = f"[range_server]\ndisk_free_floor_bytes = {limits.DISK_FREE_FLOOR_BYTES_MAX}\n"
"""With this the disk of any machine is full."""
REPLACED_SOON = "[placement_driver]\nreplace_server_after_ms = 3000\n"
"""Sealed ranges of a lost disk are copied again within a few faults."""


class Faulty:
    """Three range servers, two placement drivers and PostgreSQL, all behind proxies.

    `go_on` returns when the clients have got on; it is to be set.
    """

    def __init__(
        self, folder: Path, machines: Machines, postgresql: PostgresqlServer, store: str
    ) -> None:
        self.folder = folder
        self.postgresql = postgresql
        self.store = store
        """The URL of the database."""
        self.endpoint = machines.endpoint
        self.servers = machines.servers
        self.drivers = machines.drivers
        self.unlucky = machines.servers[0]
        """The server whose disk is damaged, or lost."""
        self.narrow = machines.servers[1]
        """The server that has a small disk of its own, where file systems can be mounted."""
        self.go_on: Callable[[], None] = lambda: None

    def check_alive(self) -> None:
        """Fail if a process has ended by itself: it would need a person."""
        for each in (*self.servers, *self.drivers):
            assert each.is_alive, f"{each.name} has ended: {each.log[-2_000:]}"

    def leader(self) -> Machine:
        """Return the placement driver that leads, as soon as one does."""
        found: list[Machine] = []

        def is_found() -> bool:
            with suppress(SbpError), Client(self.endpoint) as client:
                leading = {each.endpoint for each in client.placement_drivers() if each.is_leader}
                found[:] = [each for each in self.drivers if each.endpoint in leading]
            return bool(found)

        until(is_found)
        return found[0]

    def member(self, rng: Random) -> Machine:
        """Return a server of an open range."""
        with Client(self.endpoint) as client:
            streams = [each.stream_id for each in client.list_streams()]
            ranges = client.list_ranges(streams)
        return self.at(rng.choice(ranges[rng.choice(streams)][-1].servers))

    def secondary(self, rng: Random) -> Machine:
        """Return a server that gets the entries of an open range from another one.

        One that leads all ranges, as the others were down lately, gets none.
        """
        with Client(self.endpoint) as client:
            streams = [each.stream_id for each in client.list_streams()]
            found: list[str] = []

            def are_found() -> bool:
                ranges = client.list_ranges(streams).values()
                found.extend(server for pieces in ranges for server in pieces[-1].servers[1:])
                return bool(found)

            until(are_found)
        return self.at(rng.choice(found))

    def at(self, endpoint: str) -> Machine:
        """Return the server at an address."""
        return next(each for each in self.servers if each.endpoint == endpoint)

    def leave_ranges(self) -> None:
        """Let all streams go on in other ranges."""
        with Client(self.endpoint) as client:

            def are_sealed() -> bool:
                with suppress(SbpError):
                    client.seal_streams([each.stream_id for each in client.list_streams()])
                    return True
                return False

            until(are_sealed)


DoFault = Callable[[Faulty, Random], None]


@contextmanager
def faulty_cluster(folder: Path) -> Iterator[Faulty]:
    """Run such a cluster."""
    config = folder / "pd.toml"
    config.write_text(REPLACED_SOON)
    postgresql = PostgresqlServer()
    with ExitStack() as stack:
        stack.callback(postgresql.stop)
        with suppress(OSError):  # where nothing can be mounted, no disk is filled
            stack.callback(SmallMemory(folder / "rs1", DISK_BYTES).unmount)
        store = postgresql.new_database()
        machines = Machines(
            *(folder, SERVERS, ["--log-level", "info"]),
            driver_settings=["--log-level", "info", "--config", str(config)],
            proxied=True,
            store=store,
        )
        yield Faulty(folder, stack.enter_context(machines), postgresql, store)


def down(cluster: Faulty, *machines: Machine) -> None:
    """Kill these; start them again when the clients have got on, if they can."""
    for each in machines:
        each.kill()
    lost = [each for each in machines if each in cluster.servers]
    if len(lost) < 2 and len(machines) - len(lost) < 2:
        cluster.go_on()
    start_all(machines)


def kill_a_server(cluster: Faulty, rng: Random) -> None:
    down(cluster, rng.choice(cluster.servers))


def kill_two_servers(cluster: Faulty, rng: Random) -> None:
    down(cluster, *rng.sample(cluster.servers, 2))


def kill_the_leader(cluster: Faulty, rng: Random) -> None:
    down(cluster, cluster.leader())


def kill_the_leader_and_a_server(cluster: Faulty, rng: Random) -> None:
    down(cluster, cluster.leader(), rng.choice(cluster.servers))


def kill_all_servers(cluster: Faulty, rng: Random) -> None:
    down(cluster, *rng.sample(cluster.servers, SERVERS))


def kill_everything(cluster: Faulty, rng: Random) -> None:
    everything = [*cluster.servers, *cluster.drivers]
    rng.shuffle(everything)
    for each in everything:
        each.kill()
    cluster.postgresql.kill()
    cluster.postgresql.start()
    start_all(everything)


def kill_postgresql(cluster: Faulty, rng: Random) -> None:
    cluster.postgresql.kill()
    cluster.postgresql.start()


def pause(cluster: Faulty, machine: Machine) -> None:
    """Let a process take no step until the clients have got on."""
    machine.pause()
    cluster.go_on()
    machine.go_on()


def pause_a_server(cluster: Faulty, rng: Random) -> None:
    pause(cluster, rng.choice(cluster.servers))


def pause_the_leader(cluster: Faulty, rng: Random) -> None:
    pause(cluster, cluster.leader())


def flap(cluster: Faulty, rng: Random) -> None:
    """A server falls silent again and again."""
    victim = rng.choice(cluster.servers)
    for _ in range(FLAPS):
        pause(cluster, victim)
        cluster.go_on()


def put_a_pooler_before_the_database(cluster: Faulty, rng: Random) -> None:
    """A placement driver that is started with it says so and ends; the other one goes on."""
    victim = rng.choice(cluster.drivers)
    victim.stop()
    cluster.go_on()
    before = victim.options
    with pooler(cluster.store, drops=rng.random() < 0.5) as url:
        victim.options = ["--store", url]
        assert not victim.starts()
        assert "pooler" in victim.log.splitlines()[-1]
    victim.options = before
    victim.start()


def restart_a_server(cluster: Faulty, rng: Random) -> None:
    victim = rng.choice(cluster.servers)
    victim.stop()
    cluster.go_on()
    victim.start()


@contextmanager
def disturbed(
    machine: Machine, fault: Fault, *directions: Direction, opcode: Opcode | None = None
) -> Iterator[Callable[[], None]]:
    """Do harm to frames to and from a machine, to some at least, while the body runs.

    It yields a function that returns when the first frame has met the fault.
    """
    proxy = machine.proxy
    assert proxy is not None
    before = proxy.injected_count

    def wait() -> None:
        until(lambda: proxy.injected_count > before)

    for each in directions:
        proxy.inject(fault, each, opcode)
    yield wait
    wait()
    proxy.heal()
    if isinstance(fault, Swallow):
        proxy.reset_all()


def cut_requests_to_a_server(cluster: Faulty, rng: Random) -> None:
    with disturbed(rng.choice(cluster.servers), Swallow(), Direction.TO_SERVER):
        cluster.go_on()


def cut_answers_of_a_server(cluster: Faulty, rng: Random) -> None:
    with disturbed(rng.choice(cluster.servers), Swallow(), Direction.TO_CLIENT):
        cluster.go_on()


def cut_off_a_server(cluster: Faulty, rng: Random) -> None:
    with disturbed(rng.choice(cluster.servers), Swallow(), *Direction):
        cluster.go_on()


def cut_off_the_leader(cluster: Faulty, rng: Random) -> None:
    """For a moment: it leads as long as it reaches the database, even if no client reaches it."""
    with disturbed(cluster.leader(), Swallow(), rng.choice([*Direction])):
        pass


def lose_replication(cluster: Faulty, rng: Random) -> None:
    server, direction = cluster.secondary(rng), rng.choice([*Direction])
    with disturbed(server, Swallow(), direction, opcode=Opcode.REPLICATE):
        cluster.go_on()


def lose_fences(cluster: Faulty, rng: Random) -> None:
    """Choose one that has an open range: a server that was down lately may have none yet."""
    server, direction = cluster.member(rng), rng.choice([*Direction])
    with disturbed(server, Swallow(), direction, opcode=Opcode.SEAL_RANGE):
        cluster.leave_ranges()
        cluster.go_on()


def replicate_late(cluster: Faulty, rng: Random) -> None:
    """Entries arrive when their range has ended."""
    server = cluster.secondary(rng)
    with disturbed(server, Hold(), Direction.TO_SERVER, opcode=Opcode.REPLICATE) as wait:
        wait()
        cluster.leave_ranges()
        cluster.go_on()


def slow_down_a_server(cluster: Faulty, rng: Random) -> None:
    with disturbed(rng.choice(cluster.servers), Delay(rng.randint(5, 50)), *Direction):
        cluster.go_on()


def fill_a_disk(cluster: Faulty, rng: Random) -> None:
    """The server refuses what is to be stored."""
    victim = rng.choice(cluster.servers)
    config = cluster.folder / "full.toml"
    config.write_text(FULL)
    victim.stop()
    before, victim.options = victim.options, ["--config", str(config)]
    victim.start()
    cluster.go_on()
    victim.stop()
    victim.options = before
    victim.start()


def fill_a_disk_at_once(cluster: Faulty, rng: Random) -> None:
    """To the last byte, faster than free space is looked at; at times the server is killed then."""
    if not os.path.ismount(cluster.narrow.data_dir):
        return
    ballast = cluster.narrow.data_dir / "ballast"
    with ballast.open("wb") as file:
        with suppress(OSError):
            while file.write(bytes(1 << 20)):
                pass
        cluster.go_on()
        if rng.random() < 0.5:
            cluster.narrow.kill()
            cluster.narrow.start()
            cluster.go_on()
        ballast.unlink()


def flip_a_bit(cluster: Faulty, rng: Random) -> None:
    """Flip a bit in the log of a server that is down. If it refuses to start, its disk is lost."""
    cluster.unlucky.kill()
    segment = rng.choice(sorted(cluster.unlucky.data_dir.rglob("*.log")))
    data = bytearray(segment.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    segment.write_bytes(data)
    cluster.go_on()
    if not cluster.unlucky.starts():
        assert "is damaged at log position" in cluster.unlucky.log.splitlines()[-1]
        come_back_empty(cluster)
    cluster.leave_ranges()


def lose_a_disk(cluster: Faulty, rng: Random) -> None:
    cluster.unlucky.kill()
    cluster.go_on()
    come_back_empty(cluster)
    cluster.leave_ranges()


def come_back_empty(cluster: Faulty) -> None:
    """Delete the data directory for good; the server joins as a new one."""
    shutil.rmtree(cluster.unlucky.data_dir)
    cluster.unlucky.start()


FAULTS: list[DoFault] = [
    kill_a_server,
    kill_two_servers,
    kill_all_servers,
    kill_everything,
    kill_the_leader,
    kill_the_leader_and_a_server,
    kill_postgresql,
    pause_a_server,
    pause_the_leader,
    flap,
    put_a_pooler_before_the_database,
    restart_a_server,
    cut_requests_to_a_server,
    cut_answers_of_a_server,
    cut_off_a_server,
    cut_off_the_leader,
    lose_replication,
    lose_fences,
    replicate_late,
    slow_down_a_server,
    fill_a_disk,
    fill_a_disk_at_once,
    flip_a_bit,
    lose_a_disk,
]


def drawn(rng: Random) -> Iterator[DoFault]:
    """Yield faults without end: each once, in any order, before one comes a second time."""
    while True:
        yield from rng.sample(FAULTS, len(FAULTS))
