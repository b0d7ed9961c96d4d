"""kill -9 and pauses of members of a group, and of the servers, at random.

One member at a time works on a stream, and each record is processed at least once. A member that
stands still while it works, until its session is over, cannot know it: such work may overlap with
that of the next one, and its commit is refused.
"""

import json
import os
import signal
import subprocess
import time
from collections import defaultdict
from itertools import count
from typing import NamedTuple

import pytest

from sbp_core.client import AppendItem, Client, StreamSpec, Writer
from tests.support.clock import until
from tests.support.cluster import rows_batch
from tests.support.faults.cluster import FaultCluster
from tests.support.programs import program

GROUP, PREFIX = "workers", "work."
STREAMS, MEMBERS = 4, 3
SESSION_MS = 3_000
RECORDS_PER_BATCH = 20
TURN_SECONDS = 0.5


class Turn(NamedTuple):
    """The work of a member on a stream, from the look at its cursor to the commit."""

    begin: int
    end: int
    member: str
    deadline: int


class Members:
    """The processes of a group; each has a journal of its own, which stays when it is killed."""

    def __init__(self, endpoint, folder):
        self._endpoint, self._folder = endpoint, folder
        self._numbers = count()
        self.running = []

    def add(self):
        journal = self._folder / f"member-{next(self._numbers)}"
        arguments = {
            "endpoint": self._endpoint,
            "group": GROUP,
            "pattern": PREFIX + "*",
            "journal": str(journal),
            "session_ms": SESSION_MS,
        }
        self.running.append(subprocess.Popen(program("group_member", json.dumps(arguments))))

    def signal_one(self, rng, number):
        victim = rng.choice(self.running)
        os.kill(victim.pid, number)
        return victim

    def kill(self, victim):
        victim.kill()
        victim.wait()
        self.running.remove(victim)

    def journals(self):
        """By stream: the turns that members came to the end of, and the offsets processed."""
        turns, offsets = defaultdict(list), defaultdict(set)
        for path in self._folder.glob("member-*"):
            begun = {}
            for line in path.read_text().splitlines():
                what, stream_id, *numbers = line.split()
                numbers = [int(each) for each in numbers]
                if what == "begin":
                    begun[stream_id] = numbers
                elif what == "record":
                    offsets[int(stream_id)].add(*numbers)
                else:
                    begin, deadline = begun.pop(stream_id)
                    turns[int(stream_id)].append(Turn(begin, *numbers, path.name, deadline))
        return turns, offsets


@pytest.fixture
def members(tmp_path):
    made = []

    def make(endpoint):
        made.append(Members(endpoint, tmp_path))
        return made[-1]

    yield make
    for each in made:
        for process in list(each.running):
            each.kill(process)


def test_members_are_killed_and_stand_still(tmp_path, rng, rounds, members):
    with FaultCluster(tmp_path) as cluster, Client(cluster.endpoint) as client:
        specs = [StreamSpec(f"{PREFIX}{number}") for number in range(STREAMS)]
        stream_ids = [each.stream_id for each in client.create_streams(specs)]
        writer = Writer()
        group = members(cluster.endpoint)
        for _ in range(MEMBERS):
            group.add()
        for _ in range(rounds(3)):
            batch = rows_batch([b"x" * 20] * RECORDS_PER_BATCH)
            client.append([AppendItem(each, batch) for each in stream_ids], writer=writer)
            time.sleep(rng.uniform(0, TURN_SECONDS))
            fault = rng.choice(["kill", "kill", "pause", "server"])
            if fault == "kill":
                group.kill(rng.choice(group.running))
                group.add()
            elif fault == "pause":
                victim = group.signal_one(rng, signal.SIGSTOP)
                time.sleep(rng.uniform(0, 2 * SESSION_MS / 1_000))
                victim.send_signal(signal.SIGCONT)
            else:
                cluster.kill()
                cluster.start()
        tails = {each.stream_id: each.next_offset for each in client.stream_bounds(stream_ids)}

        def is_done():
            cursors = client.describe_cursors(GROUP)
            return {each.stream_id: each.next_offset for each in cursors} == tails

        until(is_done)
        assert set(client.describe_group(GROUP).holders) == set(stream_ids)
    turns, offsets = group.journals()
    for stream_id, tail in tails.items():
        assert offsets[stream_id] == set(range(tail))
        assert overlapping(turns[stream_id]) == []


def overlapping(turns):
    """The turns that begin while another member is at work whose session is not over."""
    ordered = sorted(turns)
    found = []
    for at, turn in enumerate(ordered):
        for other in ordered[at + 1 :]:
            if other.begin >= turn.end:
                break
            if other.member != turn.member and turn.end < turn.deadline:
                found.append((turn, other))
    return found


def test_an_overlap_is_found():
    first = Turn(10, 20, "a", 100)
    assert overlapping([first, Turn(20, 30, "b", 100)]) == []
    assert overlapping([Turn(15, 30, "b", 100), first]) == [(first, Turn(15, 30, "b", 100))]
    assert overlapping([first._replace(deadline=15), Turn(17, 30, "b", 100)]) == []
