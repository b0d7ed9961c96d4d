"""Record batches that are numbered or staged by their writers, over the wire of a small cluster."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sbp_core.backup.format import Manifest
from sbp_core.backup.restoring import Restored, restore_backup
from sbp_core.backup.storage import BackupStorage
from sbp_core.client import (
    AppendItem,
    AsyncClient,
    Client,
    Connecting,
    FetchItem,
    RetryPolicy,
    StreamSpec,
    Transaction,
)
from sbp_core.errors import SbpError, StatusCode, TxnEndedError
from sbp_core.session.negotiation import RequestedFeatures
from sbp_core.wire.headers import (
    AppendInfo,
    AppendRequest,
    DescribeTxnsRequest,
    EndTxnInfo,
    EndTxnRequest,
    FetchInfo,
    FetchRequest,
    FetchResponse,
    RangeId,
    SealRangesRequest,
    StreamRange,
    decode_header,
    decode_system_error,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import check_status, maybe_error
from sbp_core.wire.txn_id import txn_id_of
from tests.support.client import PROGRESS_SECONDS, BlockingDriver, ClientThreads
from tests.support.clock import until
from tests.support.cluster import core_cluster, driver_at, rows_batch, values_of
from tests.support.faults.workload import FAILURE_PAUSE_SECONDS, History, encode_record
from tests.support.wire import RawClient

WAIT_SECONDS = 90


def numbered(stream_id, *names, writer="w", first=0, sequences=None, range_index=-1):
    """The header and the payload of an APPEND of numbered batches of one record each."""
    sequences = sequences or range(first, first + len(names))
    batches = [rows_batch([name.encode()], stream_id) for name in names]
    infos = tuple(
        AppendInfo(
            StreamRange(stream_id=stream_id, range_index=range_index),
            at,
            len(batch),
            stream_id,
            writer,
            sequence,
        )
        for at, (batch, sequence) in enumerate(zip(batches, sequences, strict=True))
    )
    return AppendRequest(0, infos), batches


async def send(client, stream_id, *names, **options):
    """The base offsets of batches that are appended, or why they are not."""
    request, batches = numbered(stream_id, *names, **options)
    (answer,) = await client.ask(Opcode.APPEND, request, batches)
    results = sorted(answer.append_responses, key=lambda result: result.request_index)
    return [maybe_error(each.status) or each.base_offset for each in results]


@asynccontextmanager
async def one_stream(folder, **options):
    async with core_cluster(folder, **options) as cluster:
        (stream,) = await cluster.client.create_streams([StreamSpec("s")])
        async with RawClient.at(cluster.server.endpoint) as client:
            yield cluster, stream.stream_id, client


async def values(cluster, stream_id):
    return [value.decode() for _, value in await cluster.read(stream_id)]


async def eventually(client, stream_id, *names, **options):
    """Append until the server knows the writers of earlier appends; return the outcomes."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            found = await send(client, stream_id, *names, **options)
            codes = {getattr(each, "code", 0) for each in found}
            if StatusCode.WRITERS_NOT_THERE not in codes:
                return found
            await asyncio.sleep(0.01)


def staged(stream_id, txn_id, *names, first=0, sequences=None, range_index=0, writer=None):
    """The header and the payload of an APPEND that stages batches, a record for each letter."""
    sequences = sequences or range(first, first + len(names))
    batches = [rows_batch([letter.encode() for letter in name], stream_id) for name in names]
    infos = tuple(
        AppendInfo(
            StreamRange(stream_id=stream_id, range_index=range_index),
            at,
            len(batch),
            stream_id,
            writer,
            sequence,
            txn_id,
        )
        for at, (batch, sequence) in enumerate(zip(batches, sequences, strict=True))
    )
    return AppendRequest(0, infos), batches


async def stage(client, stream_id, txn_id, *names, **options):
    """The base offsets of batches that are staged, or why they are not."""
    request, batches = staged(stream_id, txn_id, *names, **options)
    (answer,) = await client.ask(Opcode.APPEND, request, batches)
    results = sorted(answer.append_responses, key=lambda result: result.request_index)
    return [maybe_error(each.status) or each.base_offset for each in results]


async def end_all(client, *infos):
    """(base offset, record count) of each END_TXN item, or why it failed."""
    (answer,) = await client.ask(Opcode.END_TXN, EndTxnRequest(0, infos))
    results = sorted(answer.end_responses, key=lambda result: result.request_index)
    return [maybe_error(each.status) or (each.base_offset, each.record_count) for each in results]


async def end(client, stream_id, *txn_ids, commit=True, range_index=0, count=-1):
    """Send an END_TXN of one item; return its outcome."""
    info = EndTxnInfo(stream_id, 0, txn_ids, commit, range_index, count)
    (outcome,) = await end_all(client, info)
    return outcome


async def read_staged(client, stream_id, txn_id, *, first=0, range_index=0, max_bytes=0):
    """The values that are staged from a batch on, and which batch is next; or why not."""
    info = FetchInfo(
        StreamRange(stream_id=stream_id, range_index=range_index),
        fetch_offset=first,
        batch_max_bytes=max_bytes,
        txn_id=txn_id,
    )
    (frame,) = await client.call(Opcode.FETCH, FetchRequest(30_000, 1, (info,)))
    if frame.is_system_error:
        check_status(decode_system_error(frame.header).status)
    (result,) = decode_header(FetchResponse, frame.header).fetch_responses
    error = maybe_error(result.status)
    if error is not None:
        return error
    return letters(value for _, value in values_of(frame.payload)), result.next_offset


async def open_txns(client, producer=None):
    """Return the staged transactions of a range server, as (id, range index, records)."""
    answers = await client.ask(Opcode.DESCRIBE_TXNS, DescribeTxnsRequest(producer=producer))
    found = [each for answer in answers for each in answer.txns]
    assert {each.state for each in found} <= {"staged"}
    return [
        (part.txn_id, part.range_index, part.record_count) for each in found for part in each.parts
    ]


async def seal(client, stream_id, range_index=-1):
    """Seal a range at its server, as a placement driver does; its end."""
    request = SealRangesRequest(ranges=(RangeId(stream_id, range_index),))
    (answer,) = await client.ask(Opcode.SEAL_RANGE, request)
    (result,) = answer.seal_responses
    check_status(result.status)
    return result.stream_range.end_offset


@asynccontextmanager
async def one_driven_stream(folder, **options):
    async with core_cluster(folder, **options) as cluster:
        (stream,) = await cluster.client.create_streams([StreamSpec("s")])
        async with driver_at(cluster.server.endpoint, folder / "rs") as client:
            yield cluster, stream.stream_id, client


async def letters_of(cluster, stream_id):
    """All that a reader sees of a stream."""
    return letters(value for _, value in await cluster.read(stream_id))


def letters(values):
    return b"".join(values).decode()


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
        self, index: int, driver: BlockingDriver, rng: random.Random, producer: str, number: int
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
        self,
        driver: BlockingDriver,
        rng: random.Random,
        producer: str,
        number: int,
        records: Records,
    ) -> Transaction | None:
        while not self.stopping.is_set():
            staged = self._maybe_stage(driver, rng, producer, number, records)
            if staged:
                return staged
            self.stopping.wait(FAILURE_PAUSE_SECONDS)
        return None

    def _maybe_stage(
        self,
        driver: BlockingDriver,
        rng: random.Random,
        producer: str,
        number: int,
        records: Records,
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
        driver: BlockingDriver,
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

    def _maybe(self, driver: BlockingDriver, method: str, *arguments: Any, **options: Any) -> Any:
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


@asynccontextmanager
async def client_of(cluster, **options) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(cluster.endpoints.pd, **options) as client:
        yield client


def restorer(cluster, manifest: Manifest):
    features = RequestedFeatures(restoring=manifest.backup_id)
    return client_of(cluster, connecting=Connecting(features=features))


async def restore(cluster, place: BackupStorage, manifest: Manifest) -> Restored:
    async with restorer(cluster, manifest) as client:
        return await restore_backup(client, place, manifest)


async def read_all(client: AsyncClient, stream_id: int) -> dict[int, bytes]:
    """The values of a stream by offset, from its first record to its end."""
    (bounds,) = await client.stream_bounds([stream_id])
    found: dict[int, bytes] = {}
    position = bounds.start_offset
    while position < bounds.next_offset:
        item = FetchItem(stream_id, position, bounds.next_offset, 1 << 20)
        (outcome,) = [each async for each in client.fetch([item])]
        if outcome.error is not None:
            raise outcome.error
        found |= {at: value for at, value in values_of(outcome.payload) if at >= position}
        position = outcome.next_offset
    assert list(found) == list(range(bounds.start_offset, bounds.next_offset))
    return found


async def append(client: AsyncClient, stream_id: int, *values: bytes, writer=None) -> int:
    item = AppendItem(stream_id, rows_batch(values, stream_id))
    (outcome,) = await client.append([item], writer=writer)
    return outcome.base_offset


async def create(client: AsyncClient, *names: str, replicas: int = 1) -> list[int]:
    created = await client.create_streams([StreamSpec(each, replicas) for each in names])
    return [each.stream_id for each in created]


async def commit(client: AsyncClient, number: int, stream_ids, producer: str = "p") -> bool:
    """Commit a batch with its number as the only value in each stream; whether it is a replay."""
    transaction = Transaction(txn_id_of(producer, number, uuid.uuid4().hex))
    value = str(number).encode()
    items = [AppendItem(each, rows_batch([value], each)) for each in stream_ids]
    await client.append(items, transaction=transaction)
    decision = await client.commit_txn(
        producer,
        number,
        transaction.parts(),
        record_count=len(stream_ids),
        digest=b"%08d" % number,
    )
    assert decision.digest == b"%08d" % number
    return decision.is_replay


def run(main) -> None:
    asyncio.run(asyncio.wait_for(main, 90))
