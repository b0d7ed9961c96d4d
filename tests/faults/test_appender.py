"""Appends with several frames on their way, while servers die, ranges are sealed and networks cut.

Records given to an appender are stored once and in order, however often they were sent.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress

import pytest

from sbp_core.client import AppendItem, Client, RetryPolicy, Transaction, Writer, txn_id_of
from sbp_core.errors import SbpError
from sbp_core.wire.opcodes import Opcode
from tests.support.appends import DIGEST, wait_until_published
from tests.support.client import BlockingDriver
from tests.support.clock import until
from tests.support.cluster import proxied_cluster, rows_batch
from tests.support.faults.cluster import FaultCluster
from tests.support.faults.proxy import Direction, Reset
from tests.support.faults.workload import encode_record, fetch_once, named, new_streams

STREAMS = 3
PATIENT = RetryPolicy(budget_ms=120_000, backoff_ms=5, backoff_ms_max=50)
PRODUCER = "appender"
KINDS = pytest.mark.parametrize("is_staged", [False, True], ids=["writer", "transaction"])


class Appending:
    """Gives groups of batches to an appender, in a thread, until it is stopped."""

    def __init__(self, endpoint, rng, stream_ids, *, is_staged) -> None:
        self.names = {stream_id: [] for stream_id in stream_ids}
        self.group_count = 0
        self.failures = []
        self.transaction = Transaction(txn_id_of(PRODUCER, 0, "x")) if is_staged else None
        self._endpoint = endpoint
        self._rng = rng
        self._is_enough = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._is_enough.set()
        self._thread.join()

    def go_on(self, groups: int) -> None:
        """Return when `groups` more groups were given."""
        wanted = self.group_count + groups
        until(lambda: self.group_count >= wanted or self.failures)
        assert not self.failures, self.failures

    def _run(self) -> None:
        kind = {"transaction": self.transaction} if self.transaction else {"writer": Writer()}
        try:
            with (
                Client(self._endpoint, retry=PATIENT, timeout_ms=5_000) as client,
                client.appender(**kind) as appender,
            ):
                while not self._is_enough.is_set():
                    appender.append([self._batch() for _ in range(self._rng.randint(1, 4))])
                    self.group_count += 1
                appender.finish()
        except BaseException as error:
            self.failures.append(error)
            raise

    def _batch(self) -> AppendItem:
        stream_id = self._rng.choice(list(self.names))
        names = self.names[stream_id]
        fresh = [f"{stream_id}-{len(names) + at:06d}" for at in range(self._rng.randint(1, 3))]
        names += fresh
        values = [encode_record(name, self._rng.randrange(2_000)) for name in fresh]
        return AppendItem(stream_id, rows_batch(values, stream_id))


def check(endpoint, appending) -> None:
    """Commit what is staged, and compare what is there with what was given."""
    assert not appending.failures
    driver = BlockingDriver(endpoint, retry=PATIENT)
    if appending.transaction is not None:
        record_count = sum(map(len, appending.names.values()))
        parts = appending.transaction.parts()
        assert sum(part.record_count for part in parts) == record_count
        driver.do("commit_txn", PRODUCER, 0, parts, record_count=record_count, digest=DIGEST)
        wait_until_published(endpoint)
    for stream_id, names in appending.names.items():
        assert stored(driver, stream_id) == names
    driver.close()


def stored(driver, stream_id):
    (bounds,) = driver.do("stream_bounds", [stream_id])
    found = []
    while len(found) < bounds.next_offset:
        outcome = fetch_once(driver, stream_id, len(found))
        found += [name for _, name in named(outcome.payload, len(found))]
    return found


@contextmanager
def sealing(endpoint, rng, stream_ids):
    """Seal a stream now and then."""
    is_over = threading.Event()

    def seal() -> None:
        with Client(endpoint) as client:
            while not is_over.wait(rng.uniform(0, 0.3)):
                with suppress(SbpError):  # servers may be dead: then it is not sealed now
                    client.seal_streams([rng.choice(stream_ids)])

    thread = threading.Thread(target=seal)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@KINDS
def test_servers_are_killed_and_ranges_sealed(tmp_path, rng, rounds, is_staged):
    with FaultCluster(tmp_path, range_servers=2) as cluster:
        stream_ids = new_streams(cluster.endpoint, STREAMS)
        with (
            sealing(cluster.endpoint, rng, stream_ids),
            Appending(cluster.endpoint, rng, stream_ids, is_staged=is_staged) as appending,
        ):
            for _ in range(rounds(2)):
                appending.go_on(rng.randint(1, 60))
                cluster.end()
                cluster.start()
            appending.go_on(5)
        check(cluster.endpoint, appending)


@KINDS
def test_connections_are_cut(tmp_path, rng, rounds, is_staged):
    with proxied_cluster(tmp_path) as cluster:
        stream_ids = new_streams(cluster.endpoint, STREAMS)
        proxy = cluster.to_range_server
        with Appending(cluster.endpoint, rng, stream_ids, is_staged=is_staged) as appending:
            for cut_count in range(1, rounds(10) + 1):
                appending.go_on(rng.randint(1, 10))
                direction = rng.choice(list(Direction))
                seen = proxy.last_bytes
                until(lambda: (direction, Opcode.APPEND) in seen or appending.failures)  # noqa: B023
                cut = Reset(rng.randrange(seen[direction, Opcode.APPEND]))
                proxy.inject(cut, direction, Opcode.APPEND, count=1)
                until(lambda: proxy.injected["Reset"] >= cut_count or appending.failures)  # noqa: B023
            appending.go_on(5)
        check(cluster.endpoint, appending)
