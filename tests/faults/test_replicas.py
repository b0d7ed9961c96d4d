"""Streams with three copies: servers are killed, paused and restarted, one or all at a time.

Writers, a reader, and a client that seals and trims go on through all of it. Acknowledged records
are there once, at their offsets, and every server ends with the same ranges.
"""

import pytest

from tests.support.appends import Committers, wait_until_published
from tests.support.faults.checker import assert_sound, chosen
from tests.support.faults.workload import Workload, list_streams, new_streams
from tests.support.machines import Machines

SERVERS = 3


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


def run_through_faults(machines, clients, history, rng, rounds):
    """Each fault once, in turn, and then any: the clients get on after each of them."""
    with clients:
        clients.wait_for_progress()
        for number in range(rounds(len(FAULTS))):
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
