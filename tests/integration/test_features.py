"""The features of the first HEARTBEAT against real servers."""

import asyncio
import logging

import pytest

from sbp_core import limits
from sbp_core.client import (
    AppendItem,
    AsyncClient,
    CallTiming,
    Client,
    Connecting,
    FetchItem,
    RequestedFeatures,
    RetryPolicy,
    StreamSpec,
)
from sbp_core.errors import UnsupportedError
from sbp_core.session.negotiation import NO_FEATURES, Agreement, offer
from sbp_core.wire.headers import Feature, HeartbeatRequest, ReadEntriesRequest, ReplicateRequest
from sbp_core.wire.opcodes import Opcode
from tests.support.cluster import core_cluster, rows_batch, values_of
from tests.support.wire import RawClient

EVERYTHING = RequestedFeatures(compression=True, isolation="backfill", handler_duration=True)
VALUES = [b"value %d of many that are alike" % number for number in range(20_000)]


def run(folder, body):
    async def main():
        async with core_cluster(folder) as cluster:
            await asyncio.wait_for(body(cluster), 60)

    asyncio.run(main())


def servers_of(cluster):
    return [cluster.pd.endpoint, cluster.server.endpoint]


def test_both_servers_accept_what_they_know(tmp_path):
    async def body(cluster):
        for endpoint in servers_of(cluster):
            async with RawClient.at(endpoint) as client:
                agreement = await client.greet(EVERYTHING)
                assert agreement == Agreement(
                    has_compression=True,
                    has_deadline=True,
                    connection_id=agreement.connection_id,
                    has_handler_duration=True,
                    isolation="backfill",
                    has_header_checksum=True,
                    has_idempotent_append=True,
                    has_transactions=True,
                    has_part_columns=True,
                    has_schemas=True,
                    has_groups=True,
                    has_compare_and_set=True,
                    replication_version=1,
                )
                echo = await client.call(Opcode.PING, b"header", [b"p" * 10_000])
                assert bytes(echo[0].payload) == b"p" * 10_000

    run(tmp_path, body)


def test_each_connection_has_a_number_of_its_own_and_the_log_shows_it(tmp_path, caplog):
    caplog.set_level(logging.DEBUG, logger="sbp_core.server")

    async def body(cluster):
        numbers = []
        for _ in range(3):
            async with RawClient.at(cluster.pd.endpoint) as client:
                numbers.append((await client.greet(NO_FEATURES)).connection_id)
        assert len(set(numbers)) == 3
        await cluster.pd.stop()
        for number in numbers:
            assert f"connection {number}:" in caplog.text

    run(tmp_path, body)


def test_only_the_first_offer_counts(tmp_path):
    async def body(cluster):
        async with RawClient.at(cluster.pd.endpoint) as client:
            await client.greet(NO_FEATURES)
            again = HeartbeatRequest(features=offer(EVERYTHING))
            (answer,) = await client.ask(Opcode.HEARTBEAT, again)
            assert [each.name for each in answer.features] == ["record-bytes"]
            await client.call(Opcode.PING)

    run(tmp_path, body)


@pytest.mark.parametrize("features", [(), (Feature("replication", b"\x63"),)])
def test_nothing_is_replicated_without_a_version_that_both_ends_know(tmp_path, features):
    async def body(cluster):
        async with RawClient.at(cluster.server.endpoint) as client:
            await client.ask(Opcode.HEARTBEAT, HeartbeatRequest(features=features))
            for opcode, request in (
                (Opcode.REPLICATE, ReplicateRequest()),
                (Opcode.READ_ENTRIES, ReadEntriesRequest()),
            ):
                with pytest.raises(UnsupportedError, match="upgrade the older server"):
                    await client.ask(opcode, request)
        async with RawClient.at(cluster.server.endpoint) as client:
            await client.greet(NO_FEATURES)
            (answer,) = await client.ask(Opcode.REPLICATE, ReplicateRequest())
            assert answer.replicate_responses == ()

    run(tmp_path, body)


def test_an_append_whose_deadline_passes_is_stored_or_not_but_never_torn(tmp_path):
    async def body(cluster):
        await cluster.client.create_streams([StreamSpec("s")])
        once = RetryPolicy(budget_ms=0)
        async with AsyncClient(cluster.pd.endpoint, timeout_ms=2, retry=once) as hasty:
            batches = [rows_batch([b"%d" % number]) for number in range(50)]
            await asyncio.gather(
                *(hasty.append([AppendItem(1, batch)]) for batch in batches),
                return_exceptions=True,
            )
        await cluster.client.append([AppendItem(1, rows_batch([b"last"]))])
        records = await cluster.read(1)
        assert [offset for offset, _ in records] == list(range(len(records)))
        assert records[-1][1] == b"last"

    run(tmp_path, body)


def test_a_client_reads_what_it_wrote_with_every_feature(tmp_path):
    timings: list[CallTiming] = []

    async def body(cluster):
        (stream,) = await cluster.client.create_streams([StreamSpec("s")])
        connecting = Connecting(features=EVERYTHING, on_timing=timings.append)
        item = AppendItem(stream.stream_id, rows_batch(VALUES))
        wanted = FetchItem(stream.stream_id, 0, None, limits.BATCH_BYTES_MAX)
        async with AsyncClient(cluster.pd.endpoint, connecting=connecting) as client:
            await client.append([item])
            (outcome,) = [each async for each in client.fetch([wanted])]
            assert [value for _, value in values_of(outcome.payload)] == VALUES
        assert await asyncio.to_thread(round_trip, cluster.pd.endpoint, connecting) == 2 * VALUES

    def round_trip(endpoint, connecting):
        with Client(endpoint, connecting=connecting) as client:
            client.append([AppendItem(1, rows_batch(VALUES))])
            (outcome,) = client.fetch([FetchItem(1, 0, None, limits.BATCH_BYTES_MAX)])
            return [value for _, value in values_of(outcome.payload)]

    run(tmp_path, body)
    assert {each.operation for each in timings} == {"LIST_RANGES", "APPEND", "FETCH"}
    for timing in timings:
        if timing.server_ms is not None:
            assert 0 <= timing.server_ms <= timing.round_trip_ms
    assert any(each.server_ms is not None for each in timings)
