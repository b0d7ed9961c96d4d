"""Streams as Iceberg tables: every record once, whatever ends, fails or changes in between."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pyarrow as pa
import pytest

import sbp_core
from sbp_core import aio
from sbp_core.client import AsyncClient, Client, StreamSpec, StreamUpdate
from sbp_core.cluster import LocalCluster
from sbp_core.lake.landing import Landing, LandingSettings
from sbp_core.records import StreamSchema
from tests.support.clock import until
from tests.support.lake import catalog_in, catalog_on_s3, has_landed, land_until, next_change
from tests.support.s3 import S3Fault, local_s3, well


@pytest.fixture
def catalog(tmp_path):
    return catalog_in(tmp_path)


@pytest.fixture
def stream(client, new_streams):
    (name,) = new_streams(1)
    client.update_streams([StreamUpdate(name, properties={"lake.table": f"lake.{name}"})])
    return name


def rows_of(catalog, stream):
    return catalog.load_table(f"lake.{stream}").scan().to_arrow().sort_by("_offset")


def test_records_of_a_plain_stream_land_with_their_keys_headers_and_times(cluster, catalog, stream):
    with sbp_core.connect(cluster.endpoint) as sbp, sbp.producer(stream) as producer:
        producer.send(b"one", key=b"k", headers={"a": b"b"}, timestamp_us=1_700_000_000_000_000)
        producer.send(None, timestamp_us=1_800_000_000_000_000)
    land_until(cluster, catalog, stream, has_landed(2))
    found = rows_of(catalog, stream)
    assert found["_offset"].to_pylist() == [0, 1]
    assert found["_key"].to_pylist() == [b"k", None]
    assert found["value"].to_pylist() == [b"one", None]
    assert found["_headers"].to_pylist()[0] == [("a", b"b")]
    assert found["_timestamp"].cast(pa.int64()).to_pylist() == [
        1_700_000_000_000_000,
        1_800_000_000_000_000,
    ]
    days = {
        str(each["partition"])
        for each in catalog.load_table(f"lake.{stream}").inspect.files().to_pylist()
    }
    assert len(days) == 2


def test_a_schema_that_grows_grows_the_table(cluster, catalog, client, stream):
    with sbp_core.connect(cluster.endpoint) as sbp:
        name = f"{stream}-typed"
        old = pa.schema([("id", pa.int32()), ("small", pa.int8()), ("at", pa.time64("ns"))])
        new = pa.schema([("id", pa.int64()), *list(old)[1:], ("more", pa.list_(pa.string()))])
        (info,) = client.create_streams([StreamSpec(name)])
        client.evolve_schema(info.stream_id, StreamSchema.of(old), may_change=True)
        rows = {"id": 1, "small": 2, "at": None}
        with sbp.producer(name) as producer:
            producer.send_many([rows])
        land_until(cluster, catalog, name, has_landed(1))
        client.evolve_schema(info.stream_id, StreamSchema.of(new), may_change=True)
        with sbp.producer(name) as producer:
            producer.send_many([{**rows, "id": 1 << 40, "more": ["x"]}])
        land_until(cluster, catalog, name, has_landed(2))
    found = rows_of(catalog, name)
    assert found["id"].to_pylist() == [1, 1 << 40]
    assert found["more"].to_pylist() == [None, ["x"]]


def test_a_schema_that_grows_while_records_are_collected_ends_the_file(
    cluster, catalog, client, stream
):
    name = f"{stream}-grown"
    old = pa.schema([("id", pa.int32())])
    new = pa.schema([("id", pa.int64()), ("more", pa.string())])
    (info,) = client.create_streams([StreamSpec(name)])
    client.evolve_schema(info.stream_id, StreamSchema.of(old), may_change=True)

    def send(rows):
        with sbp_core.connect(cluster.endpoint) as sbp, sbp.producer(name) as producer:
            producer.send_many(rows)

    async def main():
        async with WatchedClient(cluster.endpoint) as watched:
            with ThreadPoolExecutor(2) as workers:
                landing = Landing(
                    *(watched, catalog, info, f"lake.{name}"),
                    settings=LandingSettings(interval_seconds=3600.0),
                    workers=workers,
                )
                task = asyncio.create_task(landing.run())
                await asyncio.to_thread(send, [{"id": each} for each in range(5)])
                await watched.has_fetched.wait()
                client.evolve_schema(info.stream_id, StreamSchema.of(new), may_change=True)
                await asyncio.to_thread(send, [{"id": 1 << 40, "more": "x"}])
                while landing.state.landed_offset is None:
                    await next_change([landing])
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                return landing.state.landed_offset

    assert asyncio.run(asyncio.wait_for(main(), 120)) == 5
    land_until(cluster, catalog, name, has_landed(6))
    found = rows_of(catalog, name)
    assert found["id"].to_pylist() == [*range(5), 1 << 40]
    assert found["more"].to_pylist() == [*[None] * 5, "x"]


class WatchedClient(AsyncClient):
    """Tells when records have come."""

    def __init__(self, endpoint):
        super().__init__(endpoint)
        self.has_fetched = asyncio.Event()

    async def fetch(self, *items, **options):
        async for each in super().fetch(*items, **options):
            if each.payload:
                self.has_fetched.set()
            yield each


class Outage:
    """Ends as soon as a landing has shown its error; then everything has to land."""

    def __init__(self, end, landed_offset):
        self.error = ""
        self._end = end
        self._landed_offset = landed_offset

    def is_over(self, states):
        (state,) = states
        if state.error and not self.error:
            self.error = state.error
            self._end()
        return state.landed_offset == self._landed_offset and state.error is None


def test_an_object_store_that_fails_is_an_error_until_it_answers(cluster, stream, tmp_path):
    with local_s3() as server:
        catalog = catalog_on_s3(tmp_path, server)
        with sbp_core.connect(cluster.endpoint) as sbp, sbp.producer(stream) as producer:
            for offset, fault in enumerate((S3Fault.REFUSED, S3Fault.CUT, S3Fault.UNTOLD), 1):
                producer.send(b"%d" % offset)
                producer.flush()
                server.fault_of = lambda method, fault=fault: fault if method != "GET" else None
                outage = Outage(lambda: setattr(server, "fault_of", well), offset)
                land_until(cluster, catalog, stream, outage.is_over)
                assert outage.error.startswith("OSError: ")
                assert "AWS Error" in outage.error
                assert "\n" not in outage.error
        assert rows_of(catalog, stream)["value"].to_pylist() == [b"1", b"2", b"3"]


def test_a_catalog_that_is_locked_is_an_error_until_it_is_not(cluster, catalog, stream, tmp_path):
    with sbp_core.connect(cluster.endpoint) as sbp, sbp.producer(stream) as producer:
        producer.send(b"1")
    other = sqlite3.connect(tmp_path / "catalog.db")
    other.execute("BEGIN EXCLUSIVE")
    outage = Outage(other.rollback, 1)
    land_until(cluster, catalog, stream, outage.is_over)
    other.close()
    assert outage.error == "OperationalError: (sqlite3.OperationalError) database is locked"
    assert rows_of(catalog, stream)["value"].to_pylist() == [b"1"]


def test_of_two_processes_each_record_lands_once(cluster, catalog, stream):
    with sbp_core.connect(cluster.endpoint) as sbp:
        producing = threading.Event()

        def produce():
            with sbp.producer(stream) as producer:
                for number in range(3000):
                    producer.send(b"%d" % number)
                    if number % 100 == 0:
                        producer.flush()
            producing.set()

        thread = threading.Thread(target=produce)
        thread.start()
        land_until(cluster, catalog, stream, has_landed(3000), count=2)
        thread.join()
    found = rows_of(catalog, stream)
    assert found["_offset"].to_pylist() == [*range(3000)]
    assert found["value"].to_pylist() == [b"%d" % each for each in range(3000)]


def test_records_that_were_trimmed_before_they_landed_are_a_gap(cluster, catalog, client, stream):
    with sbp_core.connect(cluster.endpoint) as sbp, sbp.producer(stream) as producer:
        producer.send_many([{"value": b"a"}] * 5)
        producer.flush()
        land_until(cluster, catalog, stream, has_landed(5))
        producer.send_many([{"value": b"b"}] * 5)
        producer.flush()
        (info,) = client.describe_streams([stream])
        client.trim_streams({info.stream_id: 8})
        (state,) = land_until(cluster, catalog, stream, has_landed(10))
    assert state.gaps == ((5, 8),)
    assert rows_of(catalog, stream)["_offset"].to_pylist() == [0, 1, 2, 3, 4, 8, 9]


def test_records_that_have_landed_and_are_old_are_trimmed(cluster, catalog, client, stream):
    with sbp_core.connect(cluster.endpoint) as sbp, sbp.producer(stream) as producer:
        producer.send_many([{"value": b"a"}] * 5)
    land_until(cluster, catalog, stream, has_landed(5), trim_after="60000")
    (info,) = client.describe_streams([stream])
    (bounds,) = client.stream_bounds([info.stream_id])
    assert bounds.start_offset == 0

    def is_trimmed(_):
        return client.stream_bounds([info.stream_id])[0].start_offset == 5

    land_until(cluster, catalog, stream, is_trimmed, trim_after="0")  # without new records
    assert rows_of(catalog, stream)["_offset"].to_pylist() == [*range(5)]


def test_an_age_that_is_no_number_is_an_error(cluster, catalog, stream):
    (state,) = land_until(
        cluster, catalog, stream, lambda states: bool(states[0].error), trim_after="1h"
    )
    assert "lake.trim-after-ms is '1h'; expected milliseconds" in state.error


def test_a_stream_that_was_created_again_does_not_land_in_the_old_table(
    cluster, catalog, client, stream
):
    with sbp_core.connect(cluster.endpoint) as sbp:
        with sbp.producer(stream) as producer:
            producer.send(b"old")
        land_until(cluster, catalog, stream, has_landed(1))
        (info,) = client.describe_streams([stream])
        client.delete_streams([info.stream_id])
        client.create_streams([StreamSpec(stream)])
        with sbp.producer(stream) as producer:
            producer.send(b"new")
    (state,) = land_until(cluster, catalog, stream, lambda states: bool(states[0].error))
    assert "created again" in state.error
    assert rows_of(catalog, stream)["value"].to_pylist() == [b"old"]


def test_small_files_become_one_and_what_is_replaced_is_removed(cluster, catalog, stream, tmp_path):
    settings = LandingSettings(interval_seconds=0.0, keep_seconds=0.0)

    async def main():
        async with AsyncClient(cluster.endpoint) as client:
            (info,) = await client.describe_streams([stream])
            with ThreadPoolExecutor(1) as workers:
                landing = Landing(
                    *(client, catalog, info, f"lake.{stream}"), settings=settings, workers=workers
                )
                task = asyncio.create_task(landing.run())
                async with (
                    aio.connect(cluster.endpoint) as connection,
                    connection.producer(stream) as producer,
                ):
                    for number in range(20):
                        await producer.send(b"%d" % number)
                        await producer.flush()
                        while landing.state.landed_offset != number + 1:
                            await next_change([landing])
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    table = catalog.load_table(f"lake.{stream}")
    assert len(table.inspect.files()) < 10
    assert rows_of(catalog, stream)["_offset"].to_pylist() == [*range(20)]


def test_killed_at_any_moment_it_lands_each_record_once(cluster, catalog, client, stream, tmp_path):
    command = [
        *(sys.executable, "-m", "sbp_core.cli.main", "lake", "--interval", "1s"),
        *("--endpoint", cluster.endpoint, "--warehouse", str(tmp_path / "kills")),
    ]
    shown = [*command[:4], "status", "--json", *command[6:]]
    rolls = random.Random(7)
    sent = 0
    with sbp_core.connect(cluster.endpoint) as sbp, sbp.producer(stream) as producer:
        for is_last in (*[False] * 4, True):
            process = subprocess.Popen(command, stdout=subprocess.PIPE)
            assert process.stdout is not None
            process.stdout.readline()
            for _ in range(rolls.randrange(5, 15)):
                producer.send_many([{"value": b"%d" % each} for each in range(sent, sent + 50)])
                producer.flush()
                sent += 50
                with suppress(subprocess.TimeoutExpired):
                    process.wait(rolls.uniform(0, 0.2))
            while is_last and landed(shown, stream) != sent:
                assert process.poll() is None
            process.kill()
            process.communicate()
    found = rows_of(catalog_in(tmp_path / "kills"), stream)
    assert found["_offset"].to_pylist() == [*range(sent)]
    assert found["value"].to_pylist() == [b"%d" % each for each in range(sent)]


def landed(command, stream):
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    states = {each["stream"]: each for each in map(json.loads, lines.splitlines())}
    assert states[stream]["error"] is None
    return states[stream]["landed_offset"]


def test_serve_lands_streams_without_another_process(tmp_path):
    with LocalCluster(tmp_path / "data", options=["--lake"]) as cluster:
        with Client(cluster.endpoint) as client:
            client.create_streams([StreamSpec("own")])
            client.update_streams([StreamUpdate("own", properties={"lake.table": "lake.own"})])
        cluster.restart()  # it looks for streams when it starts
        with sbp_core.connect(cluster.endpoint) as sbp, sbp.producer("own") as producer:
            producer.send(b"one")
        catalog = catalog_in(tmp_path / "data" / "lake")
        until(lambda: catalog.table_exists("lake.own") and has_rows(catalog, "own"), 60)
        assert rows_of(catalog, "own")["value"].to_pylist() == [b"one"]


def has_rows(catalog, stream):
    return catalog.load_table(f"lake.{stream}").current_snapshot() is not None


def test_an_age_to_trim_at_is_a_property_of_the_stream(cluster, client, stream):
    command = [sys.executable, "-m", "sbp_core.cli.main", "streams", "update", stream]
    (info,) = client.describe_streams([stream])
    for age, stored in (("1h", "3600000"), ("off", None)):
        options = ["--endpoint", cluster.endpoint, "--trim-after-lake", age]
        subprocess.run([*command, *options], check=True)
        properties = client.describe_properties([info.stream_id])[info.stream_id]
        assert properties.get("lake.trim-after-ms") == stored
