"""Landing streams in tables, for tests: until something has landed, in this process."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from sbp_core.client import AsyncClient
from sbp_core.lake.catalog import open_catalog
from sbp_core.lake.landing import Landing, LandingSettings

NOW = LandingSettings(interval_seconds=0.05, idle_seconds=0.05)


def catalog_in(folder):
    """Return the catalog of `sbp lake --warehouse FOLDER`."""
    return open_catalog(None, str(folder))


async def next_change(landings):
    waits = [asyncio.create_task(each.changed.wait()) for each in landings]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait, each in zip(waits, landings, strict=True):
        wait.cancel()
        each.changed.clear()


def land_until(cluster, catalog, stream, is_done, *, count=1, table=None, **options):
    """Run landings of a stream until `is_done`, and return their last states."""

    async def main():
        async with AsyncClient(cluster.endpoint) as client:
            (info,) = await client.describe_streams([stream])
            with ThreadPoolExecutor(2) as workers:
                landings = [
                    Landing(
                        *(client, catalog, info, table or f"lake.{stream}"),
                        settings=NOW,
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


def has_landed(offset):
    return lambda states: any(each.landed_offset == offset for each in states)
