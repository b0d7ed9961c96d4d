"""The stream `_audit`: all events, in order and once, whatever happens to range servers."""

import asyncio
import json
import logging
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from sbp_core.access.rights import AUDIT_STREAM
from sbp_core.client import AsyncClient, StreamSpec
from sbp_core.errors import (
    ConfigurationError,
    PermissionDeniedError,
    StatusCode,
    StatusError,
    ThrottledError,
)
from sbp_core.pd import PlacementDriver, PlacementDriverSettings
from sbp_core.rangeserver.appending.append_handler import AppendHandler
from sbp_core.rangeserver.range_server_settings import RangeServerSettings
from sbp_core.rangeserver.server import RangeServer
from sbp_core.server import audit_stream
from sbp_core.server.audit import EVENTS
from sbp_core.wire import headers as h
from sbp_core.wire.opcodes import Opcode
from tests.support.audit import (
    MS,
    check,
    events_of,
    grant,
    identified,
    records_of,
    run,
    stream_of,
    subjects,
)
from tests.support.clock import until
from tests.support.cluster import cluster_of
from tests.support.machines import RangeServerProcess


def by_server(lines: list[str]) -> dict[str, list[str]]:
    """Events in their order, by the server that they are of."""
    found: dict[str, list[str]] = {}
    for line in lines:
        found.setdefault(json.loads(line)["server"], []).append(line)
    return found


def test_events_are_those_of_the_file_in_their_order_and_have_no_secret(tmp_path, caplog):
    caplog.set_level(logging.DEBUG, EVENTS.name)

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
            silent = (h.RangeId(stream.stream_id, 0),)
            report = h.SealRangesRequest(MS, silent, h.SealCause.PRIMARY_SILENT)
            with pytest.raises(ThrottledError):  # no event: appends to the stream lead to such
                await check(clients["server"], cluster.endpoints.pd, Opcode.SEAL_RANGE, report)
            await admin.seal_streams([stream.stream_id])
            await events_of(admin, lambda events: len(events) == 6)
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


def test_a_batch_whose_answer_is_lost_is_stored_once(tmp_path, monkeypatch):
    results_of = AppendHandler._results
    losses = [1, 2, 3]

    def lose_answer(handler, frame):
        results = results_of(handler, frame)
        if losses:
            losses.pop()
            raise StatusError(StatusCode.UNKNOWN, "appended, and the answer is lost")
        return results

    monkeypatch.setattr(AppendHandler, "_results", lose_answer)
    monkeypatch.setattr(audit_stream, "_RETRY_MS", 10)

    async def body():
        async with (
            cluster_of(tmp_path, 1, audit_stream=True) as cluster,
            AsyncClient(cluster.endpoints.pd) as client,
        ):
            await grant(client, "one")
            await asyncio.to_thread(until, lambda: not losses, 30)
            await grant(client, "two")
            events = await events_of(client, lambda events: "two" in subjects(events))
            assert subjects(events) == ["one", "two"]

    run(body())


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
