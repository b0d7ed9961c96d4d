"""Transactions from end to end: staged, decided and published once, also if a server is down."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from sbp_core.client import (
    AppendItem,
    AsyncClient,
    FetchItem,
    RetryPolicy,
    StreamSpec,
    Transaction,
    TxnPart,
)
from sbp_core.errors import (
    InvalidRequestError,
    NotFoundError,
    StoreUnavailableError,
    TxnAbortedError,
)
from sbp_core.log.disk import OsDisk
from sbp_core.log.recovery.inspection import inspect_log, repair_log
from sbp_core.pd import PlacementDriver
from sbp_core.pd.metadata.txn_tables import TransactionTables
from sbp_core.rangeserver.server import RangeServer
from sbp_core.settings.server_settings import PlacementDriverSettings, RangeServerSettings
from tests.support.cluster import rows_batch, values_of

DIGEST = b"12345678"


class Servers:
    """A placement driver and two range servers, each of which can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pd: PlacementDriver | None = None
        self._servers: dict[str, RangeServer] = {}
        self._port = 0

    async def start_pd(self) -> str:
        settings = PlacementDriverSettings(data_dir=self._folder / "pd", port=self._port)
        self._pd = PlacementDriver(settings)
        endpoint = await self._pd.start()
        self._port = self._pd.port
        return endpoint

    async def stop_pd(self) -> None:
        if self._pd is not None:
            await self._pd.stop()
            self._pd = None

    async def start_server(self, name: str, port: int = 0) -> None:
        settings = RangeServerSettings(
            data_dir=self._folder / name, placement_driver=f"127.0.0.1:{self._port}", port=port
        )
        self._servers[name] = RangeServer(settings)
        await self._servers[name].start()

    async def stop_server(self, name: str) -> None:
        await self._servers.pop(name).stop()

    async def damage_staged(self, name: str, letters: str) -> None:
        """Damage what a server has staged, a batch with these letters, while it is down."""
        await self.stop_server(name)
        directory = self._folder / name / "log"
        hits = 0
        for path in directory.glob("*.log"):
            data = path.read_bytes()
            hits += data.count(letters.encode())
            path.write_bytes(data.replace(letters.encode(), b"?" * len(letters)))
        assert hits == 1
        await self.start_server(name)

    async def repair_log(self, name: str) -> None:
        """Let a server go on without what is damaged in its log."""
        await self.stop_server(name)
        directory = self._folder / name / "log"
        found = inspect_log(OsDisk(), directory)
        assert found.faults
        repair_log(OsDisk(), directory, found, 0)
        await self.start_server(name)

    def name_at(self, endpoint: str) -> str:
        (name,) = (each for each, server in self._servers.items() if server.endpoint == endpoint)
        return name

    async def stop(self) -> None:
        for name in list(self._servers):
            await self.stop_server(name)
        await self.stop_pd()


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[tuple[Servers, AsyncClient]]:
    servers = Servers(folder)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(servers.stop)
        endpoint = await servers.start_pd()
        await servers.start_server("a")
        await servers.start_server("b")
        yield servers, await stack.enter_async_context(AsyncClient(endpoint))


def run(folder: Path, body: Callable[[Servers, AsyncClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(100), cluster(folder) as parts:
            await body(*parts)

    asyncio.run(main())


async def create(client: AsyncClient, *names: str) -> list[int]:
    infos = await client.create_streams([StreamSpec(name) for name in names])
    return [info.stream_id for info in infos]


async def stage(client: AsyncClient, transaction: Transaction, stream_id: int, text: str) -> None:
    """Stage one batch with a record for each letter."""
    batch = rows_batch([letter.encode() for letter in text])
    (outcome,) = await client.append([AppendItem(stream_id, batch)], transaction=transaction)
    assert outcome.base_offset == -1


async def letters(client: AsyncClient, stream_id: int) -> str:
    """The records that readers of a stream see."""
    found: dict[int, bytes | None] = {}
    offset = 0
    while True:
        items = [FetchItem(stream_id, offset, None, 1 << 20)]
        (outcome,) = [each async for each in client.fetch(items)]
        if outcome.error is not None:
            raise outcome.error
        found |= dict(values_of(outcome.payload))
        if outcome.next_offset == offset:
            assert list(found) == list(range(offset))
            return b"".join(value or b"" for value in found.values()).decode()
        offset = outcome.next_offset


async def commit(client: AsyncClient, number: int, parts: Sequence[TxnPart], timeout_ms=30_000):
    return await client.commit_txn(
        "p",
        number,
        parts,
        record_count=sum(part.record_count for part in parts),
        digest=DIGEST,
        timeout_ms=timeout_ms,
    )


async def eventually(is_so: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(60):
        while True:
            if await is_so():
                return
            await asyncio.sleep(0.02)


async def published(client: AsyncClient) -> None:
    """Wait until nothing is left to be published."""

    async def is_so() -> bool:
        return all(each.state in {"published", "aborted"} for each in await decided(client))

    await eventually(is_so)


async def decided(client: AsyncClient):
    return [each for each in await client.describe_txns() if each.server is None]


async def nothing_is_staged(client: AsyncClient) -> None:
    """Wait until no server has anything staged."""

    async def is_so() -> bool:
        return all(each.state != "staged" for each in await client.describe_txns())

    await eventually(is_so)


@pytest.mark.parametrize("is_retried", [True, False])
def test_a_decision_that_an_error_hid_is_published(tmp_path, monkeypatch, is_retried):
    """The connection to the database is lost when the decision is stored, and not answered."""
    decide = TransactionTables.commit

    def stored_and_not_answered(*args, **kwargs):
        decide(*args, **kwargs)
        monkeypatch.undo()
        raise StoreUnavailableError.of("the connection is lost")

    async def body(servers: Servers, client: AsyncClient) -> None:
        (one,) = await create(client, "one")
        transaction, later = Transaction("p.0.x"), Transaction("q.0.x")
        await stage(client, transaction, one, "ab")
        await stage(client, later, one, "c")
        monkeypatch.setattr(TransactionTables, "commit", stored_and_not_answered)
        if is_retried:
            decision = await commit(client, 0, transaction.parts())
            assert (decision.is_replay, decision.is_published) == (True, True)
            await client.commit_txn("q", 0, later.parts(), record_count=1, digest=DIGEST)
            assert await letters(client, one) == "abc"
        else:
            once = AsyncClient(client.endpoint, retry=RetryPolicy(budget_ms=0))
            async with once:
                with pytest.raises(StoreUnavailableError):
                    await commit(once, 0, transaction.parts())
            await published(client)
            assert await letters(client, one) == "ab"

    run(tmp_path, body)


def test_batches_staged_before_a_seal_are_published_after_it(tmp_path):
    """The stream goes on at the other server, and is sealed there once more."""

    async def body(servers: Servers, client: AsyncClient) -> None:
        one, _, _ = await create(client, "one", "two", "three")
        await client.delete_streams(["two"])  # so that its server has fewer ranges
        before, across = Transaction("p.0.before"), Transaction("p.0.across")
        await client.append([AppendItem(one, rows_batch([b"-"]))])
        await stage(client, before, one, "ab")
        await stage(client, before, one, "c")
        await stage(client, across, one, "d")
        first = (await client.list_ranges([one]))[one][-1]
        await client.seal_streams([one])
        await stage(client, across, one, "e")
        await stage(client, before, one, "x")
        assert [part.range_index for part in before.parts()] == [0, 1]
        await client.seal_streams([one])
        parts = [*before.parts(), *across.parts()]
        decision = await commit(client, 0, parts)
        assert decision.is_published
        assert await letters(client, one) == "-abcxde"
        assert (await commit(client, 0, parts)).is_published
        ranges = (await client.list_ranges([one]))[one]
        assert {each.servers for each in ranges} > {first.servers}, "both servers have some"
        await nothing_is_staged(client)
        assert await letters(client, one) == "-abcxde"

    run(tmp_path, body)


def test_a_commit_waits_for_a_server_that_is_down(tmp_path):
    async def body(servers: Servers, client: AsyncClient) -> None:
        one, two = await create(client, "one", "two")
        hosts = [(await client.list_ranges([each]))[each][-1].servers[0] for each in (one, two)]
        assert hosts[0] != hosts[1]
        transaction = Transaction("p.0.x")
        await stage(client, transaction, one, "a")
        await stage(client, transaction, two, "b")
        away = servers.name_at(hosts[0])
        await servers.stop_server(away)
        decision = await commit(client, 0, transaction.parts(), timeout_ms=1_000)
        assert (decision.is_replay, decision.is_published) == (False, False)
        assert await letters(client, two) == "b", "the others go on"
        await servers.start_server(away)
        replay = await commit(client, 0, ())
        assert (replay.is_replay, replay.is_published) == (True, True)
        assert await letters(client, one) == "a"

    run(tmp_path, body)


def test_a_stream_that_is_deleted_holds_up_nothing(tmp_path):
    async def body(servers: Servers, client: AsyncClient) -> None:
        one, two = await create(client, "one", "two")
        transaction = Transaction("p.0.x")
        await stage(client, transaction, one, "a")
        await stage(client, transaction, two, "b")
        away = (await client.list_ranges([one]))[one][-1].servers[0]
        await servers.stop_server(servers.name_at(away))
        waiting = asyncio.create_task(commit(client, 0, transaction.parts()))
        await eventually(lambda: client.describe_txns(spared=[away]))
        await client.delete_streams([one])
        assert (await waiting).is_published
        assert await letters(client, two) == "b"
        with pytest.raises(NotFoundError):
            await commit(client, 1, [TxnPart("p.1.x", one, 0, 1)])
        with pytest.raises(TxnAbortedError):
            await commit(client, 1, [TxnPart("p.1.x", two, 1, 1)])

    run(tmp_path, body)


def test_a_stream_goes_on_without_what_a_server_has_lost(tmp_path):
    """One batch of those that were staged is lost; the others are dropped on all servers."""

    async def body(servers: Servers, client: AsyncClient, *, is_sealed: bool) -> None:
        one, two = await create(client, "one", "two")
        host = servers.name_at((await client.list_ranges([one]))[one][-1].servers[0])
        torn, whole = Transaction("p.0.torn"), Transaction("p.0.whole")
        await stage(client, torn, one, "ab")
        await stage(client, torn, one, "lost-letters")
        await stage(client, whole, one, "cd")
        await stage(client, whole, two, "e")
        later = Transaction("p.1.x")
        if is_sealed:
            await client.seal_streams([one])
        await stage(client, later, one, "fg")
        await servers.damage_staged(host, "lost-letters")
        await servers.repair_log(host)
        lost = (*torn.parts(), *(each for each in whole.parts() if each.stream_id == one))
        assert not (await commit(client, 0, (*lost, whole.parts()[-1]), 1_000)).is_published
        assert not (await commit(client, 1, later.parts(), 200)).is_published
        await eventually(lambda: is_stuck(client))
        loss = await client.give_up_txn("p", 0)
        assert loss.is_published
        assert [(each.txn_id, each.record_count) for each in loss.parts] == [
            ("p.0.torn", 14),
            ("p.0.whole", 2),
        ]
        assert (await commit(client, 1, ())).is_published
        assert (await letters(client, one), await letters(client, two)) == ("fg", "e")
        await nothing_is_staged(client)
        await servers.stop_pd()
        await servers.start_pd()
        assert (await commit(client, 0, ())).is_replay
        assert await client.give_up_txn("p", 0) == loss
        assert [each.state for each in await decided(client)] == ["lost", "published"]

    for is_sealed in (False, True):
        run(tmp_path / str(is_sealed), partial(body, is_sealed=is_sealed))


async def moved_away(client: AsyncClient, stream_id: int) -> str:
    """Seal a stream until its last range is at another server than its first; return the first."""
    first = (await client.list_ranges([stream_id]))[stream_id][0].servers[0]
    while True:
        others = await create(client, *(uuid.uuid4().hex for _ in range(4)))
        for other, ranges in (await client.list_ranges(others)).items():
            if ranges[0].servers[0] != first:
                await client.delete_streams([other])
        await client.seal_streams([stream_id])
        if (await client.list_ranges([stream_id]))[stream_id][-1].servers[0] != first:
            return first


def test_another_server_at_an_address_does_not_make_anything_lost(tmp_path):
    async def body(servers: Servers, client: AsyncClient) -> None:
        (one,) = await create(client, "one")
        transaction = Transaction("p.0.x")
        await stage(client, transaction, one, "ab")
        first = await moved_away(client, one)
        await stage(client, transaction, one, "c")
        port = int(first.rpartition(":")[2])
        host = servers.name_at(first)
        await servers.stop_server(host)
        await servers.start_server("impostor", port)
        await commit(client, 0, transaction.parts(), 500)
        with pytest.raises(InvalidRequestError, match="is not given up"):
            await client.give_up_txn("p", 0)
        await servers.stop_server("impostor")
        await servers.start_server(host, port)
        assert (await commit(client, 0, ())).is_published
        assert await letters(client, one) == "abc"

    run(tmp_path, body)


def test_damage_in_a_sealed_range_is_stuck_and_given_up_once_the_log_is_repaired(tmp_path):
    async def body(servers: Servers, client: AsyncClient) -> None:
        (one,) = await create(client, "one")
        transaction = Transaction("p.0.x")
        for text in ("ab", "lost-letters", "cd"):
            await stage(client, transaction, one, text)
        host = servers.name_at(await moved_away(client, one))
        await servers.damage_staged(host, "lost-letters")
        assert not (await commit(client, 0, transaction.parts(), 500)).is_published
        await eventually(lambda: is_stuck(client))
        with pytest.raises(InvalidRequestError, match="sbp log repair"):
            await client.give_up_txn("p", 0)
        await servers.repair_log(host)
        assert sum(part.record_count for part in (await client.give_up_txn("p", 0)).parts) == 16
        assert (await decided(client))[0].state == "lost"
        assert (await commit(client, 0, ())).lost

    run(tmp_path, body)


async def is_stuck(client: AsyncClient) -> bool:
    return any(each.state == "stuck" for each in await decided(client))
