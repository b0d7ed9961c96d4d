"""A range server that is gone gets no new ranges; one that is back gets them again."""

import asyncio
from collections import Counter

from sbp_core.client import AppendItem, AsyncClient, StreamSpec
from sbp_core.pd import PlacementDriver
from sbp_core.settings.server_settings import PlacementDriverSettings
from tests.support.cluster import rows_batch
from tests.support.machines import RangeServerProcess

INTERVAL_MS = 50
TIMEOUT_MS = 2_000


async def create(client, count, prefix):
    specs = [StreamSpec(f"{prefix}-{number}") for number in range(count)]
    return [info.stream_id for info in await client.create_streams(specs)]


async def servers_of(client, stream_ids):
    placed = await client.list_ranges(stream_ids)
    return Counter(pieces[-1].servers[0] for pieces in placed.values())


async def until_live(driver, count):
    async with asyncio.timeout(30):
        while driver.live_server_count != count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_a_killed_range_server_gets_no_new_ranges_until_it_is_back(tmp_path):
    async def body():
        driver = PlacementDriver(
            PlacementDriverSettings(
                data_dir=tmp_path / "pd", port=0, heartbeat_timeout_ms=TIMEOUT_MS
            )
        )
        endpoint = await driver.start()
        kept, killed = (
            RangeServerProcess(tmp_path / name, endpoint, heartbeat_interval_ms=INTERVAL_MS)
            for name in ("kept", "killed")
        )
        try:
            async with kept, killed, AsyncClient(endpoint) as client:
                before = await create(client, 4, "before")
                assert await servers_of(client, before) == {kept.endpoint: 2, killed.endpoint: 2}
                await killed.kill()
                await until_live(driver, 1)
                during = await create(client, 10, "during")
                assert await servers_of(client, during) == {kept.endpoint: 10}
                placed = (await client.list_ranges(before)).items()
                hosted = [each for each, (piece,) in placed if piece.servers[0] == kept.endpoint]
                opened = await client.seal_streams(hosted)
                assert {piece.servers[0] for piece in opened.values()} == {kept.endpoint}
                address = killed.endpoint
                await killed.start()
                assert killed.endpoint == address
                await until_live(driver, 2)
                after = await create(client, 10, "after")
                assert await servers_of(client, after) == {killed.endpoint: 10}
                left = [each for each in before if each not in hosted]
                opened = await client.seal_streams(left)  # the connection from before is lost
                assert [opened[each].range_index for each in left] == [1, 1]
                batches = [AppendItem(each, rows_batch([b"x"])) for each in (*before, *after)]
                outcomes = await client.append(batches)
                assert [outcome.base_offset for outcome in outcomes] == [0] * 14
        finally:
            await driver.stop()

    asyncio.run(asyncio.wait_for(body(), 120))
