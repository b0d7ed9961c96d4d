"""kill -9 of producer, consumer and server: each record is stored once, and read at least once."""

import subprocess

from sbp_core import connect
from tests.support.clock import until
from tests.support.programs import program
from tests.support.warm import WarmCluster

RECORDS_PER_ROUND = 5_000


def test_all_killed_at_any_time(tmp_path, rng, rounds):
    notes = tmp_path / "notes"
    notes.touch()
    end_offset = RECORDS_PER_ROUND * rounds(3)
    with WarmCluster(tmp_path / "data") as cluster, connect(cluster.endpoint) as sbp:
        sbp.create_stream("numbers")
        commands = {
            "loader": program("app_loader", cluster.endpoint, "numbers", end_offset),
            "reader": program("app_reader", cluster.endpoint, "numbers", end_offset, notes),
        }
        running = {name: start(command) for name, command in commands.items()}
        for _ in range(rounds(3)):
            wait_for_notes(notes, notes.stat().st_size + rng.randrange(20_000), running["reader"])
            victim = rng.choice(["loader", "reader", "server"])
            if victim == "server":
                cluster.kill()
                cluster.restart()
            else:
                end(running[victim])
                running[victim] = start(commands[victim])
        assert [each.wait() for each in running.values()] == [0, 0]
        stored = [(each.offset, each.value) for each in sbp.consumer("numbers")]
    assert stored == [(number, b"%d" % number) for number in range(end_offset)]
    lines = set(notes.read_bytes().split(b"\n"))
    assert {b"%d %d" % (number, number) for number in range(end_offset)} <= lines


def start(command):
    return subprocess.Popen(command)


def end(process):
    process.kill()
    process.wait()


def wait_for_notes(notes, size_bytes, reader):
    until(lambda: notes.stat().st_size >= size_bytes or reader.poll() is not None)
