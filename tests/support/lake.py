"""Landing streams in tables, for tests: until something has landed, in this process."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from pyiceberg.catalog.sql import SqlCatalog

from sbp_core.client import AsyncClient, FetchItem
from sbp_core.lake.catalog import open_catalog
from sbp_core.lake.landing import Landing, LandingSettings
from sbp_core.records import decode_batch
from tests.support.s3 import BUCKET, KEY_ID, SECRET

NOW = LandingSettings(interval_seconds=0.05, idle_seconds=0.05)
FETCH_BYTES = 1 << 16


def catalog_in(folder):
    """Return the catalog of `sbp lake --warehouse FOLDER`."""
    return open_catalog(None, str(folder))


def catalog_on_s3(folder, server):
    """Return a catalog in a folder whose tables are on a `LocalS3`."""
    return SqlCatalog(
        "lake",
        **{
            "type": "sql",
            "uri": f"sqlite:///{folder / 'catalog.db'}",
            "warehouse": f"s3://{BUCKET}/lake",
            "s3.endpoint": f"http://127.0.0.1:{server.server_port}",
            "s3.region": "local",
            "s3.access-key-id": KEY_ID,
            "s3.secret-access-key": SECRET,
        },
    )


def environment_of(catalog):
    """Return the variables in which PyIceberg finds a catalog by its name."""
    begin = f"PYICEBERG_CATALOG__{catalog.name.upper()}__"
    names = {each: each.replace(".", "__").replace("-", "_").upper() for each in catalog.properties}
    return {begin + names[each]: value for each, value in catalog.properties.items()}


async def next_change(landings):
    waits = [asyncio.create_task(each.changed.wait()) for each in landings]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait, each in zip(waits, landings, strict=True):
        wait.cancel()
        each.changed.clear()


def land_until(cluster, catalog, stream, is_done, *, count=1, table=None, settings=NOW, **options):
    """Run landings of a stream until `is_done`, and return their last states."""

    async def main():
        async with AsyncClient(cluster.endpoint) as client:
            (info,) = await client.describe_streams([stream])
            with ThreadPoolExecutor(2) as workers:
                landings = [
                    Landing(
                        *(client, catalog, info, table or f"lake.{stream}"),
                        settings=settings,
                        workers=workers,
                        **options,
                    )
                    for _ in range(count)
                ]
                tasks = [asyncio.create_task(each.run()) for each in landings]
                async with asyncio.timeout(120):
                    while not is_done([each.state for each in landings]):
                        await next_change(landings)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            return [each.state for each in landings]

    return asyncio.run(main())


def read_all(client, stream_id):
    """Return the values of the table and the log of a plain stream, in the order of its offsets."""
    values = []
    (bounds,) = client.stream_bounds([stream_id])
    position = bounds.start_offset
    assert position == 0
    while position < bounds.next_offset:
        item = FetchItem(stream_id, position, bounds.next_offset, FETCH_BYTES)
        (outcome,) = client.fetch([item])
        assert outcome.error is None
        for envelope in outcome.batches.envelopes():
            skipped = position - envelope.base_offset
            assert 0 <= skipped < envelope.record_count
            values += decode_batch(envelope)["value"].to_pylist()[skipped:]
            position = envelope.end_offset
    return values


def has_landed(offset):
    return lambda states: any(each.landed_offset == offset for each in states)
