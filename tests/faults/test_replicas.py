"""Streams with three copies: servers are killed, paused and restarted, one or all at a time.

Writers, a reader, and a client that seals and trims go on through all of it. Acknowledged records
are there once, at their offsets, and every server ends with the same ranges.
"""

import shutil

import pytest
from checker import assert_sound, chosen
from committers import Committers, wait_until_published
from fault_proxy import Direction, Swallow
from machines import Machines
from waiting import until
from workload import Workload, list_streams, new_streams

from sbp_core import limits
from sbp_core.client import Client
from sbp_core.wire.opcodes import Opcode

SERVERS = 3
FULL = f"disk_free_floor_bytes = {limits.DISK_FREE_FLOOR_BYTES_MAX}\n"
"""A setting with which the disk of any machine is full."""


@pytest.fixture
def machines(tmp_path):
    with Machines(tmp_path, SERVERS) as started:
        yield started


def kill_one(machines, clients, rng):
    victim = rng.choice(machines.servers)
    victim.kill()
    clients.wait_for_progress()
    victim.start()


def pause_one(machines, clients, rng):
    victim = rng.choice(machines.servers)
    victim.pause()
    clients.wait_for_progress()
    victim.go_on()


def restart_one(machines, clients, rng):
    victim = rng.choice(machines.servers)
    victim.stop()
    clients.wait_for_progress()
    victim.start()


def kill_all(machines, clients, rng):
    victims = rng.sample(machines.servers, SERVERS)
    for victim in victims:
        victim.kill()
    for victim in victims:
        victim.start()


def kill_the_driver(machines, clients, rng):
    machines.driver.kill()
    if rng.random() < 0.5:
        kill_one_more = rng.choice(machines.servers)
        kill_one_more.kill()
        machines.driver.start()
        kill_one_more.start()
    else:
        machines.driver.start()


FAULTS = (kill_one, pause_one, restart_one, kill_all, kill_the_driver)


@pytest.mark.timeout(900)
def test_no_acknowledged_record_is_lost_with_a_server(machines, history, rng, rounds):
    stream_ids = new_streams(machines.endpoint, replica_count=SERVERS)
    clients = Workload(machines.endpoint, history, rng, stream_ids, writers=4, numbering=2)
    run_through_faults(machines, clients, history, rng, rounds)
    operations = judged(machines, history, stream_ids)
    assert len(chosen(operations, "append", "ok")) > 0


@pytest.mark.timeout(900)
def test_a_committed_batch_is_whole_whatever_server_dies(machines, history, rng, rounds):
    """Batches are staged in open ranges that end before the commit, or during it."""
    stream_ids = new_streams(machines.endpoint, 3, replica_count=SERVERS)
    clients = Committers(machines.endpoint, history, rng, stream_ids)
    run_through_faults(machines, clients, history, rng, rounds)
    wait_until_published(machines.endpoint)
    operations = judged(machines, history, stream_ids)
    assert len(chosen(operations, "commit", "ok")) > 0
    assert clients.loser_count > 0


def lose_the_disk(victim, rng, tmp_path):
    """The server comes back empty, under the same command."""
    victim.kill()
    shutil.rmtree(victim.data_dir)
    victim.start()


def flip_a_bit(victim, rng, tmp_path):
    """Somewhere in its log, while it is down."""
    victim.kill()
    segment = rng.choice(sorted(victim.data_dir.rglob("*.log")))
    data = bytearray(segment.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    segment.write_bytes(data)
    victim.start()


def fill_the_disk(victim, rng, tmp_path):
    """It refuses what is to be stored."""
    config = tmp_path / "full.toml"
    config.write_text(f"[range_server]\n{FULL}")
    victim.stop()
    victim.options = ["--config", str(config)]
    victim.start()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("do", [lose_the_disk, flip_a_bit, fill_the_disk])
def test_two_servers_go_on_without_the_disk_of_one(do, tmp_path, machines, history, rng):
    stream_ids = new_streams(machines.endpoint, replica_count=SERVERS)
    with Workload(machines.endpoint, history, rng, stream_ids, writers=4, numbering=2) as clients:
        clients.wait_for_progress()
        victim = rng.choice(machines.servers)
        history.fault(f"{do.__name__} of {victim.endpoint}")
        do(victim, rng, tmp_path)
        for _ in range(5):
            clients.wait_for_progress()
        if do is fill_the_disk:
            for stream_id in stream_ids:
                until(lambda stream_id=stream_id: is_without(machines, stream_id, victim))
            clients.wait_for_progress()
    judged(machines, history, stream_ids)


def is_without(machines, stream_id, victim):
    """Whether the open range of a stream is on the other servers."""
    with Client(machines.endpoint) as client:
        last = client.list_ranges([stream_id])[stream_id][-1]
    return len(last.servers) == SERVERS - 1 and victim.endpoint not in last.servers


PARTITIONS = [
    (direction, opcode)
    for direction in Direction
    for opcode in (Opcode.REPLICATE, Opcode.SEAL_RANGE, None)
]
"""Frames to or from one server that are lost: of its primaries, of the placement driver, all."""


@pytest.mark.timeout(900)
def test_one_server_is_cut_off_in_one_direction(tmp_path, history, rng, rounds):
    """It still reaches the others, and the placement driver hears it."""
    with Machines(tmp_path, SERVERS, proxied=True) as machines:
        stream_ids = new_streams(machines.endpoint, replica_count=SERVERS)
        with Workload(
            *(machines.endpoint, history, rng, stream_ids), writers=4, numbering=2
        ) as clients:
            clients.wait_for_progress()
            for number in range(rounds(len(PARTITIONS))):
                direction, opcode = PARTITIONS[number % len(PARTITIONS)]
                proxy = rng.choice(machines.proxies)
                name = opcode.name if opcode else "frame"
                history.fault(f"{proxy.endpoint}: no {name} {direction.value}")
                lose_frames(proxy, direction, opcode, clients)
        judged(machines, history, stream_ids)


def lose_frames(proxy, direction, opcode, clients):
    """Lose some frames at least, until the clients have got on; then lose none any more."""
    before = proxy.injected_count
    proxy.inject(Swallow(), direction, opcode)
    until(lambda: proxy.injected_count > before)
    for _ in range(3):
        clients.wait_for_progress()
    proxy.heal()
    proxy.reset_all()
    clients.wait_for_progress()


def run_through_faults(machines, clients, history, rng, rounds):
    """Each fault once, in turn, and then any: the clients get on after each of them."""
    with clients:
        clients.wait_for_progress()
        for number in range(rounds(2 * len(FAULTS))):
            fault = FAULTS[number % len(FAULTS)] if number < len(FAULTS) else rng.choice(FAULTS)
            history.fault(fault.__name__)
            fault(machines, clients, rng)
            clients.wait_for_progress()


def judged(machines, history, stream_ids):
    """Return the operations, when all promises hold."""
    list_streams(machines.endpoint, history, stream_ids)
    operations = history.operations()
    assert_sound(operations)
    return operations
