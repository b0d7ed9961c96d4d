"""`sbp lake` killed at any moment, beside a log that is trimmed behind it: each offset once.

Each round kills the process while it lands, compacts or removes snapshots; sometimes two run. Then
the log is trimmed up to where the table has the records, and both are read as one.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial

import pytest

import sbp_core
from sbp_core.client import FetchItem, StreamSpec, StreamUpdate
from sbp_core.lake.history_client import HistoryClient
from sbp_core.records import decode_batch, split_envelopes
from tests.support.lake import catalog_in

FETCH_BYTES = 1 << 16


@pytest.mark.faults
@pytest.mark.timeout(1200)
def test_each_record_is_read_once_whatever_is_killed(cluster, client, tmp_path, rng, rounds):
    warehouse = tmp_path / "lake"
    name = "landed-under-kills"
    (info,) = client.create_streams([StreamSpec(name)])
    client.update_streams([StreamUpdate(name, properties={"lake.table": "lake.kills"})])
    lake = [sys.executable, "-m", "sbp_core.cli.main", "lake"]
    options = ["--endpoint", cluster.endpoint, "--warehouse", str(warehouse)]
    running = [*lake, *options, "--interval", "1s", "--keep", "2s"]
    sent = trimmed = 0
    with sbp_core.connect(cluster.endpoint) as sbp, sbp.producer(name) as producer:
        for number in range(rounds(3)):
            processes = [start(running) for _ in range(1 + (rng.random() < 0.2))]
            for _ in range(rng.randrange(5, 20)):
                count = rng.randrange(1, 200)
                producer.send_many([{"value": value(sent + each)} for each in range(count)])
                producer.flush()
                sent += count
                with suppress(subprocess.TimeoutExpired):
                    processes[0].wait(rng.uniform(0, 0.4))
            for each in processes:
                each.send_signal(signal.SIGKILL if rng.random() < 0.9 else signal.SIGTERM)
                each.wait()
            landed = landed_offset([*lake, "status", "--json", *options], name)
            trimmed = rng.randint(trimmed, landed or 0)
            client.trim_streams({info.stream_id: trimmed})
            found = read_all(cluster.endpoint, warehouse, info.stream_id)
            assert found == [value(each) for each in range(sent)], f"round {number}"
            assert landed or number < 3
            print(f"round {number}: sent={sent} landed={landed} trimmed={trimmed}", flush=True)


def value(number):
    return b"%d" % number + b"." * (number % 50)


def start(command):
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline(), "it did not start"
    return process


def landed_offset(command, name):
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (state,) = [each for each in map(json.loads, lines.splitlines()) if each["stream"] == name]
    assert state["error"] is None
    assert state["gaps"] == []
    return state["landed_offset"]


def read_all(endpoint, warehouse, stream_id):
    """Return the values of the table and the log in the order of their offsets."""
    values = []
    with HistoryClient(endpoint, open_catalog=partial(catalog_in, warehouse)) as client:
        (bounds,) = client.stream_bounds([stream_id])
        position = bounds.start_offset
        assert position == 0
        while position < bounds.next_offset:
            item = FetchItem(stream_id, position, bounds.next_offset, FETCH_BYTES)
            (outcome,) = client.fetch([item])
            assert outcome.error is None
            for envelope in split_envelopes(outcome.payload):
                skipped = position - envelope.base_offset
                assert 0 <= skipped < envelope.record_count
                values += decode_batch(envelope)["value"].to_pylist()[skipped:]
                position = envelope.end_offset
    return values
