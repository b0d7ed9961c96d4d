"""`sbp serve` on metadata that were put back to an older copy, beside a log that went on."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from sbp_core.client import AppendItem, AsyncClient, Client, FetchItem, StreamSpec
from sbp_core.errors import StatusCode, StatusError
from sbp_core.pd import PlacementDriver
from sbp_core.rangeserver.server import RangeServer
from sbp_core.rangeserver.server_id import DRIVER_COMMIT_NAME
from sbp_core.settings.server_settings import PlacementDriverSettings, RangeServerSettings
from sbp_core.wire.headers import (
    DescribeRangesRequest,
    DescribeRangesResponse,
    RangeId,
    decode_header,
)
from sbp_core.wire.opcodes import Opcode
from sbp_spark.reading.offsets import SourceOffset, StreamChangedError
from sbp_spark.row_schema import source_schema
from sbp_spark.streaming.stream_reader import SbpStreamReader
from tests.support.cluster import rows_batch, values_of
from tests.support.warm import WarmCluster

WAIT_SECONDS = 30


@pytest.fixture
def cluster(tmp_path):
    made = WarmCluster(tmp_path / "data", options=["--config", str(tmp_path / "server.toml")])
    (tmp_path / "server.toml").write_text("[range_server]\nheartbeat_interval_ms = 50\n")
    yield made
    with contextlib.suppress(RuntimeError):
        made.kill()


def create(cluster, name, *values):
    with Client(cluster.endpoint) as client:
        (stream,) = client.create_streams([StreamSpec(name)])
        for value in values:
            client.append([AppendItem(stream.stream_id, rows_batch([value]))])
        return stream.stream_id


def read(cluster, stream_id):
    with Client(cluster.endpoint) as client:
        (outcome,) = client.fetch([FetchItem(stream_id, 0, None, 1 << 20)])
        assert outcome.error is None
        return [value for _, value in values_of(outcome.payload)]


def test_a_stream_that_got_the_id_of_another_one_is_refused_where_that_is(cluster, tmp_path):
    """No server knows the commit here, so only the time of creation distinguishes the two."""
    driver, copy = cluster.data_dir / "placement-driver", tmp_path / "copy"
    memory = cluster.data_dir / "range-server-0" / DRIVER_COMMIT_NAME
    cluster.start()
    create(cluster, "a", b"a1")
    cluster.stop()
    shutil.copytree(driver, copy)
    cluster.start()
    b = create(cluster, "b", b"b1")
    cluster.stop()
    shutil.rmtree(driver)
    shutil.copytree(copy, driver)
    memory.unlink()
    cluster.start()
    with Client(cluster.endpoint) as client:
        (c,) = client.create_streams([StreamSpec("c")])
        assert c.stream_id == b
        for start in range(2):
            if start > 0:
                cluster.restart()
            deadline = time.monotonic() + WAIT_SECONDS
            while cluster.log_path.read_text().count("stream refused") <= start:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            (fetched,) = client.fetch([FetchItem(b, 0, None, 1 << 20)])
            assert isinstance(fetched.error, StatusError)
            assert fetched.error.code == StatusCode.CONFLICT
            assert str(c.created_at_ms) in str(fetched.error)
            with pytest.raises(StatusError, match=str(c.created_at_ms)):
                client.append([AppendItem(b, rows_batch([b"c1"]))])
        client.delete_streams([b])
        (d,) = client.create_streams([StreamSpec("d")])
        client.append([AppendItem(d.stream_id, rows_batch([b"d1"]))])
        assert read(cluster, d.stream_id) == [b"d1"]
    cluster.stop()


@contextlib.asynccontextmanager
async def placement_driver(folder, port=0):
    driver = PlacementDriver(PlacementDriverSettings(data_dir=folder, port=port))
    await driver.start()
    try:
        yield driver
    finally:
        await driver.stop()


@contextlib.asynccontextmanager
async def range_server(folder, driver, port=0):
    server = RangeServer(
        RangeServerSettings(
            data_dir=folder, placement_driver=driver.endpoint, port=port, heartbeat_interval_ms=50
        )
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def one_server(tmp_path):
    async with (
        placement_driver(tmp_path / "pd") as driver,
        range_server(tmp_path / "one", driver),
        AsyncClient(driver.endpoint) as client,
    ):
        yield client


async def put_back_while_a_server_is_down(tmp_path):
    """The metadata lose stream 2 of the first server, then the second one gets another stream 2."""
    data = tmp_path / "pd"
    async with one_server(tmp_path) as client:
        await client.create_streams([StreamSpec("a")])
    shutil.copytree(data, tmp_path / "copy")
    async with one_server(tmp_path) as client:
        (b,) = await client.create_streams([StreamSpec("b")])
        await client.append([AppendItem(b.stream_id, rows_batch([b"b1"]))])
    shutil.rmtree(data)
    shutil.copytree(tmp_path / "copy", data)
    return b


def test_a_server_that_was_down_does_not_serve_its_records_as_those_of_another_stream(tmp_path):
    async def main():
        b = await put_back_while_a_server_is_down(tmp_path)
        (tmp_path / "one" / DRIVER_COMMIT_NAME).unlink()
        async with (
            placement_driver(tmp_path / "pd") as driver,
            range_server(tmp_path / "two", driver),
            AsyncClient(driver.endpoint) as client,
        ):
            (c,) = await client.create_streams([StreamSpec("c", retention_bytes=1)])
            assert c.stream_id == b.stream_id
            await client.append([AppendItem(c.stream_id, rows_batch([b"c1"]))])
            async with range_server(tmp_path / "one", driver) as one:
                await refused(one.endpoint, c)
                item = FetchItem(c.stream_id, 0, None, 1 << 20)
                (outcome,) = [each async for each in client.fetch([item])]
                assert [value for _, value in values_of(outcome.payload)] == [b"c1"]

    async def refused(endpoint, stream):
        async with AsyncClient(endpoint) as client:
            while True:
                request = DescribeRangesRequest(1000, (RangeId(stream.stream_id, 0),))
                (frame,) = await client.call(
                    endpoint, Opcode.DESCRIBE_RANGE, request, timeout_ms=5000
                )
                answer = decode_header(DescribeRangesResponse, frame.header)
                status = answer.describe_responses[0].status
                if status.code == StatusCode.CONFLICT:
                    assert str(stream.created_at_ms) in status.message
                    return
                await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(main(), WAIT_SECONDS))


def query(cluster, **options):
    """The driver side of a streaming query that reads stream a."""
    given = {"endpoint": cluster.endpoint, "streams": "a", "startingOffsets": "earliest"}
    return SbpStreamReader(given | options, source_schema(include_headers=False))


def append(cluster, stream_id, *values):
    with Client(cluster.endpoint) as client:
        for value in values:
            client.append([AppendItem(stream_id, rows_batch([value]))])


@pytest.mark.parametrize("is_hot", [False, True])
def test_a_query_misses_what_a_data_directory_lost_that_was_put_back_and_overtaken(
    cluster, tmp_path, is_hot, caplog
):
    """Metadata and logs are of one copy, so no server reports a difference."""
    cluster.start()
    a = create(cluster, "a", b"a0", b"a1")
    if not is_hot:
        cluster.stop()
    shutil.copytree(cluster.data_dir, tmp_path / "copy")
    if not is_hot:
        cluster.start()
    append(cluster, a, b"a2", b"a3")
    create(cluster, "another")
    running = query(cluster)
    end = running.latestOffset(running.initialOffset(), ReadAllAvailable())
    assert SourceOffset.from_json(end).next_offsets() == {a: 4}
    cluster.stop()
    shutil.rmtree(cluster.data_dir)
    shutil.copytree(tmp_path / "copy", cluster.data_dir)
    cluster.start()
    append(cluster, a, b"b2", b"b3", b"b4")
    assert read(cluster, a) == [b"a0", b"a1", b"b2", b"b3", b"b4"]
    for each in (running, query(cluster)):
        with pytest.raises(StreamChangedError, match="was restored from an older copy"):
            each.latestOffset(end, ReadAllAvailable())
        with pytest.raises(StreamChangedError, match="was restored from an older copy"):
            each.partitions(each.initialOffset(), end)

    lenient = query(cluster, failOnDataLoss="false")
    after = lenient.latestOffset(end, ReadAllAvailable())
    assert SourceOffset.from_json(after).next_offsets() == {a: 5}
    assert caplog.text.count("data loss: the placement driver's metadata never had commit") == 1
    assert query(cluster).latestOffset(after, ReadAllAvailable()) == after
    cluster.restart()
    assert query(cluster).latestOffset(after, ReadAllAvailable()) == after
    cluster.stop()
