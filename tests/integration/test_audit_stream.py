"""The stream `_audit`: all events, in order and once; nobody but the servers changes it."""

import asyncio
import json
import logging
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest
from certificates import Authority
from core_cluster import rows_batch
from identified_cluster import admin_of, connected, greet, identified_settings, served
from identities import Issuer
from range_server_process import RangeServerProcess
from replicated_cluster import cluster_of

from sbp_core.access.rights import AUDIT_STREAM, Grant, Right
from sbp_core.cli.main import main as command
from sbp_core.client import AppendItem, AsyncClient, FetchItem, StreamSpec, StreamUpdate
from sbp_core.errors import (
    ConfigurationError,
    InvalidRequestError,
    PermissionDeniedError,
    SbpError,
)
from sbp_core.pd import PlacementDriver, PlacementDriverSettings
from sbp_core.rangeserver.range_server_settings import RangeServerSettings
from sbp_core.rangeserver.server import RangeServer
from sbp_core.records import decode_batch, split_envelopes
from sbp_core.server import audit_stream
from sbp_core.server.audit import EVENTS
from sbp_core.wire import headers as h
from sbp_core.wire.headers import RESPONSE_TABLES, RESULT_FIELDS
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import check_status

MS = 10_000


async def records_of(client) -> list[dict]:
    """The records of the stream, as rows."""
    (found,) = await client.find_streams([AUDIT_STREAM]) or [None]
    records: list[dict] = []
    while found is not None:
        item = FetchItem(found.stream_id, len(records), None, 1 << 20)
        (outcome,) = [each async for each in client.fetch([item])]
        if outcome.error is not None or not outcome.payload:
            break
        for each in split_envelopes(outcome.payload):
            records += decode_batch(each).to_pylist()
    return records


async def events_of(client, is_there) -> list[dict]:
    """The events in the stream, once they are as `is_there` says; a test has a deadline."""
    while True:
        try:
            events = [json.loads(each["value"]) for each in await records_of(client)]
        except SbpError:
            events = []
        if is_there(events):
            return events
        await asyncio.sleep(0.05)


def subjects(events: list[dict]) -> list[str]:
    """The subjects that got a grant."""
    done = (each for each in events if each["outcome"] == "done")
    return [each["subject"] for each in done if each["operation"] == "CHANGE_GRANTS"]


async def grant(client, *names: str) -> None:
    for name in names:
        await client.change_grants([Grant(name, Right.READ, "a")])


async def stream_of(client, is_there=lambda stream: True):
    """The stream, once it is there, as `is_there` says; a test has a deadline."""
    while True:
        found = await client.find_streams([AUDIT_STREAM])
        if found and is_there(found[0]):
            return found[0]
        await asyncio.sleep(0.02)


def run(body, seconds=60):
    asyncio.run(asyncio.wait_for(body, seconds))


@asynccontextmanager
async def identified(folder, **changes):
    """A cluster with identities, clients by name, and the tokens of those without a certificate."""
    authority, issuer = Authority(folder / "authority"), Issuer(folder)
    settings = replace(identified_settings(authority, issuer, folder / "data"), **changes)
    tokens = {name: issuer.token(name) for name in ("auditor", "everything")}
    async with served(settings) as cluster, AsyncExitStack() as stack:
        enter = stack.enter_async_context
        endpoints = cluster.endpoints
        clients = {
            "admin": await enter(connected(endpoints.pd, authority.client(admin_of(authority))))
        }
        for name, token in tokens.items():
            clients[name] = await enter(connected(endpoints.pd, authority.client()))
            for endpoint in (endpoints.pd, *endpoints.range_servers):
                await greet(clients[name], endpoint, token)
        yield cluster, clients, tokens


async def check(client, endpoint, opcode, request, payload=()):
    """Make a call of one item; raise its error."""
    (frame,) = await client.call(endpoint, opcode, request, payload)
    answer = h.decode_header(RESPONSE_TABLES[opcode], frame.header)
    check_status(getattr(answer, RESULT_FIELDS[type(answer)])[0].status)


def by_server(lines: list[str]) -> dict[str, list[str]]:
    """Events in their order, by the server that they are of."""
    found: dict[str, list[str]] = {}
    for line in lines:
        found.setdefault(json.loads(line)["server"], []).append(line)
    return found


def test_events_are_those_of_the_file_in_their_order_and_have_no_secret(tmp_path, caplog):
    caplog.set_level(logging.INFO, EVENTS.name)

    async def body():
        async with identified(tmp_path) as (cluster, clients, tokens):
            admin, other = clients["admin"], clients["everything"]
            await grant(admin, "one")
            (stream,) = await admin.create_streams([StreamSpec("a")])
            delete = h.DeleteStreamsRequest(MS, (h.Stream(stream.stream_id),))
            for refused in (
                check(other, cluster.endpoints.pd, Opcode.DELETE_STREAMS, delete),
                grant(other, "two"),
            ):
                with pytest.raises(PermissionDeniedError):
                    await refused
            await admin.seal_streams([stream.stream_id])
            await events_of(admin, lambda events: len(events) == 7)
            return await records_of(admin), tokens["everything"]

    records, token = asyncio.run(asyncio.wait_for(body(), 60))
    logged = [each.getMessage() for each in caplog.records if each.name == EVENTS.name]
    stored = [each["value"].decode() for each in records]
    assert by_server(stored) == by_server(logged)
    events = [json.loads(each) for each in by_server(stored)["placement driver"]]
    assert [(each["operation"], each["outcome"]) for each in events] == [
        ("CHANGE_GRANTS", "done"),
        ("CREATE_STREAMS", "done"),
        ("DELETE_STREAMS", "refused"),
        ("CHANGE_GRANTS", "refused"),
        ("SEAL_RANGE", "done"),
    ]
    admin, _, other, *_ = (each["identity"] for each in events)
    assert admin.startswith("CN=alice")
    assert other == "everything"
    for record in records:
        event = json.loads(record["value"])
        assert record["key"].decode() == event["operation"]
        assert record["timestamp"].isoformat(timespec="milliseconds") == event["time"]
        for part in token.split(b"."):
            assert part not in record["value"]


def test_only_those_read_it_whom_a_grant_names_it(tmp_path):
    async def body():
        async with identified(tmp_path) as (_, clients, _):
            await grant(clients["admin"], "one")
            stream = await stream_of(clients["admin"])
            grants = [Grant("everything", right, "*") for right in (Right.READ, Right.MANAGE)]
            grants += [Grant("auditor", Right.READ, AUDIT_STREAM)]
            await clients["admin"].change_grants(grants)
            count = len(await events_of(clients["admin"], lambda events: len(events) == 4))
            assert len(await events_of(clients["auditor"], bool)) == count
            assert await clients["everything"].list_streams() == []
            item = FetchItem(stream.stream_id, 0, None, 1 << 20)
            (outcome,) = [each async for each in clients["everything"].fetch([item])]
            assert "everything lacks the right" in str(outcome.error)

    run(body())


def test_no_administrator_changes_it_and_the_servers_do(tmp_path):
    batch = rows_batch([b"forged"])

    async def body():
        async with identified(tmp_path) as (cluster, clients, _):
            admin = clients["admin"]
            (other,) = await admin.create_streams([StreamSpec("a")])
            stream = await stream_of(admin)
            at, where = stream.stream_id, stream.stream_id
            for refused in (
                admin.delete_streams([AUDIT_STREAM]),
                admin.trim_streams({at: 1}),
                admin.seal_streams([at]),
                admin.update_streams([StreamUpdate(AUDIT_STREAM, retention_period_ms=1)]),
                admin.update_streams([StreamUpdate(AUDIT_STREAM, name="mine")]),
                admin.call(
                    cluster.endpoints.pd,
                    Opcode.CREATE_RANGE,
                    h.CreateRangeRequest(MS, h.StreamRange(at)),
                ),
                admin.call(
                    cluster.endpoints.pd,
                    Opcode.COMMIT_TXN,
                    h.CommitTxnRequest(MS, parts=(h.TxnPart("p.1.x", at, -1),)),
                ),
                check(
                    admin,
                    cluster.endpoints.pd,
                    Opcode.REGISTER_SCHEMAS,
                    h.RegisterSchemasRequest(MS, (h.SchemaEntry(at),)),
                ),
            ):
                with pytest.raises(PermissionDeniedError, match="of the placement drivers"):
                    await refused
            (endpoint,) = cluster.endpoints.range_servers
            trim = h.TrimStreamsRequest(MS, (h.TrimmedStream(where, 1),))
            delete = h.DeleteStreamsRequest(MS, (h.Stream(where),))
            for refused in (
                admin.append([AppendItem(at, batch)]),
                check(admin, endpoint, Opcode.TRIM_STREAMS, trim),
                check(admin, endpoint, Opcode.DELETE_STREAMS, delete),
            ):
                with pytest.raises(PermissionDeniedError, match="of the range servers"):
                    await refused
            with pytest.raises(PermissionDeniedError) as failure:
                await admin.append([AppendItem(other.stream_id, batch), AppendItem(at, batch)])
            assert "stream _audit" in str(failure.value)
            events = await events_of(admin, lambda events: "TRIM_STREAMS" in str(events))
            (outcome,) = await admin.append([AppendItem(other.stream_id, batch)])
            assert outcome.base_offset == 1, "the other batch of the frame was appended"
            assert all(each["operation"] != "APPEND" for each in events)
            (server,) = cluster._range_servers
            await server._membership.report_trims({at: 1})  # as retention does
            assert (await admin.list_ranges([at]))[at][0].start_offset == 1

    run(body())


def test_administrators_change_it_where_the_settings_permit_it(tmp_path):
    async def body():
        async with identified(tmp_path, audit_protected=False) as (_, clients, _):
            admin = clients["admin"]
            stream = await stream_of(admin)
            (outcome,) = await admin.append([AppendItem(stream.stream_id, rows_batch([b"x"]))])
            assert outcome.base_offset == 0
            await admin.update_streams([StreamUpdate(AUDIT_STREAM, retention_period_ms=77)])
            await admin.trim_streams({stream.stream_id: 1})
            with pytest.raises(InvalidRequestError, match="'_b' is reserved"):
                await admin.update_streams([StreamUpdate(AUDIT_STREAM, name="_b")])

    run(body())


def test_without_identities_it_is_not_removed_by_requests(tmp_path):
    async def body():
        async with (
            cluster_of(tmp_path, 1, audit_stream=True) as cluster,
            AsyncClient(cluster.endpoints.pd) as client,
        ):
            stream = await stream_of(client)
            at = stream.stream_id
            await client.append([AppendItem(at, rows_batch([b"{}", b"{}"]))])
            for refused in (
                client.delete_streams([at]),
                client.trim_streams({at: 1}),
                client.seal_streams([at]),
                client.update_streams([StreamUpdate(at, retention_period_ms=1)]),
                check(
                    client,
                    cluster.endpoints.range_servers[0],
                    Opcode.DELETE_STREAMS,
                    h.DeleteStreamsRequest(MS, (h.Stream(at),)),
                ),
            ):
                with pytest.raises(PermissionDeniedError, match="only the servers"):
                    await refused
            (server,) = cluster._range_servers
            await server._membership.report_trims({at: 1})
            assert (await client.list_ranges([at]))[at][0].start_offset == 1

    run(body())


def test_names_of_the_cluster_itself_are_reserved_and_not_listed(tmp_path, capfd):
    async def body():
        async with (
            cluster_of(tmp_path, 1, audit_stream=True) as cluster,
            AsyncClient(cluster.endpoints.pd) as client,
        ):
            stream = await stream_of(client)
            assert (stream.replica_count, stream.retention_period_ms) == (1, 365 * 86_400_000)
            with pytest.raises(InvalidRequestError, match="'_b' is reserved"):
                await client.create_streams([StreamSpec("_b")])
            await client.create_streams([StreamSpec("a")])
            with pytest.raises(InvalidRequestError, match="'_b' is reserved"):
                await client.update_streams([StreamUpdate("a", name="_b")])
            for words in (["list"], ["list", "--all"]):
                endpoint = ["--endpoint", cluster.endpoints.pd]
                await asyncio.to_thread(command, ["streams", *words, *endpoint])

    run(body())
    listed, all_listed = capfd.readouterr().out.split("ID", 2)[1:]
    assert AUDIT_STREAM not in listed
    assert AUDIT_STREAM in all_listed


def test_a_cluster_that_had_none_gets_it_and_new_settings_hold(tmp_path):
    async def retention_in(**settings):
        async with (
            cluster_of(tmp_path, 1, **settings) as cluster,
            AsyncClient(cluster.endpoints.pd) as client,
        ):
            if not settings["audit_stream"]:
                await client.create_streams([StreamSpec("a")])
                return 0
            wanted = settings.get("audit_retention_ms", 365 * 86_400_000)
            stream = await stream_of(client, lambda stream: stream.retention_period_ms == wanted)
            assert len(await client.list_streams()) == 2
            return stream.retention_period_ms

    async def body():
        assert await retention_in(audit_stream=False) == 0
        await retention_in(audit_stream=True)
        assert await retention_in(audit_stream=True, audit_retention_ms=77) == 77

    run(body())


def test_two_placement_drivers_make_one_and_both_store_their_events(tmp_path, postgresql):
    store = postgresql.new_database()

    async def body():
        async with AsyncExitStack() as stack:
            drivers = [
                PlacementDriver(
                    PlacementDriverSettings(
                        data_dir=tmp_path, port=0, name=name, store=store, audit_stream=True
                    )
                )
                for name in ("a", "b")
            ]
            endpoints = ",".join([await each.start() for each in drivers])
            stack.push_async_callback(drivers[1].stop)
            settings = RangeServerSettings(
                data_dir=tmp_path / "rs", placement_driver=endpoints, port=0
            )
            server = RangeServer(settings)
            await server.start()
            stack.push_async_callback(server.stop)
            client = await stack.enter_async_context(AsyncClient(endpoints))
            await grant(client, "one")
            await events_of(client, lambda events: subjects(events) == ["one"])
            await drivers[0].stop()
            await grant(client, "two")
            await events_of(client, lambda events: subjects(events) == ["one", "two"])
            (stream,) = await client.list_streams()
            assert stream.name == AUDIT_STREAM

    run(body())


@asynccontextmanager
async def driver_at(folder, **settings):
    driver = PlacementDriver(
        PlacementDriverSettings(data_dir=folder / "pd", port=0, audit_stream=True, **settings)
    )
    await driver.start()
    try:
        async with AsyncClient(driver.endpoint) as client:
            yield driver, client
    finally:
        await driver.stop()


def test_events_wait_for_a_range_server_that_is_stopped(tmp_path, monkeypatch, caplog):
    """Some are lost when too many wait, which the next one says."""
    monkeypatch.setattr(audit_stream, "_QUEUED_MAX", 3)

    async def body():
        async with driver_at(tmp_path) as (driver, client):
            settings = RangeServerSettings(
                data_dir=tmp_path / "rs", placement_driver=driver.endpoint, port=0
            )
            first = RangeServer(settings)
            await first.start()
            await grant(client, "one")
            await events_of(client, lambda events: subjects(events) == ["one"])
            await first.stop()
            await grant(client, "two", "three", "four", "lost", "lost")
            again = RangeServer(settings)
            await again.start()
            events = await events_of(client, lambda events: len(events) == 4)
            await grant(client, "last")
            events = await events_of(client, lambda events: len(events) == 5)
            await again.stop()
            assert subjects(events) == ["one", "two", "three", "four", "last"]
            assert [each.get("events_lost") for each in events] == [None] * 4 + [2]

    run(body())
    assert "audit events lost stream=_audit waiting=3" in caplog.text
    assert "audit events accepted again lost=2" in caplog.text


def test_events_are_there_once_though_its_range_server_is_killed(tmp_path):
    before, after = [f"a{at}" for at in range(20)], [f"b{at}" for at in range(20)]

    async def body():
        async with (
            driver_at(tmp_path, heartbeat_timeout_ms=1_000, fail_over_after_ms=1_000) as (
                driver,
                client,
            ),
            AsyncExitStack() as stack,
        ):
            servers = [
                RangeServerProcess(tmp_path / f"{at}", driver.endpoint, heartbeat_interval_ms=100)
                for at in range(3)
            ]
            await asyncio.gather(*map(stack.enter_async_context, servers))
            stream = await stream_of(client, lambda stream: stream.replica_count == 3)
            await grant(client, *before[:10])
            await events_of(client, lambda events: len(subjects(events)) == 10)
            ranges = (await client.list_ranges([stream.stream_id]))[stream.stream_id]
            (primary,) = (each for each in servers if each.endpoint == ranges[-1].servers[0])
            await grant(client, *before[10:])
            await primary.kill()
            await grant(client, *after)
            events = await events_of(client, lambda events: subjects(events)[-1:] == after[-1:])
            assert subjects(events) == [*before, *after]

    run(body(), 120)


def test_a_server_that_stops_stores_its_last_events(tmp_path):
    async def body():
        async with (
            cluster_of(tmp_path, 1, audit_stream=True) as cluster,
            AsyncClient(cluster.endpoints.pd) as client,
        ):
            await stream_of(client)
            await grant(client, "last")
        async with (
            cluster_of(tmp_path, 1) as cluster,
            AsyncClient(cluster.endpoints.pd) as client,
        ):
            events = await events_of(client, bool)
            assert subjects(events) == ["last"]

    run(body())


def test_a_stop_does_not_wait_long_for_a_stream_that_is_not_there(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(audit_stream, "_FLUSH_MS", 50)

    async def body():
        async with driver_at(tmp_path) as (_, client):
            await grant(client, "lost")

    run(body())
    assert "audit events not stored stream=_audit count=1" in caplog.text


def test_the_other_dialect_has_no_names_of_streams(tmp_path):
    with pytest.raises(ConfigurationError, match=r"stream in \[audit\]"):
        PlacementDriverSettings(
            data_dir=tmp_path, port=0, audit_stream=True, dialect="elasticstream-2023-04"
        )
