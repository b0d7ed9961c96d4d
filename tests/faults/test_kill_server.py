"""kill -9 of `sbp serve` under load: what was acknowledged is there, once, at its offset.

Every append is journalled with its outcome. After each kill and restart the streams are read back:
acknowledged batches must be where the acknowledgement said, refused ones nowhere, unknown ones at
most once, and offsets without a gap. SEED and ROUNDS may be set in the environment.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from dataclasses import dataclass, field

from core_cluster import rows_batch, values_of

from sbp_core.client import AppendItem, Client, FetchItem, RetryPolicy, StreamSpec
from sbp_core.cluster import LocalCluster
from sbp_core.errors import Outcome, SbpError

ROUNDS = int(os.environ.get("ROUNDS", "6"))
SEED = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1, 2**32)
WRITERS = 3
STREAMS = 2


@dataclass
class Journal:
    """What one writer did: batches by value prefix, with what it knows of each."""

    acknowledged: dict[bytes, tuple[int, int, int]] = field(default_factory=dict)
    refused: set[bytes] = field(default_factory=set)
    unknown: set[bytes] = field(default_factory=set)
    acknowledged_some: threading.Event = field(default_factory=threading.Event)


def write_until_stopped(endpoint, stream_ids, writer, journal, stop, rng):
    with Client(endpoint, retry=RetryPolicy(budget_ms=0), timeout_ms=10_000) as client:
        number = len(journal.acknowledged) + len(journal.refused) + len(journal.unknown)
        while not stop.is_set():
            number += 1
            stream_id = rng.choice(stream_ids)
            name = b"%d-%d" % (writer, number)
            count = rng.randint(1, 5)
            batch = rows_batch([b"%s/%d" % (name, row) for row in range(count)], stream_id)
            try:
                (outcome,) = client.append([AppendItem(stream_id, batch)])
            except SbpError as error:
                known = journal.refused if error.outcome is Outcome.NOT_APPLIED else journal.unknown
                known.add(name)
            else:
                journal.acknowledged[name] = (stream_id, outcome.base_offset, count)
                journal.acknowledged_some.set()


def read_all(client, stream_id):
    records = []
    while True:
        item = FetchItem(stream_id, len(records), None, 1 << 20)
        (outcome,) = list(client.fetch([item]))
        if outcome.error is not None:
            raise outcome.error
        if not outcome.payload:
            return records
        found = values_of(outcome.payload)
        assert [offset for offset, _ in found] == list(
            range(len(records), len(records) + len(found))
        ), "offsets have a gap or an overlap"
        records += [value for _, value in found]


def check(client, stream_ids, journals):
    stored = {stream_id: read_all(client, stream_id) for stream_id in stream_ids}
    seen = Counter(
        value.split(b"/")[0]
        for records in stored.values()
        for value in records
        if value[-2:] == b"/0"
    )
    for journal in journals:
        for name, (stream_id, base_offset, count) in journal.acknowledged.items():
            expected = [b"%s/%d" % (name, row) for row in range(count)]
            assert stored[stream_id][base_offset : base_offset + count] == expected
            assert seen[name] == 1, (
                f"{name!r} was acknowledged once and is there {seen[name]} times"
            )
        for name in journal.unknown:
            assert seen[name] <= 1
        for name in journal.refused:
            assert seen[name] == 0, f"{name!r} was refused and is there"
    return sum(len(records) for records in stored.values())


def test_acknowledged_batches_survive_kill_9(tmp_path):
    print(f"SEED={SEED} ROUNDS={ROUNDS}")
    rng = random.Random(SEED)
    journals = [Journal() for _ in range(WRITERS)]
    with LocalCluster(tmp_path) as cluster:
        with Client(cluster.endpoint) as client:
            specs = [StreamSpec(f"stream-{number}") for number in range(STREAMS)]
            stream_ids = [stream.stream_id for stream in client.create_streams(specs)]
        for _ in range(ROUNDS):
            stop = threading.Event()
            threads = []
            for writer, journal in enumerate(journals):
                journal.acknowledged_some.clear()
                arguments = (
                    cluster.endpoint,
                    stream_ids,
                    writer,
                    journal,
                    stop,
                    random.Random(rng.random()),
                )
                threads.append(threading.Thread(target=write_until_stopped, args=arguments))
                threads[-1].start()
            for journal in journals:
                assert journal.acknowledged_some.wait(30)
            stop.wait(rng.uniform(0, 0.3))
            cluster.kill()
            stop.set()
            for thread in threads:
                thread.join(30)
                assert not thread.is_alive()
            cluster.restart()
            with Client(cluster.endpoint) as client:
                record_count = check(client, stream_ids, journals)
    kills_that_mattered = sum(len(j.unknown) + len(j.refused) for j in journals)
    assert kills_that_mattered > 0, "no append was interrupted: the test injected nothing"
    assert record_count > 0
