"""`sbp backup` and `sbp restore`, with a directory and with object storage."""

from __future__ import annotations

import asyncio
import json

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from sbp_core.cli.main import main as sbp
from sbp_core.client import AppendItem, AsyncClient, Client, StreamSpec
from sbp_spark.reading.offsets import SourceOffset, StreamChangedError
from sbp_spark.row_schema import source_schema
from sbp_spark.streaming.stream_reader import SbpStreamReader
from tests.support.cluster import cluster_of, read_all, rows_batch
from tests.support.s3 import BUCKET, SECRET, local_s3
from tests.support.warm import WarmCluster


@pytest.fixture(params=["directory", "s3"])
def place(request, tmp_path, monkeypatch):
    if request.param == "directory":
        yield str(tmp_path / "backups")
        return
    with local_s3() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield f"s3://{BUCKET}/some/prefix"


def run(main) -> None:
    asyncio.run(asyncio.wait_for(main, 60))


async def called(capsys, *words, code=0):
    """The output of the command, which runs in a thread beside the servers."""
    assert await asyncio.to_thread(sbp, [*words]) == code
    out, err = capsys.readouterr()
    return out + err


async def append(client, stream_id, *values):
    await client.append([AppendItem(stream_id, rows_batch(values))])


def test_a_backup_is_taken_listed_checked_pruned_and_restored(tmp_path, place, capsys):
    async def main():
        async with cluster_of(tmp_path / "lost", 1) as cluster:
            endpoint = ("--endpoint", cluster.endpoints.pd)
            async with AsyncClient(cluster.endpoints.pd) as client:
                created = await client.create_streams([StreamSpec("a"), StreamSpec("b")])
                a, b = (each.stream_id for each in created)
                await append(client, a, b"1")
                await append(client, b, b"2", b"3")
                said = await called(capsys, "backup", "create", place, *endpoint)
                assert "2 streams, 3 records" in said
                assert ", 0 B reused; commits were held for " in said
                await append(client, a, b"4")
                said = json.loads(
                    await called(capsys, "backup", "create", place, *endpoint, "--json")
                )
                assert said["bytes_reused"] > 0
                assert (said["streams"], said["records"], said["deleted"]) == (2, 4, [])
        listed = await called(capsys, "backup", "list", place, "--json")
        assert [json.loads(each)["records"] for each in listed.splitlines()] == [3, 4]
        assert said["backup"] in await called(capsys, "backup", "list", place)
        assert "is undamaged" in await called(capsys, "backup", "check", place)
        prune = ("backup", "prune", place, "--keep", "1")
        preview = (await called(capsys, *prune)).splitlines()
        assert preview[1].startswith("1 backup would be removed, and 1 chunk of ")
        assert preview[2] == "nothing is removed yet: repeat this with --yes"
        assert preview[0] in await called(capsys, "backup", "list", place)
        assert "1 backup removed, and 1 chunk of" in await called(capsys, *prune, "--yes")
        async with cluster_of(tmp_path / "new", 2) as cluster:
            endpoint = ("--endpoint", cluster.endpoints.pd)
            assert "is restored as of 20" in await called(capsys, "restore", place, *endpoint)
            said = await called(capsys, "restore", place, *endpoint)
            assert "was restored before: nothing was changed" in said
            async with AsyncClient(cluster.endpoints.pd) as client:
                assert [value for _, value in await read_all(client, a)] == [b"1", b"4"]
                assert [value for _, value in await read_all(client, b)] == [b"2", b"3"]

    run(main())


def test_a_place_that_cannot_be_used_is_named_without_secrets(tmp_path, monkeypatch, capsys):
    with local_s3() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
        assert sbp(["backup", "list", f"s3://{BUCKET}/x"]) == 1
        said = capsys.readouterr().err
        assert f"s3://{BUCKET}/x cannot be listed" in said
        assert "AccessDenied" in said or "403" in said
        assert len(said.splitlines()) == 1
        assert SECRET not in said
    assert sbp(["backup", "list", str(tmp_path / "missing")]) == 2
    assert "is no directory: give one with backups" in capsys.readouterr().err
    assert sbp(["backup", "list", "s3://key:secret@bucket"]) == 2
    assert sbp(["backup", "check", str(tmp_path)]) == 1
    assert "no backup is complete" in capsys.readouterr().err


def test_a_query_that_is_ahead_of_a_backup_is_told(tmp_path, capsys):
    """Also once the restored cluster has passed it, and after a restart of that."""
    place = str(tmp_path / "backups")

    def command(*words):
        assert sbp([*words]) == 0
        capsys.readouterr()

    with WarmCluster(tmp_path / "lost") as lost:
        with Client(lost.endpoint) as client:
            (a,) = (each.stream_id for each in client.create_streams([StreamSpec("a")]))
            append_all(client, a, b"a0", b"a1")
            command("backup", "create", place, "--endpoint", lost.endpoint)
            append_all(client, a, b"a2", b"a3")
        running = query(lost)
        end = running.latestOffset(running.initialOffset(), ReadAllAvailable())
    with WarmCluster(tmp_path / "new") as new:
        command("restore", place, "--endpoint", new.endpoint)
        with pytest.raises(StreamChangedError, match="was restored from an older copy"):
            query(new).latestOffset(end, ReadAllAvailable())
        with Client(new.endpoint) as client:
            append_all(client, a, b"b2", b"b3", b"b4")
        with pytest.raises(StreamChangedError, match="was restored from an older copy"):
            query(new).latestOffset(end, ReadAllAvailable())
        new.restart()
        with pytest.raises(StreamChangedError, match="was restored from an older copy"):
            query(new).latestOffset(end, ReadAllAvailable())
        lenient = query(new, failOnDataLoss="false")
        after = lenient.latestOffset(end, ReadAllAvailable())
        assert SourceOffset.from_json(after).next_offsets() == {a: 5}


def append_all(client, stream_id, *values):
    for value in values:
        client.append([AppendItem(stream_id, rows_batch([value]))])


def query(cluster, **options):
    """The driver side of a streaming query that reads stream a."""
    given = {"endpoint": cluster.endpoint, "streams": "a", "startingOffsets": "earliest"}
    return SbpStreamReader(given | options, source_schema(include_headers=False))
