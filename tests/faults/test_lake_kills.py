"""`sbp lake` killed at any moment, with the servers and the storage around it: each record once.

Each round kills the process while it lands, compacts or removes snapshots; sometimes two run. In
some rounds the range server, the placement driver or both are killed too, and an object store fails
requests, loses answers, or is slow. Then the log is trimmed up to where the table has the records,
and both are read as one.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
from collections import Counter
from contextlib import ExitStack, suppress
from functools import partial

import pytest

import sbp_core
from sbp_core.client import Client, StreamSpec, StreamUpdate
from sbp_core.lake.history_client import HistoryClient
from tests.support.clock import until
from tests.support.lake import catalog_in, catalog_on_s3, environment_of, read_all
from tests.support.machines import Machines, start_all
from tests.support.s3 import S3Fault, local_s3, well
from tests.support.warm import sbp as run_sbp

DAY_US = 86_400_000_000
NAME = "landed-under-kills"
SHARES = (0.0, 0.0, 0.05, 0.2, 1.0)
"""Shares of the requests to an object store that fail; one is drawn again and again."""
FAULTS = (*[each for each in S3Fault for _ in range(4) if each is not S3Fault.SLOW], S3Fault.SLOW)


@pytest.fixture(params=["folder", "object store"])
def lake(request, tmp_path, monkeypatch):
    """A lake whose tables are in a folder, or on a local S3."""
    if request.param == "folder":
        yield Lake(tmp_path, partial(catalog_in, tmp_path), ["--warehouse", str(tmp_path)], None)
        return
    with local_s3() as server:
        open_catalog = partial(catalog_on_s3, tmp_path, server)
        for name, value in environment_of(open_catalog()).items():
            monkeypatch.setenv(name, value)
        yield Lake(tmp_path, open_catalog, ["--catalog", "lake"], server)


class Lake:
    """The processes of `sbp lake`, and what they need."""

    def __init__(self, folder, open_catalog, options, store):
        self.open_catalog = open_catalog
        self.store = store
        self.options = options
        self.processes = []
        self.faults = Counter()
        self._landed = 0
        self._log_path = folder / "lake.log"

    def start(self, endpoint, count):
        words = ["lake", "--endpoint", endpoint, *self.options, "--interval", "1s", "--keep", "2s"]
        with self._log_path.open("ab") as log:
            for _ in range(count):
                process = run_sbp(*words, stdout=subprocess.PIPE, stderr=log)
                assert process.stdout.readline(), self.log
                self.processes.append(process)

    def live(self, seconds):
        with suppress(subprocess.TimeoutExpired):
            self.processes[0].wait(seconds)
            raise AssertionError(f"it ended by itself\n{self.log}")

    def end(self, rng):
        for each in self.processes:
            each.send_signal(signal.SIGKILL if rng.random() < 0.9 else signal.SIGTERM)
            each.wait()
        self.processes = []

    def disturb(self, rng):
        if self.store is None:
            return
        share, rolls = rng.choice(SHARES), random.Random(rng.random())

        def fault_of(_):
            found = rolls.choice(FAULTS) if rolls.random() < share else None
            self.faults[found.value if found else "well"] += 1
            return found

        self.store.fault_of = fault_of

    def heal(self):
        if self.store is not None:
            self.store.fault_of = well

    def landed(self, endpoint):
        words = ["lake", "status", "--json", "--endpoint", endpoint, *self.options]
        with run_sbp(*words, stdout=subprocess.PIPE, text=True) as process:
            (state,) = map(json.loads, process.communicate()[0].splitlines())
        assert state["gaps"] == []
        before, self._landed = self._landed, state["landed_offset"] or 0
        assert self._landed >= before, state
        return self._landed

    @property
    def log(self):
        return self._log_path.read_text(encoding="utf-8", errors="replace")


@pytest.mark.faults
@pytest.mark.timeout(1200)
def test_each_record_is_read_once_whatever_is_killed(lake, tmp_path, rng, rounds):
    kills = Counter()
    sent = landed = trimmed = 0
    with ExitStack() as stack:
        machines = stack.enter_context(Machines(tmp_path, 1))
        stack.callback(lambda: lake.end(rng))
        client = stack.enter_context(Client(machines.endpoint))
        (info,) = client.create_streams([StreamSpec(NAME)])
        client.update_streams([StreamUpdate(NAME, properties={"lake.table": "lake.kills"})])
        producer = stack.enter_context(sbp_core.connect(machines.endpoint).producer(NAME))
        for number in range(rounds(3)):
            lake.start(machines.endpoint, 1 + (rng.random() < 0.2))
            sends = rng.randrange(5, 20)
            killed_at = rng.randrange(2 * sends)
            for at in range(sends):
                lake.disturb(rng)
                sent = send(producer, sent, rng)
                lake.live(rng.uniform(0, 0.4))
                if at == killed_at:
                    kills.update(kill_servers(machines, lake, rng))
            if rng.random() < 0.5:
                lake.heal()
                until(lambda before=landed: lake.landed(machines.endpoint) > before)
                lake.live(rng.uniform(0, 1))
            lake.end(rng)
            kills["lake"] += 1
            lake.heal()
            landed = lake.landed(machines.endpoint)
            trimmed = rng.randint(trimmed, landed)
            client.trim_streams({info.stream_id: trimmed})
            check(lake, machines.endpoint, info.stream_id, landed, sent)
            print(f"round {number}: sent={sent} landed={landed} trimmed={trimmed}", flush=True)
        lake.start(machines.endpoint, 1)
        until(lambda: lake.landed(machines.endpoint) == sent)
        lake.end(rng)
        check(lake, machines.endpoint, info.stream_id, sent, sent)
    print(f"{sent} records once; kills {dict(kills)}; requests {dict(lake.faults)}")
    assert "Traceback" not in lake.log
    assert trimmed


def value(number):
    return b"%d" % number + b"." * (number % 50)


def send(producer, sent, rng):
    """Send some records, of three days in any order; return how many there are."""
    count = rng.randrange(1, 200)
    for number in range(sent, sent + count):
        producer.send(value(number), timestamp_us=rng.randrange(3 * DAY_US))
    producer.flush()
    return sent + count


def kill_servers(machines, lake, rng):
    """Kill the range server, the placement driver or both; start them while the lake goes on."""
    victims = rng.sample([machines.driver, *machines.servers], rng.randint(1, 2))
    for each in victims:
        each.kill()
    lake.live(rng.uniform(0, 2))
    start_all(victims)
    return [each.name for each in victims]


def check(lake, endpoint, stream_id, landed, sent):
    """Compare the table, and table and log as one, with what was sent."""
    values = [value(each) for each in range(sent)]
    if landed:
        rows = lake.open_catalog().load_table("lake.kills").scan().to_arrow().sort_by("_offset")
        assert rows["_offset"].to_pylist() == [*range(landed)]
        assert rows["value"].to_pylist() == values[:landed]
    with HistoryClient(endpoint, open_catalog=lake.open_catalog) as client:
        assert read_all(client, stream_id) == values
