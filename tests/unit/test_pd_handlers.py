"""The placement driver over a real connection: servers, ranges, start and stop."""

import asyncio

import pytest
from msgspec.structs import replace

from sbp_core import limits
from sbp_core.errors import (
    ConfigurationError,
    StatusCode,
    StatusError,
    UnsupportedError,
)
from sbp_core.pd import PlacementDriver, PlacementDriverSettings
from sbp_core.wire.headers import (
    ClientRole,
    CreateRangeRequest,
    DescribePlacementDriverClusterRequest,
    HeartbeatRequest,
    RangeCriteria,
    RangeServer,
    Stream,
)
from sbp_core.wire.opcodes import Opcode
from tests.support.metadata import altered_metadata
from tests.support.placement_driver import by_server, by_stream, codes, runner
from tests.support.wire import RawClient


@pytest.fixture
def run(tmp_path):
    return runner(tmp_path / "data")


# HEARTBEAT, ALLOCATE_ID, DESCRIBE_PD_CLUSTER


def test_a_client_gets_the_cluster(run):
    async def test(cluster):
        request = HeartbeatRequest(client_id="c1", client_role=ClientRole.CLIENT)
        (answer,) = await cluster.client.ask(Opcode.HEARTBEAT, request)
        assert (answer.client_id, answer.client_role) == ("c1", ClientRole.CLIENT)
        assert answer.status.code == 0
        assert len(answer.cluster_id) == 36
        assert cluster.driver.live_server_count == 0

    run(test)


def test_a_range_server_lives_from_heartbeat_to_heartbeat(run):
    async def test(cluster):
        server_id = await cluster.allocate()
        assert cluster.driver.live_server_count == 0
        answer = await cluster.beat(server_id)
        assert answer.status.code == 0
        assert answer.range_server.server_id == server_id
        for _ in range(5):
            cluster.clock.advance(limits.HEARTBEAT_TIMEOUT_MS - 1)
            await cluster.beat(server_id, cluster_id=answer.cluster_id)
            assert cluster.driver.live_server_count == 1
        cluster.clock.advance(limits.HEARTBEAT_TIMEOUT_MS)
        assert cluster.driver.live_server_count == 0

    run(test)


def test_a_server_of_another_cluster_is_refused_and_told_to_keep_its_data(run):
    async def test(cluster):
        server_id = await cluster.allocate()
        foreign = await cluster.beat(server_id, cluster_id="an\nother")
        assert foreign.status.code == StatusCode.INVALID_REQUEST
        assert foreign.cluster_id in foreign.status.message
        assert "'an\\nother'" in foreign.status.message
        for unknown_id in (-1, 0, server_id + 1):
            unknown = await cluster.beat(unknown_id)
            assert unknown.status.code == StatusCode.INVALID_REQUEST
            assert "never allocated" in unknown.status.message
            assert "No data was changed" in unknown.status.message
        assert cluster.driver.live_server_count == 0

    run(test)


@pytest.mark.parametrize(
    "address",
    [
        *("", "localhost", "10.0.0.1", ":10911", "h:0", "h:65536", "h:", "::1:10911", "[::1]"),
        *(
            "h:1\n",
            "h\x00:1",
            "\u202eh:1",
            "a b:1",
            "h:-1",
            "h:\u0661",
            "[h:1]:1",
            "h" * 300 + ":1",
        ),
    ],
)
def test_a_server_must_announce_host_and_port(run, address):
    async def test(cluster):
        answer = await cluster.beat(await cluster.allocate(), address)
        assert answer.status.code == StatusCode.INVALID_REQUEST
        assert answer.status.message.isprintable()
        assert len(answer.status.message) < 1000
        assert cluster.driver.live_server_count == 0

    run(test)


def test_a_range_server_without_its_table_is_refused(run):
    async def test(cluster):
        request = HeartbeatRequest(client_role=ClientRole.RANGE_SERVER)
        (answer,) = await cluster.client.ask(Opcode.HEARTBEAT, request)
        assert answer.status.code == StatusCode.INVALID_REQUEST

    run(test)


def test_a_server_of_an_earlier_version_needs_no_secret_and_keeps_its_place(run):
    async def test(cluster):
        server_id = await cluster.allocate()

        def forget(store):
            with store.servers._transaction():
                store._database._execute("DELETE FROM server_secrets")

        await cluster.driver._store.run(forget)
        assert (await cluster.beat(server_id, "h:1")).status.code == 0
        moved = await cluster.beat(server_id, "h:2")
        assert moved.status.code == StatusCode.CONFLICT
        assert "15000 ms" in moved.status.message
        unnamed = await cluster.beat(server_id, "h:1", cluster_id=None)
        assert unnamed.status.code == StatusCode.INVALID_REQUEST
        cluster.clock.advance(limits.HEARTBEAT_TIMEOUT_MS)
        assert (await cluster.beat(server_id, "h:2")).status.code == 0
        assert (await cluster.beat(server_id, "h:2", server_secret="mine")).status.code == 0
        for secret in (None, "other"):
            refused = await cluster.beat(server_id, "h:2", server_secret=secret)
            assert refused.status.code == StatusCode.PERMISSION_DENIED
            assert "mine" not in refused.status.message

    run(test)


@pytest.mark.parametrize("address", ["h:1", "10.0.0.1:10911", "[::1]:65535", "a-b.example.org:80"])
def test_addresses_are_passed_on(run, address):
    async def test(cluster):
        await cluster.add_server(address)
        (result,) = await cluster.create(Stream())
        assert result.stream_range.servers[0].server.advertise_addr == address

    run(test)


def test_the_cluster_is_one_leader(run):
    async def test(cluster):
        (answer,) = await cluster.client.ask(
            Opcode.DESCRIBE_PD_CLUSTER, DescribePlacementDriverClusterRequest()
        )
        (node,) = answer.cluster.nodes
        assert (node.advertise_addr, node.is_leader) == (cluster.driver.endpoint, True)
        assert node.name

    run(test)


# LIST_RANGES


def test_ranges_are_listed_by_stream_by_server_and_by_both(run):
    async def test(cluster):
        one, two = await cluster.add_server("h:1"), await cluster.add_server("h:2")
        a, b, c = [await cluster.created_id() for _ in range(3)]
        (answer,) = await cluster.list(
            by_stream(b),
            by_server(one),
            by_server(two, a),
            by_server(one, a),
            by_stream(99),
            RangeCriteria(),
            by_server(77),
            RangeCriteria(range_server=RangeServer(advertise_addr="h:1")),
        )
        results = answer.list_responses
        bad, missing = StatusCode.INVALID_REQUEST, StatusCode.NOT_FOUND
        assert codes(results) == [0, 0, 0, 0, missing, bad, 0, bad]
        listed = [[each.stream_id for each in result.ranges] for result in results]
        assert listed == [[b], [a, c], [], [a], [], [], [], []]
        assert [result.stream_id for result in results] == [b, -1, a, a, 99, -1, -1, -1]
        assert results[0].range_owner.stream_id == b
        assert results[1].range_owner.range_server == RangeServer(one, "h:1")

    run(test)


def test_a_server_with_many_ranges_has_several_results(run):
    async def test(cluster):
        server_id = await cluster.add_server()
        count = 2 * limits.RESULTS_PER_FRAME
        created = await cluster.create(*[Stream()] * count)
        answers = await cluster.list(by_server(server_id), by_stream(1))
        results = [result for answer in answers for result in answer.list_responses]
        assert all(
            sum(len(result.ranges) for result in answer.list_responses) <= limits.RESULTS_PER_FRAME
            for answer in answers
        )
        *mine, last = results
        assert {result.range_owner.range_server.server_id for result in mine} == {server_id}
        listed = [each.stream_id for result in mine for each in result.ranges]
        assert listed == [result.stream.stream_id for result in created]
        assert last.range_owner.range_server is None
        assert [each.stream_id for each in last.ranges] == [1]

    run(test)


def test_nothing_is_listed_while_nothing_changed(run):
    async def test(cluster):
        server_id = await cluster.add_server()
        a = await cluster.created_id()
        (full,) = await cluster.list(by_stream(a))
        (same,) = await cluster.list(by_stream(a), since=full.revision)
        assert (same.list_responses, same.revision) == ((), full.revision)
        for change in (
            cluster.created_id(),
            cluster.delete(a + 1),
            cluster.beat(server_id, "127.0.0.1:2"),
        ):
            await change
            (fresh,) = await cluster.list(by_stream(a), since=full.revision)
            assert fresh.revision > full.revision
            assert len(fresh.list_responses) == 1
            full = fresh
        assert full.list_responses[0].ranges[0].servers[0].server.advertise_addr == "127.0.0.1:2"

    run(test)


# CREATE_RANGE


def test_the_next_range_follows_a_sealed_one(run, tmp_path):
    path = tmp_path / "data"

    async def prepare(cluster):
        await cluster.add_server()
        return await cluster.created_id(), await cluster.created_id()

    sealed, bare = run(prepare)
    with altered_metadata(path) as connection:
        connection.execute("UPDATE ranges SET end_offset = 42 WHERE stream_id = ?", (sealed,))
        connection.execute("DELETE FROM ranges WHERE stream_id = ?", (bare,))
        connection.execute("DELETE FROM replicas WHERE stream_id = ?", (bare,))

    async def test(cluster):
        none = await cluster.create_range(stream_id=sealed)
        assert none.status.code == StatusCode.PD_NO_AVAILABLE_RS
        await cluster.beat(1)
        wrong = await cluster.create_range(stream_id=sealed, range_index=2)
        assert wrong.status.code == StatusCode.INVALID_REQUEST
        made = (await cluster.create_range(stream_id=sealed, range_index=1)).stream_range
        assert (made.range_index, made.start_offset, made.end_offset) == (1, 42, -1)
        assert made.next_offset == 42
        assert made.servers[0].server.advertise_addr == "127.0.0.1:10911"
        listed = (await cluster.list_one(by_stream(sealed))).ranges
        assert [(each.start_offset, each.end_offset) for each in listed] == [(0, 42), (42, -1)]
        assert listed[0].next_offset == 42
        assert listed[1] == made
        first = (await cluster.create_range(stream_id=bare)).stream_range
        assert (first.range_index, first.start_offset) == (0, 0)

    run(test)


def test_an_open_range_must_be_sealed_first(run):
    async def test(cluster):
        await cluster.add_server()
        a = await cluster.created_id()
        refused = await cluster.create_range(stream_id=a)
        assert refused.status.code == StatusCode.CREATE_RANGE_BEFORE_SEAL
        assert (await cluster.create_range(stream_id=99)).status.code == StatusCode.NOT_FOUND
        (empty,) = await cluster.client.ask(Opcode.CREATE_RANGE, CreateRangeRequest())
        assert empty.status.code == StatusCode.INVALID_REQUEST

    run(test)


# The server


@pytest.mark.parametrize(
    "opcode",
    [Opcode.APPEND, Opcode.FETCH, Opcode.DESCRIBE_RANGE, Opcode.SYNC_RANGES],
)
def test_an_opcode_that_is_not_served_is_refused_by_name(run, opcode):
    async def test(cluster):
        with pytest.raises(UnsupportedError, match="placement driver"):
            await cluster.client.ask(opcode)

    run(test)


def test_a_header_that_is_none_fails_its_call_only(run):
    async def test(cluster):
        for opcode in (Opcode.HEARTBEAT, Opcode.CREATE_STREAMS, Opcode.LIST_RANGES):
            for data in (b"", b"\xff" * 40):
                with pytest.raises(StatusError):
                    await cluster.client.ask(opcode, data)
        assert await cluster.allocate() > 0

    run(test)


def test_a_restart_keeps_everything_but_who_is_alive(run):
    async def first(cluster):
        server_id = await cluster.add_server("h:1")
        stream_id = await cluster.created_id("a")
        return server_id, stream_id, (await cluster.list(by_stream(stream_id)))[0]

    server_id, stream_id, before = run(first)

    async def second(cluster):
        assert cluster.driver.live_server_count == 0
        (after,) = await cluster.list(by_stream(stream_id))
        assert after.store_life != before.store_life
        assert (
            replace(after, store_life=before.store_life, store_commit=before.store_commit) == before
        )
        assert (await cluster.beat(server_id, "h:1")).status.code == 0
        assert cluster.driver.live_server_count == 1
        assert await cluster.allocate() > server_id
        assert await cluster.created_id() > stream_id

    run(second)


def test_calls_may_overlap(run):
    async def test(cluster):
        await cluster.add_server()
        results = await asyncio.gather(*[cluster.create(Stream(name="one")) for _ in range(50)])
        assert sorted(codes([each for (each,) in results])) == [0] + [StatusCode.CONFLICT] * 49

    run(test)


def test_stopping_says_goodbye_and_frees_the_directory(tmp_path):
    async def main():
        settings = PlacementDriverSettings(data_dir=tmp_path, port=0)
        driver = PlacementDriver(settings)
        async with RawClient.at(await driver.start()) as client:
            await client.call(Opcode.PING)
            other = PlacementDriver(settings)
            with pytest.raises(ConfigurationError, match="in use"):
                await other.start()
            await driver.stop()
            await client.wait_closed()
            assert client.was_sent_away
        await driver.stop()
        await other.start()
        await other.stop()

    asyncio.run(main())


def test_a_taken_port_is_said_and_leaves_the_directory_free(tmp_path):
    async def main():
        first = PlacementDriver(PlacementDriverSettings(data_dir=tmp_path / "1", port=0))
        endpoint = await first.start()
        port = int(endpoint.rpartition(":")[2])
        for _ in range(2):
            second = PlacementDriver(PlacementDriverSettings(data_dir=tmp_path / "2", port=port))
            with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1:{port}"):
                await second.start()
        await first.stop()

    asyncio.run(main())


def test_the_advertised_address_is_returned(tmp_path):
    async def main():
        settings = PlacementDriverSettings(
            data_dir=tmp_path, port=0, advertise_host="pd.example.org", advertise_port=80
        )
        driver = PlacementDriver(settings)
        with pytest.raises(RuntimeError):
            _ = driver.endpoint
        endpoint = await driver.start()
        assert endpoint == driver.endpoint == "pd.example.org:80"
        assert driver.port not in {0, 80}
        await driver.stop()

    asyncio.run(main())
