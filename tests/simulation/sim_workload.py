"""Clients of a simulated cluster, each at an address of its own; they journal all answers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

from sim_cluster import DRIVER, address_of_client, pick
from sim_loop import Process
from sim_world import World

from sbp_core.client import (
    AppendItem,
    AsyncClient,
    FetchItem,
    RetryPolicy,
    StreamSpec,
    Transaction,
    Writer,
)
from sbp_core.errors import OffsetOutOfRangeError, Outcome, SbpError, StorageError
from sbp_core.wire.txn_id import txn_id_of
from tests.support.appends import DIGEST, cut
from tests.support.cluster import rows_batch
from tests.support.faults.workload import History, encode_record, named, no_answer, triples

TIMEOUT_MS = 2_000
RETRY_MS = 3_000
AUDIT_RETRY_MS = 60_000
PAUSE_SECONDS = 0.05
"""After an operation that failed."""
THINKING_SECONDS = 0.2
"""From one operation of a client to the next, at most."""
RECORD_BYTES = (20, 20, 200, 3_000)
FETCH_BYTES = 1 << 20
READERS = 2
STAGED_ROWS_MAX = 4

Role = Callable[["SimulatedClient"], Awaitable[None]]


class SimulatedClient:
    """One client: its process, and what it uses for its operations."""

    def __init__(self, workload: Workload, name: str, number: int) -> None:
        self.name = name
        self.rng: Random = workload.world.random(f"client {name}")
        self.process = Process(name, address_of_client(number))
        self.history = workload.history
        self.positions = dict.fromkeys(workload.stream_ids, 0)
        self.writer: Writer | None = None
        self.batch_number = 0
        self.appended: list[str] = workload.appended
        self._workload = workload
        self._client: AsyncClient | None = None

    @property
    def client(self) -> AsyncClient:
        """The client, made in the process that uses it."""
        if self._client is None:
            retry = RetryPolicy(budget_ms=self.rng.choice([0, RETRY_MS]))
            self._client = AsyncClient(DRIVER, timeout_ms=TIMEOUT_MS, retry=retry)
        return self._client

    @property
    def is_stopping(self) -> bool:
        """Whether no new operation is to be begun."""
        return self._workload.is_stopping

    def stream(self) -> int:
        """Choose a stream."""
        return self.rng.choice(self._workload.stream_ids)

    def values(self, names: Sequence[str]) -> list[bytes]:
        """Return the records of these names."""
        return [encode_record(name, self.rng.choice(RECORD_BYTES)) for name in names]

    def names(self, count_max: int) -> list[str]:
        """Return the names of the rows of a new batch."""
        batch = f"{self.name}-{self.rng.getrandbits(48):012x}"
        return [f"{batch}/{row}" for row in range(self.rng.randint(1, count_max))]

    async def run(self, role: Role) -> None:
        """Do what a role does, again and again."""
        while not self.is_stopping:
            await role(self)
            await asyncio.sleep(self.rng.random() * THINKING_SECONDS)
        await self.client.close()

    async def attempt(
        self,
        operation: Callable[[], Awaitable[Any]],
        answer: Callable[[Any], dict[str, Any]],
        action: str,
        **request: Any,
    ) -> Any:
        """Do and journal one operation; return its result, None when it failed."""
        number = self.history.invoke(self.name, action, **request)
        try:
            result = await operation()
        except SbpError as error:
            is_refused = error.outcome is Outcome.NOT_APPLIED
            (self.history.fail if is_refused else self.history.unknown)(number, error)
            if isinstance(error, OffsetOutOfRangeError) and error.bounds:
                self.positions[request["stream"]] = error.bounds[0]
            await asyncio.sleep(PAUSE_SECONDS)
            return None
        self.history.ok(number, **answer(result))
        return result

    async def until_done(self, operation: Callable[[], Awaitable[Any]]) -> Any:
        """Do something again and again until it succeeds."""
        while True:
            try:
                return await operation()
            except SbpError as error:
                await pause_after(error)


async def pause_after(error: SbpError) -> None:
    """Wait before the next attempt, for the servers, or for who repairs a disk; else raise it."""
    if not error.retriable and not isinstance(error, StorageError):
        raise error
    await asyncio.sleep(PAUSE_SECONDS)


async def write(client: SimulatedClient) -> None:
    """Append a batch, once: what became of it may be unknown."""
    stream_id, names = client.stream(), client.names(5)
    item = AppendItem(stream_id, rows_batch(client.values(names), stream_id))
    await client.attempt(
        lambda: client.client.append([item]),
        lambda outcomes: {"base_offset": outcomes[0].base_offset},
        "append",
        stream=stream_id,
        records=names,
    )


async def write_numbered(client: SimulatedClient) -> None:
    """Append one batch exactly once, and then perhaps several at a time."""
    client.writer = writer = client.writer or Writer()
    (item, number, _), *more = [_new_batch(client) for _ in range(client.rng.choice([1, 4]))]
    outcomes = await client.until_done(lambda: client.client.append([item], writer=writer))
    client.history.ok(number, base_offset=outcomes[0].base_offset)
    left = [item for item, _, _ in more]
    while left:
        async with client.client.appender(writer=writer) as appender:
            try:
                await appender.append(left)
                await appender.finish()
            except SbpError as error:
                await pause_after(error)
        left = appender.unacknowledged
    client.appended += [name for _, _, names in more for name in names]


def _new_batch(client: SimulatedClient) -> tuple[AppendItem, int, list[str]]:
    """Make a batch for a stream; return it, the number of its operation, and its records."""
    stream_id, names = client.stream(), client.names(3)
    item = AppendItem(stream_id, rows_batch(client.values(names), stream_id))
    number = client.history.invoke(client.name, "append", stream=stream_id, records=names)
    return item, number, names


async def read(client: SimulatedClient) -> None:
    """Read on in a stream, sometimes once more what was read before."""
    stream_id = client.stream()
    position = client.positions[stream_id]
    if client.rng.random() < 0.2:
        position = client.rng.randint(0, position)
    outcome = await client.attempt(
        lambda: fetch_once(client.client, stream_id, position),
        lambda outcome: {"records": named(outcome.payload, position)},
        "read",
        stream=stream_id,
        offset=position,
    )
    if outcome is not None:
        client.positions[stream_id] = max(client.positions[stream_id], outcome.next_offset)


async def change(client: SimulatedClient) -> None:
    """Seal a stream, or trim it."""
    await asyncio.sleep(client.rng.random())
    stream_id = client.stream()
    if client.rng.random() < 0.7:
        await client.attempt(
            lambda: client.client.seal_streams([stream_id]), no_answer, "seal", stream=stream_id
        )
        await client.attempt(
            lambda: client.client.list_ranges([stream_id]),
            lambda ranges: {"ranges": triples(ranges[stream_id])},
            "ranges",
            stream=stream_id,
        )
    elif stream_id in client._workload.trimmed_ids:
        (bounds,) = await client.until_done(lambda: client.client.stream_bounds([stream_id]))
        offset = client.rng.randint(0, bounds.next_offset // 2)
        await client.attempt(
            lambda: client.client.trim_streams({stream_id: offset}),
            no_answer,
            "trim",
            stream=stream_id,
            offset=offset,
        )


async def commit(client: SimulatedClient) -> None:
    """Stage a batch, sometimes another one that loses, and commit it until the answer is known."""
    rng, producer, number = client.rng, f"{client.name}-producer", client.batch_number
    client.batch_number += 1
    stream_ids = client._workload.committed_ids
    streams = rng.sample(stream_ids, rng.randint(1, len(stream_ids)))
    records = {
        stream: [f"{producer}.{number}/{stream}/{row}" for row in range(rng.randint(1, 6))]
        for stream in streams
    }
    if rng.random() < 0.3:
        await stage(client, producer, number, records)
    staged = None
    while staged is None:
        staged = await stage(client, producer, number, records)
    if rng.random() < 0.2:
        await client.until_done(lambda: client.client.seal_streams([rng.choice(streams)]))
    operation = client.history.invoke(
        producer, "commit", batch=number, parts=[[*each] for each in records.items()]
    )
    parts, count = staged.parts(), sum(map(len, records.values()))
    for _ in range(rng.choice([1, 1, 2])):
        await client.until_done(
            lambda: client.client.commit_txn(
                producer, number, parts, record_count=count, digest=DIGEST
            )
        )
    client.history.ok(operation)


async def stage(
    client: SimulatedClient, producer: str, number: int, records: dict[int, list[str]]
) -> Transaction | None:
    """Stage all records under an id of their own; None if that failed."""
    transaction = Transaction(txn_id_of(producer, number, uuid.uuid4().hex))
    items = [
        AppendItem(stream_id, rows_batch(client.values(part), stream_id))
        for stream_id, names in records.items()
        for part in cut(names, client.rng.randint(1, STAGED_ROWS_MAX))
    ]
    for part in cut(items, client.rng.randint(1, 3)):
        try:
            await client.client.append(part, transaction=transaction)
        except SbpError as error:
            await pause_after(error)
            return None
    return transaction


async def fetch_once(client: AsyncClient, stream_id: int, position: int) -> Any:
    """Return the outcome of one fetch. Raises its error."""
    item = FetchItem(stream_id, position, None, FETCH_BYTES)
    (outcome,) = [each async for each in client.fetch([item], max_wait_ms=20)]
    if outcome.error is not None:
        raise outcome.error
    return outcome


class Workload:
    """Streams, and clients that use them until `finish`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.history = History()
        self.is_stopping = False
        self.stream_ids: list[int] = []
        self.trimmed_ids: list[int] = []
        self.committed_ids: list[int] = []
        self.appended: list[str] = []
        """Records that are acknowledged, without their offsets."""
        self.first_ranges: dict[int, int] = {}
        """The index of the first range of each stream at the audit."""
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def create_streams(self, count: int, replicas: int) -> None:
        """Create the streams that all use."""
        auditor = self._new_auditor()

        async def create() -> None:
            spec = StreamSpec(None, replica_count=replicas)
            created = await auditor.create_streams([spec] * count)
            self.stream_ids = [stream.stream_id for stream in created]
            self.trimmed_ids, self.committed_ids = self.stream_ids[:1], self.stream_ids[1:]
            await auditor.close()

        await self.as_auditor(create)

    def start(self, rng: Random) -> None:
        """Let clients begin, as many of each kind as the seed says."""
        roles: dict[str, Role] = {f"reader-{index}": read for index in range(READERS)}
        kinds = {"numbered": write_numbered, "plain": write, "committer": commit}
        roles |= {"numbered-0": write_numbered, "changer": change}
        for index in range(1, rng.randint(2, 4)):
            kind = pick(rng, {"numbered": 2, "plain": 2, "committer": 3})
            roles[f"{kind}-{index}"] = kinds[kind]
        for number, (name, role) in enumerate(roles.items()):
            client = SimulatedClient(self, name, number)
            task = client.process.context.run(self.world.loop.create_task, client.run(role))
            self._tasks[name] = task

    async def finish(self, seconds: float) -> None:
        """Begin nothing new, and wait until all have ended."""
        self.is_stopping = True
        _, late = await asyncio.wait(self._tasks.values(), timeout=seconds)
        stuck = [name for name, task in self._tasks.items() if task in late]
        assert not stuck, f"still at work {seconds} s after all faults were over: {stuck}"
        for task in self._tasks.values():
            task.result()

    def raise_failure(self) -> None:
        """Raise what a client should not have seen."""
        for task in self._tasks.values():
            if task.done():
                task.result()

    async def audit(self, seconds: float) -> None:
        """Journal all that the streams hold, and their ranges. Raises AssertionError if late."""
        auditor = self._new_auditor()

        async def list_all() -> None:
            while await is_publishing(auditor):  # noqa: ASYNC110 - nobody tells when it ends
                await asyncio.sleep(PAUSE_SECONDS)
            for stream_id in self.stream_ids:
                number = self.history.invoke("auditor", "list", stream=stream_id)
                try:
                    self.history.ok(number, **await _everything(auditor, stream_id))
                except SbpError as error:
                    self.history.fail(number, error)
                number = self.history.invoke("auditor", "ranges", stream=stream_id)
                ranges = await auditor.list_ranges([stream_id])
                self.history.ok(number, ranges=triples(ranges[stream_id]))
                self.first_ranges[stream_id] = ranges[stream_id][0].range_index
            await auditor.close()

        try:
            async with asyncio.timeout(seconds):
                await self.as_auditor(list_all)
        except TimeoutError as error:
            late = f"not all can be read {seconds} s after all clients have finished"
            raise AssertionError(late) from error

    def _new_auditor(self) -> AsyncClient:
        return AsyncClient(DRIVER, retry=RetryPolicy(budget_ms=AUDIT_RETRY_MS))

    async def as_auditor(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something in a process of its own."""

        async def do() -> None:
            await work()

        process = Process("auditor", address_of_client(99))
        await process.context.run(self.world.loop.create_task, do())


async def is_publishing(client: AsyncClient) -> bool:
    """Whether something that was committed is not visible yet."""
    try:
        return any(each.state == "publishing" for each in await client.describe_txns())
    except SbpError as error:
        await pause_after(error)
        return True


async def _everything(client: AsyncClient, stream_id: int) -> dict[str, Any]:
    """Return the content of a stream, as the answer of a "list"."""
    (bounds,) = await client.stream_bounds([stream_id])
    position = bounds.start_offset
    records: list[list[Any]] = []
    while position < bounds.next_offset:
        outcome = await fetch_once(client, stream_id, position)
        records += named(outcome.payload, position)
        assert outcome.next_offset > position, f"nothing at {position} of {bounds}"
        position = outcome.next_offset
    return {"start": bounds.start_offset, "next": bounds.next_offset, "records": records}
