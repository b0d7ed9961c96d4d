"""How people see streams in tables: metrics, the status, the console, and other engines."""

from __future__ import annotations

import asyncio
import json
import subprocess
import urllib.request
from contextlib import contextmanager
from decimal import Decimal

import polars as pl
import pyarrow as pa
from test_admin_endpoint import ask, samples, wait_for

import sbp_core
from sbp_core.client import AsyncClient, StreamSpec, StreamUpdate
from sbp_core.errors import SbpError
from sbp_core.lake.service import Lake
from sbp_core.records import StreamSchema
from tests.support.clock import until
from tests.support.lake import NOW, catalog_in, has_landed, land_until
from tests.support.warm import sbp
from tests.support.web import serving_console


def send(cluster, stream, count):
    with sbp_core.connect(cluster.endpoint) as connection, connection.producer(stream) as producer:
        producer.send_many([{"value": b"x"}] * count)


def name_table(client, stream, table):
    client.update_streams([StreamUpdate(stream, properties={"lake.table": table})])


@contextmanager
def landing(cluster, folder, *words):
    """Run `sbp lake` with an admin port; yield the endpoint of that."""
    ready = folder / "lake.json"
    words = ("--admin-port", "0", "--interval", "1s", "--ready-file", ready, *words)
    process = sbp("lake", "--endpoint", cluster.endpoint, "--warehouse", folder / "lake", *words)
    try:
        until(ready.exists, 60)
        yield json.loads(ready.read_text())["admin"]
    finally:
        process.terminate()
        assert process.wait(60) == 0


def test_metrics_and_status_show_how_far_streams_have_landed(
    cluster, client, new_streams, tmp_path
):
    good, bad = new_streams(2)
    client.update_streams([StreamUpdate(good, retention_period_ms=3_600_000)])
    name_table(client, bad, f"lake.{good}")
    send(cluster, good, 3)
    land_until(cluster, catalog_in(tmp_path / "lake"), good, has_landed(3))
    send(cluster, bad, 2)
    config = tmp_path / "lake.toml"
    config.write_text(f'[lake]\ntables = ["{good}=lake.{{stream}}"]\n')
    with landing(cluster, tmp_path, "--config", str(config)) as admin:

        def seen(name, stream):
            return samples(admin).get((name, ("stream", stream)))

        wait_for(lambda: seen("sbp_lake_lag_records", good), 0)
        assert ask(admin, "/readyz")[0] == ask(admin, "/healthz")[0] == 200
        wait_for(lambda: seen("sbp_lake_failing", bad), 1)
        assert seen("sbp_lake_errors_total", bad) >= 1
        assert seen("sbp_lake_lag_records", bad) is None, "its table does not tell"
        expected = {
            "failing": 0,
            "errors_total": 0,
            "landed_offset": 3,
            "lag_seconds": 0,
            "retention_seconds": 3600,
            "lost_records": 0,
            "files": 1,
        }
        found = {each: seen(f"sbp_lake_{each}", good) for each in expected}
        assert found == expected
        assert samples(admin)["sbp_lake_streams", ("state", "failing")] >= 1
        assert json.loads(ask(admin, "/config")[1])["lake"]["tables"] == [f"{good}=lake.{{stream}}"]
        send(cluster, good, 4)
        wait_for(lambda: seen("sbp_lake_landed_offset", good), 7)
    send(cluster, good, 1)
    states = status(cluster, tmp_path)
    assert states[good] | {"landed_offset": 7, "lag_records": 1, "error": None} == states[good]
    assert states[good]["lag_s"] > 0
    assert "records of a stream with id" in states[bad]["error"]
    assert states[bad]["lag_records"] is None


def status(cluster, folder):
    words = ("--endpoint", cluster.endpoint, "--warehouse", folder / "lake", "--json")
    process = sbp("lake", "status", *words, stdout=subprocess.PIPE, text=True)
    lines = process.communicate(timeout=60)[0].splitlines()
    return {each["stream"]: each for each in map(json.loads, lines)}


def test_status_shows_why_another_process_fails_until_it_does_not(
    cluster, client, new_streams, tmp_path
):
    (stream,) = new_streams(1)
    catalog = catalog_in(tmp_path / "lake")
    name_table(client, stream, f"lake.{stream}")
    trim_after(client, stream, "soon")
    send(cluster, stream, 1)
    run_lake(cluster, lambda: catalog, lambda _: noted_error(client, stream))
    shown = status(cluster, tmp_path)[stream]
    assert "lake.trim-after-ms is 'soon'; expected milliseconds" in shown["error"]
    trim_after(client, stream, "60000")
    run_lake(cluster, lambda: catalog, lambda _: not noted_error(client, stream))
    shown = status(cluster, tmp_path)[stream]
    assert (shown["error"], shown["landed_offset"]) == (None, 1)


def test_a_catalog_that_cannot_be_opened_is_opened_later(cluster, client, new_streams, tmp_path):
    (stream,) = new_streams(1)
    name_table(client, stream, f"lake.{stream}")
    send(cluster, stream, 1)
    reasons = []

    def open_catalog():
        if not reasons:
            raise SbpError("the catalog cannot be opened: it is down")
        return catalog_in(tmp_path / "lake")

    def is_landed(lake):
        reasons.extend(each.code for each in lake.unready())
        return reasons and status(cluster, tmp_path)[stream]["landed_offset"] == 1

    run_lake(cluster, open_catalog, is_landed)
    assert reasons[0] == "catalog_unreachable"


def test_a_catalog_that_no_configuration_names_ends_the_command(cluster, monkeypatch):
    monkeypatch.setenv("PYICEBERG_CATALOG__WRONG__TYPE", "no-type")
    words = ("lake", "--endpoint", cluster.endpoint, "--catalog", "wrong")
    process = sbp(*words, stderr=subprocess.PIPE, text=True)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 2
    assert error.splitlines()[-1] == (
        "sbp: the catalog cannot be opened: ValueError: 'no-type' is not a valid CatalogType"
    )


def trim_after(client, stream, age):
    client.update_streams([StreamUpdate(stream, properties={"lake.trim-after-ms": age})])


def noted_error(client, stream):
    (info,) = client.describe_streams([stream])
    return client.describe_properties([info.stream_id])[info.stream_id].get("lake.error")


def run_lake(cluster, open_catalog, is_done):
    """Land streams in this process until something is so."""

    async def main():
        async with AsyncClient(cluster.endpoint) as client:
            lake = Lake(client, open_catalog, NOW, look_seconds=0.05)
            running = asyncio.create_task(lake.run())
            async with asyncio.timeout(120):
                while not await asyncio.to_thread(is_done, lake):
                    assert not running.done()
                    await asyncio.sleep(0.05)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())


def test_the_console_shows_the_table_of_a_stream(cluster, client, new_streams, tmp_path):
    (stream,) = new_streams(1)
    name_table(client, stream, f"lake.{stream}")
    send(cluster, stream, 1234)
    folder = str(tmp_path / "lake")
    with serving_console(cluster.endpoint, "--warehouse", folder) as url:
        assert "The table is not there yet" in page(url, stream)
        land_until(cluster, catalog_in(folder), stream, has_landed(1234))
        send(cluster, stream, 2)
        shown = page(url, stream)
        assert "<dt>Landed below offset</dt><dd>1,234</dd>" in shown
        assert "<dt>Lag</dt><dd>2 records</dd>" in shown
        name_table(client, stream, "lake.other")
        assert "The table is not there yet" in page(url, stream)
    with serving_console(cluster.endpoint) as url:
        shown = page(url, stream)
    assert "<bdi>lake.other</bdi>" in shown
    assert "start the console with --catalog or --warehouse" in shown


def page(url, stream):
    with urllib.request.urlopen(f"{url}/streams/{stream}", timeout=60) as answer:
        return answer.read().decode()


def test_polars_reads_the_same_records_and_sums(
    cluster, client, new_streams, tmp_path, monkeypatch
):
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # or it warns that another is faster
    (prefix,) = new_streams(1)
    stream, catalog = f"{prefix}-typed", catalog_in(tmp_path)
    (info,) = client.create_streams([StreamSpec(stream)])
    columns = pa.schema([("id", pa.int64()), ("price", pa.decimal128(9, 2)), ("tag", pa.string())])
    client.evolve_schema(info.stream_id, StreamSchema.of(columns), may_change=True)
    for start in range(0, 3000, 1000):  # three commits
        rows = pa.table(
            [
                range(start, start + 1000),
                [*map(Decimal, range(start, start + 1000))],
                [None if each % 3 else f"tag {each}" for each in range(1000)],
            ],
            schema=columns,
        )
        with sbp_core.connect(cluster.endpoint) as sbp, sbp.producer(stream) as producer:
            producer.send_many(rows)
        land_until(cluster, catalog, stream, has_landed(start + 1000))
    scan = pl.scan_iceberg(catalog.load_table(f"lake.{stream}"))
    total = 3000 * 2999 // 2
    found = scan.select(
        rows=pl.len(),
        offsets=pl.col("_offset").sum(),
        ids=pl.col("id").sum(),
        price=pl.col("price").sum(),
        tags=pl.col("tag").count(),
    ).collect()
    expected = {"rows": 3000, "offsets": total, "ids": total, "price": total, "tags": 3 * 334}
    assert found.to_dicts() == [expected]
    after = scan.filter(pl.col("_offset") >= 2990).select("id").collect()["id"].sort()
    assert after.to_list() == [*range(2990, 3000)]
