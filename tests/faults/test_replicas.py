"""Streams with three copies: servers are killed, paused and restarted, one or all at a time.

Writers, a reader, and a client that seals and trims go on through all of it. Acknowledged records
are there once, at their offsets, and every server ends with the same ranges.
"""

import pytest
from checker import assert_sound, chosen
from machines import Machines
from workload import Workload, list_streams, new_streams

SERVERS = 3


@pytest.fixture
def machines(tmp_path):
    with Machines(tmp_path, SERVERS) as started:
        yield started


def kill_one(machines, workload, rng):
    victim = rng.choice(machines.servers)
    victim.kill()
    workload.wait_for_progress()
    victim.start()


def pause_one(machines, workload, rng):
    victim = rng.choice(machines.servers)
    victim.pause()
    workload.wait_for_progress()
    victim.go_on()


def restart_one(machines, workload, rng):
    victim = rng.choice(machines.servers)
    victim.stop()
    workload.wait_for_progress()
    victim.start()


def kill_all(machines, workload, rng):
    victims = rng.sample(machines.servers, SERVERS)
    for victim in victims:
        victim.kill()
    for victim in victims:
        victim.start()


def kill_the_driver(machines, workload, rng):
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
    with Workload(machines.endpoint, history, rng, stream_ids, writers=4, numbering=2) as workload:
        workload.wait_for_progress()
        for number in range(rounds(2 * len(FAULTS))):
            fault = FAULTS[number % len(FAULTS)] if number < len(FAULTS) else rng.choice(FAULTS)
            history.fault(fault.__name__)
            fault(machines, workload, rng)
            workload.wait_for_progress()
    list_streams(machines.endpoint, history, stream_ids)
    operations = history.operations()
    assert_sound(operations)
    assert len(chosen(operations, "append", "ok")) > 0
