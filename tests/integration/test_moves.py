"""`sbp cluster balance`, `sbp streams move`, MOVE_RANGES: ranges go to servers that were added."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest

from sbp_core.cli.main import main
from sbp_core.client import AppendItem, AsyncClient, StreamSpec, Transaction, TxnPart, Writer
from sbp_core.errors import NoRangeServerError
from sbp_core.rangeserver.server import RangeServer
from sbp_core.settings.server_settings import RangeServerSettings
from sbp_core.wire.headers import MoveRangesRequest, MoveRangesResponse, RangeMove
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import check_status
from tests.support.clock import until
from tests.support.cluster import NO_FALSE_ALARM, append, hosted_at, read_all, rows_batch, run, seal
from tests.support.warm import sbp

STREAM_COUNT = 8
STREAMS = [StreamSpec(f"s-{number}", replica_count=3) for number in range(STREAM_COUNT)]


async def add_server(cluster, folder) -> None:
    settings = RangeServerSettings(
        data_dir=folder / "added", placement_driver=cluster.endpoints.pd, port=0
    )
    server = RangeServer(settings)
    await server.start()
    cluster._range_servers.append(server)


async def command(cluster, capsys, *words: str) -> tuple[int, list[str]]:
    """Run a command; return its status, and its lines."""
    status = await asyncio.to_thread(main, [*words, "--endpoint", cluster.endpoints.pd])
    shown = capsys.readouterr()
    return status, [*shown.out.splitlines(), *shown.err.splitlines()]


async def ask(client: AsyncClient, *moves: RangeMove) -> list[bool]:
    """Return which moves are done. Raises the error of one that is refused."""
    answers = await client.ask(Opcode.MOVE_RANGES, MoveRangesRequest(0, moves), MoveRangesResponse)
    results = [each for answer in answers for each in answer.move_responses]
    for each in results:
        check_status(each.status)
    return [each.is_done for each in results]


async def appending(client: AsyncClient, stream_ids: list[int], stop: asyncio.Event) -> int:
    """Append numbers to all streams, as one writer, until `stop`; return how many each got."""
    writer = Writer()
    count = 0
    while not stop.is_set():
        value = b"%d" % count
        items = [AppendItem(each, rows_batch([value] * 10, each)) for each in stream_ids]
        await client.append(items, writer=writer)
        count += 1
    return count


def test_a_cluster_with_a_new_server_is_balanced_while_it_is_used(tmp_path, capsys):
    async def body(cluster, client):
        streams = await client.create_streams(STREAMS)
        ids = [each.stream_id for each in streams]
        stop = asyncio.Event()
        work = asyncio.create_task(appending(client, ids, stop))
        await add_server(cluster, tmp_path)
        status, lines = await command(cluster, capsys, "cluster", "balance")
        assert (status, lines[-1]) == (0, "nothing is moved yet: repeat this with --yes")
        assert {each.led_ranges for each in await client.range_servers()} == {0, 2, 3}
        status, lines = await command(cluster, capsys, "cluster", "balance", "--yes", "--json")
        assert status == 0, lines
        done = [json.loads(each) for each in lines if json.loads(each)["done"]]
        assert sum(each["range_index"] == -1 for each in done) == 6, "no more than needed"
        for each in await client.range_servers():
            assert (each.led_ranges, each.open_ranges) == (2, 6)
            assert each.sealed_ranges
        stop.set()
        count = await work
        for stream_id in ids:
            records = await read_all(client, stream_id, 10 * count + 1)
            assert [int(value) for _, value in records] == [n // 10 for n in range(10 * count)]
        status, lines = await command(cluster, capsys, "cluster", "balance", "--yes")
        assert lines[-1] == "the cluster is balanced", lines

    run(tmp_path, body, **NO_FALSE_ALARM)


def test_a_stream_moves_with_what_is_staged_in_it(tmp_path, capsys):
    async def body(cluster, client):
        (stream,) = await client.create_streams(STREAMS[:1])
        stream_id = stream.stream_id
        await append(client, stream_id, b"0")
        item = AppendItem(stream_id, rows_batch([b"1"], stream_id))
        await client.append([item], transaction=Transaction("t.1.x"))
        await add_server(cluster, tmp_path)
        by_address = {each.endpoint: each.server_id for each in await client.range_servers()}
        (placed,) = (await client.list_ranges([stream_id]))[stream_id]
        leaver, *kept = (by_address[each] for each in placed.servers)
        added = by_address[cluster._range_servers[-1].endpoint]
        target = [added, *kept]
        words = ("streams", "move", "s-0", "--to", ",".join(map(str, target)))
        status, lines = await command(cluster, capsys, *words)
        assert (status, lines[-1]) == (
            0,
            f"s-0 (id {stream_id}) goes on at range servers {', '.join(map(str, target))}",
        )
        sealed, opened = (await client.list_ranges([stream_id]))[stream_id]
        assert [by_address[each] for each in opened.servers] == target
        assert {by_address[each] for each in sealed.servers} == {*target}
        copy = hosted_at(cluster, stream_id, 0)[cluster._range_servers[-1].endpoint]
        assert copy.end_offset == 1
        parts = [TxnPart("t.1.x", stream_id, 0, 1)]
        await client.commit_txn("t", 1, parts, record_count=1, digest=b"d" * 16)
        assert [value for _, value in await read_all(client, stream_id)] == [b"0", b"1"]
        status, lines = await command(cluster, capsys, *words)
        assert (status, len(lines)) == (0, 1), "it is there already"
        few = ("streams", "move", "s-0", "--to", f"{added},{leaver}")
        status, lines = await command(cluster, capsys, *few)
        assert status == 1
        assert "1 stream not moved: the stream has 3 replicas, and range servers" in lines[-1]

    run(tmp_path, body, **NO_FALSE_ALARM)


def test_an_interrupted_move_says_how_it_goes_on(tmp_path):
    async def body(cluster, client):
        (stream,) = await client.create_streams(STREAMS[:1])
        stream_id = stream.stream_id
        for _ in range(2):
            await append(client, stream_id, bytes(200_000))
            await seal(cluster, stream_id)
        await add_server(cluster, tmp_path)
        by_address = {each.endpoint: each.server_id for each in await client.range_servers()}
        first = (await client.list_ranges([stream_id]))[stream_id][0]
        added = cluster._range_servers[-1].endpoint
        target = ",".join(str(by_address[each]) for each in (added, *first.servers[1:]))
        words = ("streams", "move", "s-0", "--to", target, "--rate", "1KiB")
        with (tmp_path / "errors").open("wb") as errors:
            process = sbp(*words, "--endpoint", cluster.endpoints.pd, stderr=errors)
        async with asyncio.timeout(60):  # then the second sealed range waits for 200 s
            while added not in (await client.list_ranges([stream_id]))[stream_id][0].servers:
                assert process.poll() is None
                await asyncio.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(process.wait, 30) == 130
        assert "repeat the command to go on" in (tmp_path / "errors").read_text()

    run(tmp_path, body, **NO_FALSE_ALARM)


def test_a_member_leaves_only_when_the_new_one_has_the_range(tmp_path):
    """Rule: move-ranges. A request is one step: it may be of another client than the one before."""

    async def body(cluster, client):
        (stream,) = await client.create_streams(STREAMS[:1])
        stream_id = stream.stream_id
        await append(client, stream_id, b"0")
        await seal(cluster, stream_id)
        await add_server(cluster, tmp_path)
        newcomer = cluster._range_servers[-1]
        move = RangeMove(stream_id, 0, (2, 3, 4))

        async def member_count() -> int:
            return len((await client.list_ranges([stream_id]))[stream_id][0].servers)

        assert await ask(client, move) == [False]
        assert await member_count() == 4

        def has_copied() -> bool:
            copy = hosted_at(cluster, stream_id, 0)[newcomer.endpoint]
            return copy is not None and copy.end_offset == 1

        await asyncio.to_thread(until, has_copied)
        await newcomer.stop()
        cluster._range_servers.remove(newcomer)
        with pytest.raises(NoRangeServerError, match="range server 4 is down"):
            await ask(client, move)
        assert await member_count() == 4, "nobody leaves for one that is down"
        assert await ask(client, RangeMove(stream_id, 0, (1, 2, 3))) == [True]
        assert await member_count() == 3

    run(tmp_path, body, **NO_FALSE_ALARM)
