"""A backup of a cluster under load, the loss of all its servers, and the restore onto others."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from sbp_core.access.identity import subject_of_certificate
from sbp_core.access.rights import Grant, Right
from sbp_core.backup.format import BackupError, manifest_path
from sbp_core.backup.restoring import restore_backup
from sbp_core.backup.storage import BackupStorage
from sbp_core.backup.taking import take_backup
from sbp_core.backup.upkeep import backup_ids, check_backup, prune, read_manifest
from sbp_core.client import (
    AppendItem,
    AsyncClient,
    Connecting,
    FetchItem,
    RetryPolicy,
    StreamSpec,
    Transaction,
    Writer,
)
from sbp_core.errors import (
    OffsetOutOfRangeError,
    PermissionDeniedError,
    StatusCode,
    ThrottledError,
    TxnAbortedError,
    WriterUnknownError,
)
from sbp_core.session.negotiation import RequestedFeatures
from sbp_core.wire.headers import AppendInfo, AppendRequest
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.txn_id import txn_id_of
from tests.support.appends import append, client_of, commit, create, read_all, restore, run
from tests.support.cluster import cluster_of, rows_batch
from tests.support.security import Authority, Issuer, admin_of, greet, identified_settings, served
from tests.support.wire import RawClient

PROMPT = RetryPolicy(budget_ms=200)


async def decided_of(client: AsyncClient, producer: str) -> set[int]:
    return {each.batch_number for each in await client.describe_txns(producer)}


class Load:
    """Appends, transactions and seals that go on until the cluster is lost."""

    def __init__(self, cluster, plain: int, paid: list[int]) -> None:
        self._cluster = cluster
        self._plain = plain
        self._paid = paid
        self.acknowledged: dict[int, bytes] = {}
        self.committed = -1
        self._has_grown = asyncio.Event()

    async def run(self) -> None:
        async with client_of(self._cluster) as client:
            await asyncio.gather(self._append(client), self._commit(client), self._seal(client))

    async def wait_for(self, more: int) -> None:
        """Wait until as many more records and batches are acknowledged."""
        records, batches = len(self.acknowledged) + more, self.committed + more
        while len(self.acknowledged) < records or self.committed < batches:
            self._has_grown.clear()
            await self._has_grown.wait()

    async def _append(self, client: AsyncClient) -> None:
        writer = Writer()
        for number in range(1_000_000):
            value = b"plain-%d" % number
            offset = await append(client, self._plain, value, writer=writer)
            self.acknowledged[offset] = value
            self._has_grown.set()

    async def _commit(self, client: AsyncClient) -> None:
        for number in range(1_000_000):
            await commit(client, number, self._paid)
            self.committed = number
            self._has_grown.set()

    async def _seal(self, client: AsyncClient) -> None:
        while True:
            await client.seal_streams([self._plain, *self._paid])
            await asyncio.sleep(0.3)


@pytest.fixture
def place(tmp_path) -> BackupStorage:
    return BackupStorage.open(str(tmp_path / "backups"), is_new=True)


def test_a_backup_under_load_has_all_that_was_committed_before_it(tmp_path, place):
    async def main():
        async with cluster_of(tmp_path / "lost") as cluster, client_of(cluster) as client:
            (plain,) = await create(client, "plain")
            paid = await create(client, "paid", "booked", replicas=2)
            trimmed, deleted = await create(client, "trimmed", "deleted")
            for each in (trimmed, deleted):
                await append(client, each, b"a", b"b", b"c", b"d")
                await append(client, each, b"e")
            await client.trim_streams({trimmed: 2})
            before = {each.stream_id: each for each in await client.list_streams()}
            load = Load(cluster, plain, paid)
            loading = asyncio.create_task(load.run())
            await load.wait_for(20)
            await client.commit_cursors("group", {plain: 7, paid[0]: 3})
            known = dict(load.acknowledged)
            committed = load.committed
            taken = await take_backup(client, place)
            await load.wait_for(20)
            lost_end = max(load.acknowledged) + 1
            last_commit = client.last_commit
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
        shutil.rmtree(tmp_path / "lost")
        manifest = taken.manifest
        assert manifest.held_us < 5_000_000

        async with cluster_of(tmp_path / "new", range_servers=2) as cluster:
            await restore(cluster, place, manifest)
            async with client_of(cluster) as client:
                streams = {each.stream_id: each for each in await client.list_streams()}
                assert streams == before
                found = await read_all(client, plain)
                ends = {each.stream_id: each.end_offset for each in manifest.streams}
                assert len(found) == ends[plain] < lost_end
                assert known.items() <= found.items()
                assert {at: load.acknowledged.get(at, value) for at, value in found.items()} == (
                    found
                )
                decided = await decided_of(client, "p")
                for each in paid:
                    batches = [int(value) for value in (await read_all(client, each)).values()]
                    assert batches == list(range(max(decided) + 1))
                assert max(decided) >= committed
                assert await commit(client, max(decided), paid)
                assert not await commit(client, max(decided) + 1, paid)
                assert [
                    value for _, value in sorted((await read_all(client, trimmed)).items())
                ] == ([b"c", b"d", b"e"])
                assert list(await read_all(client, trimmed)) == [2, 3, 4]
                cursors = await client.describe_cursors("group")
                assert {each.stream_id: each.next_offset for each in cursors} == (
                    {plain: 7, paid[0]: 3}
                )
                assert await client.has_commit(last_commit) is False
                item = FetchItem(plain, lost_end, None, 1 << 20)
                (ahead,) = [each async for each in client.fetch([item])]
                assert isinstance(ahead.error, OffsetOutOfRangeError)
                assert ahead.error.bounds == (0, ends[plain])
                assert await append(client, plain, b"next") == ends[plain]
                (new,) = await create(client, "new")
                assert new > manifest.last_stream_id + len(before)

    run(main())


def test_a_second_backup_copies_only_what_is_new(tmp_path, place):
    async def main():
        async with cluster_of(tmp_path / "data", 1) as cluster, client_of(cluster) as client:
            a, b, c = await create(client, "a", "b", "c")
            for each in (a, b, c):
                await append(client, each, b"x" * 1_000)
            first = await take_backup(client, place)
            assert first.progress.bytes_reused == 0
            await append(client, a, b"y")
            await client.delete_streams([c])
            second = await take_backup(client, place)
            sizes = {each.stream_id: each.size for each in second.manifest.streams}
            assert sizes.keys() == {a, b}
            assert second.progress.bytes_copied == sizes[a]
            assert second.progress.bytes_reused == sizes[b]
            third = await take_backup(client, place)
            assert third.progress.bytes_copied == 0
            pruned = await prune(place, 1)
            assert len(pruned.backup_ids) == 2
            assert pruned.chunk_count == 2  # of a before, and of c
            (left,) = await backup_ids(place)
            assert await check_backup(place, await read_manifest(place, left)) == []

    run(main())


def test_chunks_of_a_lost_history_are_not_reused(tmp_path, place):
    """The restored cluster gives the offsets behind the first backup to other records."""

    async def main():
        async with cluster_of(tmp_path / "lost", 1) as cluster, client_of(cluster) as client:
            (a,) = await create(client, "a")
            await append(client, a, b"1")
            first = await take_backup(client, place)
            await append(client, a, b"lost")
            await take_backup(client, place)
        async with cluster_of(tmp_path / "new", 1) as cluster:
            await restore(cluster, place, first.manifest)
            async with client_of(cluster) as client:
                await append(client, a, b"kept")
                third = await take_backup(client, place)
        assert third.progress.bytes_reused == 0
        async with cluster_of(tmp_path / "again", 1) as cluster:
            await restore(cluster, place, third.manifest)
            async with client_of(cluster) as client:
                assert await read_all(client, a) == {0: b"1", 1: b"kept"}

    run(main())


async def restoring(cluster) -> list[object]:
    """The metric that says whether a cluster is being restored."""
    found = await cluster.read_metrics()
    return [each.value for each in found if each.metric.name == "sbp_pd_restoring"]


def test_an_interrupted_restore_serves_nobody_until_it_is_repeated(tmp_path, place):
    async def main():
        async with cluster_of(tmp_path / "lost", 1) as cluster, client_of(cluster) as client:
            ids = await create(client, "a", "b", "c")
            for each in ids:
                await append(client, each, b"1", b"2")
            manifest = (await take_backup(client, place)).manifest
        broken = manifest.streams[2]
        hidden = tmp_path / "backups" / broken.path_of(broken.chunks[0])
        whole = hidden.read_bytes()
        hidden.write_bytes(whole[:-40] + bytes(40))

        async with cluster_of(tmp_path / "new", 1) as cluster:
            with pytest.raises(BackupError, match="records 0 to 1 of its stream"):
                await restore(cluster, place, manifest)
            (unready,) = cluster.unready()
            assert (unready.code, manifest.backup_id in unready.reason) == ("restoring", True)
            assert await restoring(cluster) == [1]
            async with client_of(cluster, retry=PROMPT) as client:
                for ask in (
                    client.list_streams(),
                    client.stream_bounds(ids),
                    append(client, ids[0], b"x"),
                    client.create_streams([StreamSpec("more")]),
                    take_backup(client, place),
                ):
                    with pytest.raises(ThrottledError, match="is being restored from backup"):
                        await ask
            hidden.write_bytes(whole)
            progress = (await restore(cluster, place, manifest)).progress
            assert progress.bytes_done == progress.byte_count == manifest.size
            assert (cluster.unready(), await restoring(cluster)) == ([], [0])
            async with client_of(cluster) as client:
                for each in ids:
                    assert await read_all(client, each) == {0: b"1", 1: b"2"}
                await append(client, ids[0], b"3")
            await restore(cluster, place, manifest)
            async with client_of(cluster) as client:
                assert await read_all(client, ids[0]) == {0: b"1", 1: b"2", 2: b"3"}

    run(main())


def test_an_administrator_restores_a_cluster_with_identities_and_its_grants(tmp_path, place):
    authority, issuer = Authority(tmp_path / "authority"), Issuer(tmp_path)
    tls = authority.client(admin_of(authority))
    granted = [Grant("CN=reader", Right.READ, "a")]

    def settings(folder):
        return identified_settings(authority, issuer, tmp_path / folder)

    async def main():
        async with (
            served(settings("old")) as cluster,
            client_of(cluster, connecting=Connecting(tls=tls)) as admin,
            client_of(cluster, connecting=Connecting(tls=authority.client())) as other,
        ):
            (a,) = await create(admin, "a")
            await append(admin, a, b"1")
            await admin.change_grants(granted)
            await greet(other, cluster.endpoints.pd, issuer.token("everything"))
            with pytest.raises(PermissionDeniedError, match="TAKE_CUT"):
                await take_backup(other, place)
            assert [*tmp_path.glob("backups/*")] == [], "a refused backup leaves nothing"
            manifest = (await take_backup(admin, place)).manifest
        features = RequestedFeatures(restoring=manifest.backup_id)
        async with (
            served(settings("new")) as cluster,
            client_of(cluster, connecting=Connecting(tls=tls, features=features)) as admin,
        ):
            await restore_backup(admin, place, manifest)
            assert await read_all(admin, a) == {0: b"1"}
            assert await admin.list_grants() == granted

    run(main())


def test_whose_grants_are_not_restored_yet_is_told_to_wait(tmp_path, place):
    """By the placement driver, and by a range server that a client remembers."""
    authority, issuer = Authority(tmp_path / "authority"), Issuer(tmp_path)
    tls = authority.client(admin_of(authority))
    pair = authority.issue(common_name="etl")
    own = Connecting(tls=authority.client(pair))
    subject = subject_of_certificate(pair.cert_file.read_bytes())

    async def main():
        async with (
            served(identified_settings(authority, issuer, tmp_path / "old")) as cluster,
            client_of(cluster, connecting=Connecting(tls=tls)) as admin,
        ):
            (a,) = await create(admin, "a")
            await append(admin, a, b"1")
            await admin.change_grants(
                [Grant(subject, each, "a") for each in (Right.READ, Right.APPEND)]
            )
            manifest = (await take_backup(admin, place)).manifest
        (broken,) = (each for each in manifest.streams if each.stream_id == a)
        hidden = tmp_path / "backups" / broken.path_of(broken.chunks[0])
        whole = hidden.read_bytes()
        batch, features = rows_batch([b"2"], a), RequestedFeatures(restoring=manifest.backup_id)
        async with (
            served(identified_settings(authority, issuer, tmp_path / "new")) as cluster,
            client_of(cluster, connecting=Connecting(tls=tls, features=features)) as admin,
            client_of(cluster, connecting=own, retry=PROMPT) as etl,
        ):
            hidden.write_bytes(whole[:-40] + bytes(40))
            with pytest.raises(BackupError):
                await restore_backup(admin, place, manifest)
            for ask in (etl.stream_bounds([a]), etl.describe_streams(["a"]), append(etl, a, b"2")):
                with pytest.raises(ThrottledError, match="is being restored from backup"):
                    await ask
            (server,) = cluster.endpoints.range_servers
            async with RawClient.at(server, tls=own.tls) as raw:
                await raw.greet(RequestedFeatures())
                info = AppendInfo(stream_id=a, batch_length=len(batch))
                answers = await raw.ask(
                    Opcode.APPEND, AppendRequest(append_requests=(info,)), [batch]
                )
            (refused,) = (each for answer in answers for each in answer.append_responses)
            assert refused.status.code == StatusCode.TOO_MANY_REQUESTS
            hidden.write_bytes(whole)
            await restore_backup(admin, place, manifest)
            await append(etl, a, b"2")
            assert await read_all(etl, a) == {0: b"1", 1: b"2"}

    run(main())


def test_what_was_staged_in_a_lost_range_is_refused(tmp_path, place):
    """It would be decided otherwise, and never be published: nothing of it is there."""

    async def main():
        async with cluster_of(tmp_path / "lost", 1) as cluster, client_of(cluster) as client:
            (a,) = await create(client, "a")
            transaction = Transaction(txn_id_of("p", 0, "x"))
            await client.append([AppendItem(a, rows_batch([b"1"]))], transaction=transaction)
            manifest = (await take_backup(client, place)).manifest
        async with cluster_of(tmp_path / "new", 1) as cluster:
            await restore(cluster, place, manifest)
            async with client_of(cluster) as client:
                with pytest.raises(TxnAbortedError, match="stage the batch again"):
                    await client.commit_txn(
                        "p", 0, transaction.parts(), record_count=1, digest=b"12345678"
                    )
                assert not await commit(client, 0, [a])

    run(main())


def test_a_writer_of_the_lost_cluster_is_unknown_and_appends_nothing(tmp_path, place):
    """The numbers of its batches are not in the backup, so none can be repeated either."""

    async def main():
        writer = Writer()
        async with cluster_of(tmp_path / "lost", 1) as cluster, client_of(cluster) as client:
            (a,) = await create(client, "a")
            await append(client, a, b"1", writer=writer)
            manifest = (await take_backup(client, place)).manifest
            await append(client, a, b"lost", writer=writer)
        async with cluster_of(tmp_path / "new", 1) as cluster:
            await restore(cluster, place, manifest)
            async with client_of(cluster, retry=PROMPT) as client:
                with pytest.raises(WriterUnknownError):
                    await append(client, a, b"2", writer=writer)
                assert await read_all(client, a) == {0: b"1"}

    run(main())


def test_damage_in_a_place_is_found(tmp_path, place):
    async def main():
        async with cluster_of(tmp_path / "data", 1) as cluster, client_of(cluster) as client:
            (a,) = await create(client, "a")
            await append(client, a, b"1", b"2")
            manifest = (await take_backup(client, place)).manifest
        (stream,) = manifest.streams
        path = tmp_path / "backups" / stream.path_of(stream.chunks[0])
        whole = bytearray(path.read_bytes())
        whole[20] ^= 1
        path.write_bytes(whole)
        (fault,) = await check_backup(place, manifest)
        assert "records 0 to 1" in str(fault)
        path.unlink()
        (fault,) = await check_backup(place, manifest)
        assert "cannot be read" in str(fault)
        path = tmp_path / "backups" / manifest_path(manifest.backup_id)
        path.write_bytes(path.read_bytes().replace(b'"a"', b'"b"'))
        with pytest.raises(BackupError, match="checksum"):
            await read_manifest(place, manifest.backup_id)

    run(main())
