"""The audit trail: an event for each management operation, and no disk that stops a server."""

import asyncio
import errno
import json
import logging
import os
import re
import signal
import stat
import threading

import pytest

from sbp_core.access.rights import Grant, Right
from sbp_core.cli.serving import _maybe_audit_file
from sbp_core.client import AppendItem, Client, StreamSpec, StreamUpdate
from sbp_core.errors import ConfigurationError, NotFoundError, PermissionDeniedError
from sbp_core.pd.streams.stream_operations import delete_streams
from sbp_core.server.audit import EVENTS, MANAGEMENT, AuditTrail
from sbp_core.server.line_file import LineFile
from sbp_core.wire.headers import (
    CreateStreamsRequest,
    DeleteStreamsRequest,
    RangeId,
    SealRangesRequest,
    Stream,
)
from sbp_core.wire.opcodes import Opcode
from tests.support.clock import until
from tests.support.cluster import core_cluster, rows_batch
from tests.support.security import (
    Authority,
    Issuer,
    admin_of,
    connected,
    greet,
    identified_settings,
    served,
)
from tests.support.warm import WarmCluster
from tests.support.wire import RawClient

NOT_MANAGEMENT = {
    *("PING", "GOAWAY", "HEARTBEAT", "ALLOCATE_ID", "REPORT_METRICS", "SYNC_RANGES"),
    *("APPEND", "FETCH", "END_TXN", "REPLICATE", "READ_ENTRIES", "LOOKUP_OFFSETS"),
    *("LIST_RANGES", "DESCRIBE_RANGE", "DESCRIBE_STREAMS", "DESCRIBE_CURSORS"),
    *("DESCRIBE_SCHEMAS", "DESCRIBE_PD_CLUSTER", "DESCRIBE_SERVERS", "DESCRIBE_TXNS"),
    *("LIST_GRANTS", "CHECK_RIGHTS"),
    *("JOIN_GROUP", "GROUP_HEARTBEAT", "LEAVE_GROUP", "DESCRIBE_GROUP"),
}


def test_each_operation_is_a_management_operation_or_declared_not_to_be():
    managed = {each.name for each in MANAGEMENT}
    assert managed | NOT_MANAGEMENT == {each.name for each in Opcode}
    assert not managed & NOT_MANAGEMENT


def events_of(folder, caplog, body, **options) -> list[dict]:
    caplog.set_level(logging.DEBUG, EVENTS.name)

    async def main():
        async with core_cluster(folder, **options) as cluster:
            await asyncio.wait_for(body(cluster), 60)

    asyncio.run(main())
    return [json.loads(each.getMessage()) for each in caplog.records if each.name == EVENTS.name]


def short(events: list[dict]) -> list[tuple]:
    return [(each["operation"], each.get("stream_id"), each["outcome"]) for each in events]


def test_operations_of_a_client(tmp_path, caplog):
    async def body(cluster):
        client = cluster.client
        (stream,) = await client.create_streams([StreamSpec("a", retention_bytes=77)])
        await client.update_streams(
            [StreamUpdate("a", name="b", properties={"z": "secret", "y": None})]
        )
        await client.append([AppendItem(stream.stream_id, rows_batch([b"x", b"y"]))])
        await client.commit_cursors("group", {stream.stream_id: 1})
        await client.commit_cursors("group", {stream.stream_id: -1})
        await client.trim_streams({stream.stream_id: 1})
        await client.seal_streams([stream.stream_id])
        (server,) = await client.range_servers()
        await client.drain_servers([server.server_id])
        await client.drain_servers([server.server_id], is_cancelled=True)
        await client.change_grants([Grant("billing", Right.READ, "b*")])
        await client.abort_txns([])
        for refused in (client.give_up_txn("p", 7), client.drain_servers([99])):
            with pytest.raises(NotFoundError):
                await refused
        await client.delete_streams(["b"])

    events = events_of(tmp_path, caplog, body)
    by_client = [each for each in events if each["server"] == "placement driver"]
    assert short(by_client) == [
        ("CREATE_STREAMS", 1, "done"),
        ("UPDATE_STREAMS", 1, "done"),
        ("COMMIT_CURSORS", 1, "done"),
        ("TRIM_STREAMS", 1, "done"),
        ("SEAL_RANGE", 1, "done"),
        ("DRAIN_SERVERS", None, "done"),
        ("DRAIN_SERVERS", None, "done"),
        ("CHANGE_GRANTS", None, "done"),
        ("COMMIT_TXN", None, "refused"),
        ("DRAIN_SERVERS", None, "refused"),
        ("DELETE_STREAMS", 1, "done"),
    ]
    created, updated, forgotten, trimmed, _, drained, resumed, granted, given_up, refused, _ = (
        by_client
    )
    assert granted.items() >= {"subject": "billing", "right": "read", "pattern": "b*"}.items()
    assert created.items() >= {"name": "a", "retention_bytes": 77, "role": "client"}.items()
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", created["time"])
    assert re.fullmatch(r"127\.0\.0\.1:\d+", created["peer"])
    assert (updated["name"], updated["properties"]) == ("b", "z, y"), "without the values"
    assert not any(value in {"secret", -1} for value in updated.values())
    assert forgotten["group"] == "group"
    assert trimmed["trim_offset"] == 1
    assert (drained["server_id"], resumed["is_cancelled"]) == (1, True)
    assert (given_up["producer"], given_up["batch_number"]) == ("p", 7)
    assert (refused["status"], refused["server_id"]) == ("NOT_FOUND", 99)
    assert "no range server has the id 99" in refused["message"]
    at_server = [each for each in events if each["server"] == "range server"]
    (sealed,) = (each for each in at_server if short([each]) == [("SEAL_RANGE", 1, "done")])
    assert sealed["role"] == "placement driver"


def test_events_name_the_identity_and_have_no_secret(tmp_path, caplog):
    caplog.set_level(logging.DEBUG, EVENTS.name)
    authority, issuer = Authority(tmp_path / "authority"), Issuer(tmp_path)
    token = issuer.token("etl")

    async def body():
        settings = identified_settings(authority, issuer, tmp_path / "data")
        async with (
            served(settings) as cluster,
            connected(cluster.endpoints.pd, authority.client(admin_of(authority))) as admin,
            connected(cluster.endpoints.pd, authority.client()) as other,
        ):
            await greet(other, cluster.endpoints.pd, token)
            await admin.change_grants([Grant("etl", Right.READ, "a")])
            with pytest.raises(PermissionDeniedError):
                await other.change_grants([Grant("etl", Right.MANAGE, "a")])

    asyncio.run(asyncio.wait_for(body(), 60))
    logged = [each.getMessage() for each in caplog.records if each.name == EVENTS.name]
    granted, refused = map(json.loads, logged)
    assert granted["identity"].startswith("CN=alice")
    assert (granted["subject"], granted["outcome"]) == ("etl", "done")
    assert (refused["identity"], refused["outcome"]) == ("etl", "refused")
    assert not [part for part in token.decode().split(".") if part in "".join(logged)]


def test_each_object_of_a_request_has_its_own_outcome(tmp_path, caplog):
    async def body(cluster):
        async with RawClient.at(cluster.pd.endpoint) as raw:
            names = ("a", "b", "a\n{}", "a", "x" * 5_000)
            streams = tuple(Stream(name=name, replica_nums=1) for name in names)
            await raw.ask(Opcode.CREATE_STREAMS, CreateStreamsRequest(0, streams))
            await raw.call(Opcode.DELETE_STREAMS, b"no header")
            await raw.call(Opcode.COMMIT_CURSORS, b"no header")

    events = events_of(tmp_path, caplog, body)
    created, broken = events[:-1], events[-1]
    assert [(each["name"], each["outcome"]) for each in created] == [
        *(("a", "done"), ("b", "done")),
        *(("a\n{}", "refused"), ("a", "refused"), ("x" * 1_024 + "...", "refused")),
    ]
    assert [each.get("stream_id") for each in created] == [1, 2, None, None, None]
    assert broken["operation"] == "DELETE_STREAMS"
    assert broken["outcome"] != "done"


def test_requests_of_others_at_a_range_server_are_logged_as_refused(tmp_path, caplog):
    async def body(cluster):
        (stream,) = await cluster.client.create_streams([StreamSpec("a")])
        async with RawClient.at(cluster.server.endpoint) as raw:
            seal = SealRangesRequest(0, (RangeId(stream.stream_id, 0),))
            await raw.call(Opcode.SEAL_RANGE, seal)
            await raw.call(Opcode.CREATE_STREAMS, CreateStreamsRequest(0, (Stream(name="x"),)))
            await raw.call(
                Opcode.DELETE_STREAMS, DeleteStreamsRequest(0, (Stream(stream.stream_id),))
            )

    _, sealed, created, deleted = events_of(tmp_path, caplog, body)
    assert (sealed["status"], sealed["stream_id"]) == ("PERMISSION_DENIED", 1)
    assert (created["status"], created["name"]) == ("UNSUPPORTED_OPERATION", "x")
    assert {each["outcome"] for each in (sealed, created)} == {"refused"}
    assert (deleted["operation"], deleted["stream_id"]) == ("DELETE_STREAMS", 1)


def test_an_operation_whose_caller_leaves_is_logged_too(tmp_path, caplog, monkeypatch):
    """Its outcome is unknown: the store goes on."""

    async def body(cluster):
        entered, gate = asyncio.Event(), asyncio.Event()
        run_in_store = cluster.pd._store.run

        async def wait(work, *arguments):
            if work is delete_streams:  # others of the placement driver go on
                entered.set()
                await gate.wait()
            return await run_in_store(work, *arguments)

        async with RawClient.at(cluster.pd.endpoint) as raw:
            with monkeypatch.context() as patched:
                patched.setattr(cluster.pd._store, "run", wait)
                request = DeleteStreamsRequest(0, (Stream(5),))
                leaving = asyncio.create_task(raw.call(Opcode.DELETE_STREAMS, request))
                await entered.wait()
        leaving.cancel()
        await asyncio.to_thread(
            until, lambda: EVENTS.name in {each.name for each in caplog.records}
        )
        gate.set()

    (event,) = events_of(tmp_path, caplog, body)
    assert (event["stream_id"], event["outcome"]) == (5, "unknown")


def test_the_file_of_all_servers_is_opened_again_when_it_was_moved(tmp_path):
    path, moved = tmp_path / "audit.jsonl", tmp_path / "audit.1"
    before = os.umask(0)
    try:
        cluster = WarmCluster(
            tmp_path / "data",
            range_servers=2,
            options=["--audit-file", str(path), "--log-level", "info"],
        )
        with cluster, Client(cluster.endpoint) as client:
            (stream,) = client.create_streams([StreamSpec("a")])
            client.seal_streams([stream.stream_id])
            until(lambda: len(lines(path)) == 3, 30)
            path.rename(moved)
            os.kill(cluster.pid, signal.SIGHUP)
            until(lambda: cluster.log_path.read_text().count("audit file opened again") == 3, 30)
            client.delete_streams(["a"])
            until(lambda: path.exists() and lines(path), 30)
    finally:
        os.umask(before)
    assert [(each["server"], each["operation"], each["outcome"]) for each in lines(moved)] == [
        ("placement driver", "CREATE_STREAMS", "done"),
        ("range server", "SEAL_RANGE", "done"),
        ("placement driver", "SEAL_RANGE", "done"),
    ]
    assert lines(path)[0]["operation"] == "DELETE_STREAMS"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_full_disk_loses_events_once_and_keeps_whole_lines(tmp_path, monkeypatch, caplog):
    path = tmp_path / "audit.jsonl"
    space = {"bytes": 30}
    write = os.write

    def write_what_fits(descriptor, data):
        if threading.current_thread().name != "line-file":
            return write(descriptor, data)
        if not space["bytes"]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(descriptor, data[: space["bytes"]])
        space["bytes"] -= written
        return written

    monkeypatch.setattr(os, "write", write_what_fits)
    file = LineFile(path)

    def send(text: str) -> None:
        file.emit(logging.makeLogRecord({"msg": json.dumps({"text": text})}))
        until(file._lines.empty, 30)

    for text in ("first", "second", "third", "fourth"):
        send(text)
    until(lambda: file._failed_count == 3, 30)
    space["bytes"] = 10_000
    send("fifth")
    file.close()
    file.close()
    kept = path.read_text().splitlines()
    assert [json.loads(each)["text"] for each in (kept[0], kept[-1])] == ["first", "fifth"]
    assert len(kept) == 3
    logged = [each.getMessage() for each in caplog.records]
    assert len(logged) == 2
    assert "events are lost" in logged[0]
    assert logged[1].endswith("lost=3")


def test_a_disk_that_hangs_holds_up_no_operation(tmp_path, monkeypatch):
    gate = threading.Event()
    write = os.write
    monkeypatch.setattr(os, "write", lambda *arguments: gate.wait() and write(*arguments))
    file = LineFile(tmp_path / "audit.jsonl", queued_max=3)
    for number in range(10):
        file.emit(logging.makeLogRecord({"msg": json.dumps(number)}))
    gate.set()
    file.close()
    assert 3 <= len(lines(tmp_path / "audit.jsonl")) <= 4


@pytest.mark.parametrize("kind", ["folder", "fifo", "link", "absent/file"])
def test_a_path_that_is_no_file_is_refused_at_the_start(tmp_path, kind):
    path = tmp_path / kind
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="audit"):
        _maybe_audit_file(path)
    assert not (tmp_path / "elsewhere").exists()


def test_operations_of_servers_fill_no_log_at_level_info(caplog):
    """A range server reports each trim by retention to the placement driver."""
    caplog.set_level(logging.DEBUG, EVENTS.name)
    trail = AuditTrail("placement driver")
    for role in ("client", "range server", "placement driver"):
        trail.write({"operation": "TRIM_STREAMS", "role": role}, 0)
    assert [each.levelname for each in caplog.records] == ["INFO", "DEBUG", "DEBUG"]
