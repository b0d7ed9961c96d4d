"""Producers that stage batches and commit them, each on a thread of its own, and journal that."""

from __future__ import annotations

import contextlib
import random
import threading
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from client_drivers import BlockingDriver, Driver
from client_threads import PROGRESS_SECONDS, ClientThreads
from core_cluster import rows_batch
from history import History
from waiting import until
from workload import FAILURE_PAUSE_SECONDS, encode_record

from sbp_core.client import AppendItem, Client, RetryPolicy, Transaction
from sbp_core.errors import SbpError, TxnEndedError
from sbp_core.wire.txn_id import txn_id_of

DIGEST = b"8 bytes!"
LOSER_SHARE = 0.3
REPLAY_SHARE = 0.2
SEAL_SHARE = 0.1

Records = Mapping[int, Sequence[str]]
"""Names, by stream."""


class Committers(ClientThreads):
    """Producers of numbered batches, each for some of the streams. Starts and stops once.

    Some batches are staged a second time and more, as by tasks that are tried again, by others that
    lose, or when a batch is replayed; some streams are sealed between staging and commit. Whatever
    fails is tried again, so a batch is in doubt only if the end comes before its answer.
    """

    def __init__(
        self,
        endpoint: str,
        history: History,
        rng: random.Random,
        stream_ids: Sequence[int],
        *,
        producers: int = 2,
        timeout_ms: int = 5_000,
    ) -> None:
        super().__init__(producers)
        self.loser_count = self.replay_count = self.seal_count = 0
        self._endpoint = endpoint
        self._history = history
        self._stream_ids = stream_ids
        self._timeout_ms = timeout_ms
        self.threads = [
            threading.Thread(target=self._run, args=(index, random.Random(rng.random())))
            for index in range(producers)
        ]

    def _run(self, index: int, rng: random.Random) -> None:
        driver = BlockingDriver(
            self._endpoint, timeout_ms=self._timeout_ms, retry=RetryPolicy(budget_ms=0)
        )
        producer = f"producer-{index}-{rng.getrandbits(48):012x}"
        number = 0
        try:
            while not self.stopping.is_set():
                self._batch(index, driver, rng, producer, number)
                number += 1
        except BaseException as error:
            self.failures.append(error)
            raise
        finally:
            driver.close()

    def _batch(
        self, index: int, driver: Driver, rng: random.Random, producer: str, number: int
    ) -> None:
        """Stage a batch, sometimes others beside it, and commit it until the answer is known."""
        streams = rng.sample(list(self._stream_ids), rng.randint(1, len(self._stream_ids)))
        records = {
            stream: [f"{producer}.{number}/{stream}/{row}" for row in range(rng.randint(1, 6))]
            for stream in streams
        }
        if rng.random() < LOSER_SHARE and self._maybe_stage(driver, rng, producer, number, records):
            self.loser_count += 1
        staged = self._stage(driver, rng, producer, number, records)
        if staged is None:
            return
        if rng.random() < SEAL_SHARE and self._maybe(driver, "seal_streams", [rng.choice(streams)]):
            self.seal_count += 1
        operation = self._history.invoke(
            producer, "commit", batch=number, parts=[[*each] for each in records.items()]
        )
        if self._commit(driver, producer, number, staged, records) is None:
            return
        self._history.ok(operation)
        self.acknowledged[index] += 1
        if rng.random() < REPLAY_SHARE:
            with contextlib.suppress(TxnEndedError):  # late records are dropped
                again = self._maybe_stage(driver, rng, producer, number, records)
                if again and self._commit(driver, producer, number, again, records) is not None:
                    self.replay_count += 1

    def _stage(
        self, driver: Driver, rng: random.Random, producer: str, number: int, records: Records
    ) -> Transaction | None:
        while not self.stopping.is_set():
            staged = self._maybe_stage(driver, rng, producer, number, records)
            if staged:
                return staged
            self.stopping.wait(FAILURE_PAUSE_SECONDS)
        return None

    def _maybe_stage(
        self, driver: Driver, rng: random.Random, producer: str, number: int, records: Records
    ) -> Transaction | None:
        """Stage all records under an id of their own, in some calls; None if that failed."""
        transaction = Transaction(txn_id_of(producer, number, uuid.uuid4().hex))
        items = [
            AppendItem(
                stream_id,
                rows_batch([encode_record(name, rng.randrange(2_000)) for name in part], stream_id),
            )
            for stream_id, names in records.items()
            for part in cut(names, rng.randint(1, 4))
        ]
        for part in cut(items, rng.randint(1, 3)):
            if not self._maybe(driver, "append", part, transaction=transaction):
                return None
        return transaction

    def _commit(
        self,
        driver: Driver,
        producer: str,
        number: int,
        staged: Transaction,
        records: Records,
    ) -> Any:
        """Return the decision; None if the end came first."""
        while not self.stopping.is_set():
            decision = self._maybe(
                driver,
                "commit_txn",
                *(producer, number, staged.parts()),
                record_count=sum(map(len, records.values())),
                digest=DIGEST,
            )
            if decision:
                return decision
            self.stopping.wait(FAILURE_PAUSE_SECONDS)
        return None

    def _maybe(self, driver: Driver, method: str, *arguments: Any, **options: Any) -> Any:
        """Return what a call returns, or None if it failed in a way that a retry may mend."""
        try:
            return driver.do(method, *arguments, **options)
        except SbpError as error:
            if not error.retriable:
                raise
            return None


def cut(whole: Sequence[Any], pieces: int) -> list[Sequence[Any]]:
    """Cut into at most `pieces` pieces of about the same length; none is empty."""
    size = -(-len(whole) // pieces)
    return [whole[start : start + size] for start in range(0, len(whole), size)]


def wait_until_published(endpoint: str) -> None:
    """Wait until nothing that was committed is left to be published."""
    with Client(endpoint) as client:
        until(
            lambda: not [each for each in client.describe_txns() if each.state == "publishing"],
            PROGRESS_SECONDS,
        )
