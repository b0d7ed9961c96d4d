"""The commands that show a stream, while two of three range servers are down."""

import asyncio
import json

import pytest

from sbp_core import limits
from sbp_core.cli import connect
from sbp_core.cli.main import main
from sbp_core.client import StreamSpec
from tests.support.cluster import NO_FALSE_ALARM, append, run


@pytest.fixture
def impatient(monkeypatch):
    """Nothing comes back in this test."""
    monkeypatch.setattr(connect, "_ANSWER_MS", 200)
    monkeypatch.setattr(limits, "CONNECT_TIMEOUT_MS", 1_000)


@pytest.mark.usefixtures("impatient")
def test_commands_show_what_is_known_of_a_stream_whose_primary_is_down(tmp_path, capfd):
    async def body(cluster, client):
        async def sbp(*words):
            arguments = [*words, "--endpoint", cluster.endpoints.pd]
            capfd.readouterr()
            exit_code = await asyncio.to_thread(main, arguments)
            return exit_code, *capfd.readouterr()

        (stream,) = await client.create_streams([StreamSpec("copied", replica_count=3)])
        await append(client, stream.stream_id, b"one", b"two")
        opened = (await client.seal_streams([stream.stream_id]))[stream.stream_id]
        await append(client, stream.stream_id, b"three")
        await client.commit_cursors("readers", {stream.stream_id: 1})
        primary, other, _ = opened.servers
        for server in list(cluster._range_servers):
            if server.endpoint in {primary, other}:
                server._settler = None  # it hands nothing over
                await server.stop()
                cluster._range_servers.remove(server)

        exit_code, output, errors = await sbp("streams", "describe", "copied")
        assert (exit_code, errors) == (0, "")
        assert "  records    at least 2\n" in output
        assert "  offsets    0 to 2, exclusive, and perhaps more\n" in output
        assert f"  down       {primary}: records from 2 on cannot be read now (" in output

        exit_code, output, errors = await sbp("streams", "describe", "copied", "--json")
        (described,) = map(json.loads, output.splitlines())
        assert (described["start_offset"], described["next_offset"]) == (0, None)
        assert [each["next_offset"] for each in described["ranges"]] == [2, None]
        (missing,) = described["unavailable"]
        assert (missing["start_offset"], missing["end_offset"]) == (2, None)
        assert missing["server"] == primary
        assert "cannot connect" in missing["error"]
        assert described["stored_bytes"] is None

        exit_code, output, errors = await sbp("streams", "list")
        assert (exit_code, errors) == (0, "")
        assert output.splitlines()[1].split()[1:5] == ["copied", ">=2", "-", "unknown"]

        exit_code, output, errors = await sbp("consume", "copied", "--retry-for", "1s")
        assert (exit_code, output) == (1, "one\ntwo\n")
        waiting, failed = errors.splitlines()
        assert "from offset 2 on is unavailable" in waiting
        assert f"DESCRIBE_RANGE at {primary}" in failed

        exit_code, output, errors = await sbp("lag", "readers")
        assert (exit_code, errors) == (0, "")
        assert "the server of its tail is down" in output

    run(tmp_path, body, **NO_FALSE_ALARM)


def test_the_bytes_of_a_stream_are_asked_of_a_secondary_if_the_primary_is_down(tmp_path):
    async def body(cluster, client):
        names = ["copied", "a", "b", "c", "d", "e"]
        stream_ids = [
            each.stream_id
            for each in await client.create_streams(
                [StreamSpec(name, replica_count=3) for name in names]
            )
        ]
        stream_id = stream_ids[0]
        primaries = {
            each: pieces[0].servers[0]
            for each, pieces in (await client.list_ranges(stream_ids)).items()
        }
        await append(client, stream_id, b"one", b"two")
        # Only its own primary leads others then, so the stream goes on at another one.
        await client.delete_streams(
            [each for each in stream_ids if primaries[each] != primaries[stream_id]]
        )
        await client.seal_streams([stream_id])
        await append(client, stream_id, b"three")
        sizes = await client.stored_bytes([stream_id], timeout_ms=5_000)
        assert sizes[stream_id] > len("onetwothree")
        sealed, opened = (await client.list_ranges([stream_id]))[stream_id]
        assert sealed.servers[0] != opened.servers[0]
        for server in list(cluster._range_servers):
            if server.endpoint == sealed.servers[0]:
                await server.stop()
                cluster._range_servers.remove(server)
        assert await client.stored_bytes([stream_id], timeout_ms=5_000) == sizes

    run(tmp_path, body, **NO_FALSE_ALARM)
