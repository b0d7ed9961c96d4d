"""The cut of a backup, and changes between it and the copies of the records."""

from __future__ import annotations

import asyncio

import pytest

from sbp_core.backup.storage import BackupStorage
from sbp_core.backup.taking import take_backup
from sbp_core.client import AsyncClient, RetryPolicy
from sbp_core.errors import InvalidRequestError, NoRangeServerError, NotFoundError
from sbp_core.pd.backups import cut_handlers
from sbp_core.pd.txns.publishing import Publisher
from sbp_core.peers.driver_calls import Peers
from tests.support.appends import append, client_of, commit, create, read_all, restore, run
from tests.support.cluster import cluster_of

PROMPT = RetryPolicy(budget_ms=200)


@pytest.fixture
def place(tmp_path) -> BackupStorage:
    return BackupStorage.open(str(tmp_path / "backups"), is_new=True)


def test_a_stream_that_changes_while_it_is_copied_is_no_failure(tmp_path, place, monkeypatch):
    """Trimmed and deleted between the cut and the copy: both are in the manifest."""

    async def main():
        async with cluster_of(tmp_path / "lost", 1) as cluster, client_of(cluster) as client:
            trimmed, emptied, deleted = await create(client, "trimmed", "emptied", "deleted")
            for each in (trimmed, emptied, deleted):
                for number in range(4):
                    await append(client, each, b"%d" % number)

            async def change():
                await append(client, emptied, b"4")
                await client.trim_streams({trimmed: 2, emptied: 5})
                await client.delete_streams([deleted])

            tasks = []

            async def fetch(items, **options):
                tasks[:] = tasks or [asyncio.create_task(change())]
                await asyncio.wait(tasks)
                async for each in AsyncClient.fetch(client, items, **options):
                    yield each

            monkeypatch.setattr(client, "fetch", fetch)
            manifest = (await take_backup(client, place)).manifest
        assert manifest.deleted == (f"deleted (id {deleted})",)
        spans = {each.stream_id: (each.first_offset, each.end_offset) for each in manifest.streams}
        assert spans == {trimmed: (2, 4), emptied: (4, 4)}
        async with cluster_of(tmp_path / "new", 1) as cluster:
            await restore(cluster, place, manifest)
            async with client_of(cluster) as client:
                assert await read_all(client, trimmed) == {2: b"2", 3: b"3"}
                assert await read_all(client, emptied) == {}
                assert await append(client, emptied, b"x") == 4
                with pytest.raises(NotFoundError):
                    await client.describe_streams([deleted])

    run(main())


def test_no_decision_is_made_between_the_metadata_and_the_ends(tmp_path, place, monkeypatch):
    """Else its records would be in the backup, and be written again by a replay."""

    async def main():
        async with cluster_of(tmp_path / "data", 1) as cluster, client_of(cluster) as client:
            (a,) = await create(client, "a")
            await commit(client, 0, [a])
            describe = Peers.describe
            commits = []

            async def describe_late(peers, ranges):
                commits.append(asyncio.create_task(commit(client, len(commits) + 1, [a])))
                await asyncio.wait(commits, timeout=0.2)
                return await describe(peers, ranges)

            monkeypatch.setattr(Peers, "describe", describe_late)
            manifest = (await take_backup(client, place)).manifest
            await asyncio.gather(*commits)
            assert len(manifest.decisions) == manifest.record_count == len(commits)

    run(main())


def test_a_decision_that_cannot_be_published_fails_a_backup_and_holds_nothing(
    tmp_path, place, monkeypatch
):
    async def main():
        async with cluster_of(tmp_path / "data", 1) as cluster, client_of(cluster) as client:
            (a,) = await create(client, "a")
            has_begun, may_end = asyncio.Event(), asyncio.Event()
            end_txns = Peers.end_txns

            async def end_late(peers, address, ends):
                has_begun.set()
                await may_end.wait()
                return await end_txns(peers, address, ends)

            monkeypatch.setattr(Peers, "end_txns", end_late)
            stuck = asyncio.create_task(commit(client, 0, [a]))
            await has_begun.wait()
            monkeypatch.setattr(cut_handlers, "HOLD_MS_MAX", 200)
            with pytest.raises(InvalidRequestError, match=r"batch 0 of p \(1 in all\)"):
                await take_backup(client, place)
            assert not list((tmp_path / "backups").rglob("running/*"))
            may_end.set()
            await stuck
            assert not await commit(client, 1, [a])
            assert (await take_backup(client, place)).manifest.record_count == 2

    run(main())


def test_a_server_that_is_down_fails_a_backup_and_holds_nothing(tmp_path, place, monkeypatch):
    async def main():
        async with (
            cluster_of(tmp_path / "data", 2) as cluster,
            client_of(cluster, retry=PROMPT) as client,
        ):
            a, b = await create(client, "a", "b")
            ((of_a,), (of_b,)) = (
                each[-1].servers for each in (await client.list_ranges([a, b])).values()
            )
            assert of_a != of_b
            (server,) = (each for each in cluster._range_servers if each.endpoint == of_a)
            await server.stop()
            monkeypatch.setattr(Publisher, "held", None)
            with pytest.raises(NoRangeServerError, match=f"where stream {a} ends is not known"):
                await take_backup(client, place)
            assert not await commit(client, 0, [b])

    run(main())
