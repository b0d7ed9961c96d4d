"""A metadata store that fails for good ends the placement driver, loudly."""

import asyncio

from sbp_core.errors import StatusCode
from sbp_core.pd import PlacementDriver
from sbp_core.settings.server_settings import PlacementDriverSettings
from sbp_core.wire.headers import DescribeStreamsRequest, decode_system_error
from sbp_core.wire.opcodes import Opcode
from tests.support.metadata import failing_disk
from tests.support.wire import RawClient


def test_a_database_that_cannot_be_read_is_reported_to_the_owner_and_to_clients(tmp_path):
    async def main():
        driver = PlacementDriver(PlacementDriverSettings(data_dir=tmp_path, port=0))
        endpoint = await driver.start()
        try:
            assert not driver.failed.done()
            async with RawClient.at(endpoint) as client:
                request = DescribeStreamsRequest(all_streams=True)
                with failing_disk(driver._store._store):
                    (frame,) = await client.call(Opcode.DESCRIBE_STREAMS, request)
            status = decode_system_error(frame.header).status
            assert status.code == StatusCode.PD_INTERNAL
            assert "metadata store failed" in str(await driver.failed)
        finally:
            await driver.stop()

    asyncio.run(asyncio.wait_for(main(), 30))
