"""A metadata store that fails for good ends the placement driver, loudly."""

import asyncio
import sqlite3

from sbp_core.errors import StatusCode
from sbp_core.pd.driver import PlacementDriver, PlacementDriverSettings
from sbp_core.wire.headers import DescribeStreamsRequest, decode_system_error
from sbp_core.wire.opcodes import Opcode
from tests.support.wire import RawClient


class Broken:
    """A connection whose file cannot be read."""

    in_transaction = False

    def execute(self, sql, values):
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_READ
        raise error


def test_a_database_that_cannot_be_read_is_reported_to_the_owner_and_to_clients(tmp_path):
    async def main():
        driver = PlacementDriver(PlacementDriverSettings(data_dir=tmp_path, port=0))
        endpoint = await driver.start()
        try:
            assert not driver.failed.done()
            store = driver._store._store
            connection, store._database._connection = store._database._connection, Broken()
            async with RawClient.at(endpoint) as client:
                request = DescribeStreamsRequest(all_streams=True)
                (frame,) = await client.call(Opcode.DESCRIBE_STREAMS, request)
            store._database._connection = connection
            status = decode_system_error(frame.header).status
            assert status.code == StatusCode.PD_INTERNAL
            assert "metadata store failed" in str(await driver.failed)
        finally:
            await driver.stop()

    asyncio.run(asyncio.wait_for(main(), 30))
