"""A client does not read the log of another server that a server names in its answer."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from contextlib import closing
from pathlib import Path

import pytest

from sbp_core import local_registry
from sbp_core.client import Client, FetchItem
from sbp_core.local_registry import Registration, registered_log, registry_path
from sbp_core.segment_format import (
    INSTANCE_NAME,
    SEGMENT_HEADER_BYTES,
    encode_instance,
    segment_name,
)
from sbp_core.sockets import is_own_address
from sbp_core.wire.headers import (
    BatchPlace,
    FetchInfo,
    FetchRequest,
    FetchResponse,
    FetchResult,
    HeartbeatResponse,
    StreamRange,
    decode_header,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import SUCCESS
from tests.support.local_reads import append, large_batch, new_stream, run
from tests.support.scripted_peer import ScriptedPeer, placed, ranges


class Forger(ScriptedPeer):
    """A placement driver and range server that gives places of another log for its own."""

    def __init__(self, cluster_id: str | None, directory: str, instance: str) -> None:
        super().__init__()
        self.places: tuple[BatchPlace, ...] = ()
        self.directory, self.instance = directory, instance
        self.asked_for_places = 0
        self.own = large_batch(1, seed=99)
        self.script(
            Opcode.HEARTBEAT, lambda each: each.answer(HeartbeatResponse(cluster_id=cluster_id))
        )
        self.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, self.endpoint)))
        self.script(Opcode.FETCH, self._fetch)

    def _fetch(self, exchange) -> None:
        if exchange.header.takes_places:
            self.asked_for_places += 1
            result = FetchResult(1, 0, 1, SUCCESS, 0, 2, self.places)
            exchange.answer(FetchResponse(0, (result,), SUCCESS, self.directory, self.instance))
        else:
            result = FetchResult(1, 0, 1, SUCCESS, len(self.own), 2)
            exchange.answer(FetchResponse(fetch_responses=(result,)), [self.own])


def fetched_from(forger: Forger, **options) -> bytes:
    with Client(forger.endpoint, **options) as client:
        (outcome,) = client.fetch([FetchItem(1, 0, None, 1 << 20)])
        assert outcome.error is None
        return bytes(outcome.payload)


@pytest.mark.parametrize("cluster_id", ["another", None, "the same"])
@pytest.mark.parametrize("is_configured", [False, True])
def test_the_log_of_another_server_stays_closed(tmp_path, caplog, cluster_id, is_configured):
    """Even if the forger knows all that the log's own server would say."""
    caplog.set_level(logging.DEBUG, "sbp_core.client")

    async def body(cluster):
        stream_id = await new_stream(cluster)
        await append(cluster, stream_id, [1])
        directory = tmp_path.resolve() / "rs" / "log"
        instance, true_cluster, address = (directory / INSTANCE_NAME).read_text().split()
        assert address == cluster.server.endpoint
        named = true_cluster if cluster_id == "the same" else cluster_id
        options = {"local_folders": [tmp_path]} if is_configured else {}
        with closing(Forger(named, str(directory), instance)) as forger:
            forger.places = await _places(cluster, stream_id)
            payload = await asyncio.to_thread(fetched_from, forger, **options)
            assert payload == forger.own
            assert forger.asked_for_places == 1

    run(tmp_path, body)
    logged = [each for each in caplog.records if "local_log" in each.name]
    assert logged
    assert all(each.levelno == logging.DEBUG for each in logged)


class Traps:
    """Folders that a hostile server names; all but `absent` have its own instance in them."""

    INSTANCE = "0123456789abcdef"

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        content = encode_instance(self.INSTANCE, "evil", [address])
        for name in ("whole", "fifo", "directory", "huge", "foreign"):
            (folder / name).mkdir(parents=True)
            (folder / name / INSTANCE_NAME).write_bytes(content)
        for name, make in (("fifo", os.mkfifo), ("directory", os.mkdir)):
            (folder / name / INSTANCE_NAME).unlink()
            make(folder / name / INSTANCE_NAME)
        with (folder / "huge" / segment_name(0)).open("wb") as file:
            file.truncate(1 << 40)
        (folder / "link").symlink_to(folder / "whole")
        os.mkfifo(folder / "whole" / segment_name(0))
        if os.geteuid() == 0:
            os.chown(folder / "foreign" / INSTANCE_NAME, 12_345, 12_345)

    def named(self, name: str) -> str:
        names = {"dots": f"{self.folder}/huge/../whole", "relative": "whole"}
        return names.get(name) or (name if name.startswith("/") else str(self.folder / name))


TRAPS = ["absent", "whole", "fifo", "directory", "huge", "foreign", "link", "dots", "relative"]
PLACE = BatchPlace(0, 0, SEGMENT_HEADER_BYTES, 1_000, 0, 0, 2)


def opened_for(monkeypatch, forger: Forger, **options) -> list[object]:
    """Let a client be told of places by a hostile server; return the names that it opens."""
    opened: list[object] = []
    open_file = os.open

    def record(path, *arguments, **keywords):
        opened.append(path)
        return open_file(path, *arguments, **keywords)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", record)
        assert fetched_from(forger, **options) == forger.own
    return opened


def requests_to(forger: Forger) -> list[object]:
    return [
        (each.opcode, each.header.takes_places, each.header.fetch_requests)
        for each in forger.seen(Opcode.FETCH)
    ]


def test_a_hostile_server_makes_no_client_look_at_a_file(tmp_path, monkeypatch):
    """It names what it likes. It gets the same requests, whether that exists or not."""
    seen = []
    for at, name in enumerate([*TRAPS, "/", "/dev", "/proc/self/fd", "/" + 5_000 * "x", "/\0"]):
        with closing(Forger("evil", "", Traps.INSTANCE)) as forger:
            traps = Traps(tmp_path / str(at), forger.endpoint)
            monkeypatch.chdir(traps.folder)
            forger.places, forger.directory = (PLACE,), traps.named(name)
            assert set(opened_for(monkeypatch, forger)) <= {registry_path()}
            seen.append(requests_to(forger))
    assert seen == [seen[0]] * len(seen)
    assert len(seen[0]) == 2


@pytest.mark.parametrize("name", TRAPS)
def test_a_client_that_names_folders_looks_only_below_these(tmp_path, monkeypatch, name):
    with closing(Forger("evil", "", Traps.INSTANCE)) as forger:
        traps = Traps(tmp_path / "evil", forger.endpoint)
        (tmp_path / "mine").mkdir()
        forger.places, forger.directory = (PLACE,), traps.named(name)
        assert opened_for(monkeypatch, forger, local_folders=[tmp_path / "mine"]) == []


@pytest.mark.parametrize("name", TRAPS)
def test_traps_below_a_folder_that_a_client_names_are_not_read(tmp_path, monkeypatch, name):
    """A server that can write there can still give nothing but its own batches."""
    with closing(Forger("evil", "", Traps.INSTANCE)) as forger:
        traps = Traps(tmp_path, forger.endpoint)
        monkeypatch.chdir(traps.folder)
        forger.places, forger.directory = (PLACE,), traps.named(name)
        opened = opened_for(monkeypatch, forger, local_folders=[tmp_path])
        entered = {"link": 1, "dots": 0, "relative": 0, "absent": 1}.get(name, 2)
        assert opened[1 : 1 + entered] == [name, INSTANCE_NAME][:entered]
        read = {"whole", "huge"} | ({"foreign"} if os.geteuid() else set())
        assert opened[1 + entered :] == ([segment_name(0)] if name in read else [])


@pytest.mark.parametrize("kind", ["open to others", "another user's", "a link", "a file", "none"])
def test_a_registry_that_others_may_have_written_is_not_used(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(local_registry, "_PARENT", tmp_path)
    registration = Registration("/a/log", "abc")
    assert registered_log("abc") == "/a/log"
    path = registry_path()
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    if kind == "open to others":
        path.chmod(0o770)
    elif kind == "another user's":
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
        path.rename(registry_path())
    else:
        path.rename(tmp_path / "elsewhere")
        if kind == "a link":
            path.symlink_to(tmp_path / "elsewhere")
        elif kind == "a file":
            path.touch()
    with pytest.raises(OSError, match=r"other users|Not a directory|No such file"):
        registered_log("abc")
    registration.end()
    registration.end()


def test_the_registry_has_the_servers_that_run(tmp_path, monkeypatch):
    """One that was killed leaves its entry to the next server."""
    monkeypatch.setattr(local_registry, "_PARENT", tmp_path)
    kept = [tmp_path / "one", tmp_path / "two"]
    for each in kept:
        each.mkdir()
    Registration(str(kept[0]), "killed")
    Registration("/no/such/folder", "gone")
    first, second = Registration(str(kept[0]), "first"), Registration(str(kept[1]), "second")
    assert {each.name for each in registry_path().iterdir()} == {"first", "second"}
    first.end()
    assert registered_log("second") == str(kept[1])
    with pytest.raises(FileNotFoundError):
        registered_log("first")
    second.end()
    assert list(registry_path().iterdir()) == []


def test_a_server_whose_registry_cannot_be_used_serves_all_the_same(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(local_registry, "_PARENT", tmp_path)
    registry_path().touch()

    async def body(cluster):
        stream_id = await new_stream(cluster)
        await append(cluster, stream_id, [1])
        item = FetchItem(stream_id, 0, None, 1 << 20)

        def read(**options) -> bytes:
            with Client(cluster.pd.endpoint, **options) as client:
                (outcome,) = client.fetch([item])
                return bytes(outcome.payload)

        assert await asyncio.to_thread(read) == await asyncio.to_thread(
            read, local_folders=[tmp_path / "rs"]
        )

    run(tmp_path, body)
    assert "local reads only by folder" in caplog.text


async def _places(cluster, stream_id) -> tuple[BatchPlace, ...]:
    """The place of a batch as the true server reports it."""
    item = FetchInfo(StreamRange(stream_id, 0), 0, 0, 1 << 20, stream_id, -1)
    request = FetchRequest(0, 1, (item,), 0, takes_places=True)
    endpoint = cluster.server.endpoint
    (frame,) = await cluster.client.call(endpoint, Opcode.FETCH, request)
    (result,) = decode_header(FetchResponse, frame.header).fetch_responses
    assert result.places
    return result.places


def test_a_server_rewrites_what_an_earlier_version_left(tmp_path):
    async def body(cluster):
        stream_id = await new_stream(cluster)
        await append(cluster, stream_id, [1])
        content = (tmp_path / "rs" / "log" / INSTANCE_NAME).read_text()
        assert len(content.split()) == 3

    run(tmp_path, body)
    (tmp_path / "rs" / "log" / INSTANCE_NAME).write_text("0123456789abcdef")
    run(tmp_path, body)


def test_the_address_of_the_connection_decides_whether_a_server_is_local():
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()[:2]) as connected,
    ):
        assert is_own_address(connected)

    class Elsewhere:
        def getpeername(self):
            return ("192.0.2.7", 80)

        def getsockname(self):
            return ("192.0.2.8", 5000)

    assert not is_own_address(Elsewhere())
    assert not is_own_address(socket.socket())
