"""The placement driver over a real connection: servers, ranges, start and stop."""

import asyncio

import pytest
from sqlalchemy import text

from sbp_core import limits
from sbp_core.errors import (
    StatusCode,
)
from sbp_core.wire.headers import (
    CreateRangeRequest,
    RangeCriteria,
    RangeServer,
    Stream,
)
from sbp_core.wire.opcodes import Opcode
from tests.support.metadata import altered_metadata
from tests.support.placement_driver import by_server, by_stream, codes, runner


@pytest.fixture
def run(tmp_path):
    return runner(tmp_path / "data")


# HEARTBEAT, ALLOCATE_ID, DESCRIBE_PD_CLUSTER


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


def test_a_server_of_an_earlier_version_needs_no_secret_and_keeps_its_place(run):
    async def test(cluster):
        server_id = await cluster.allocate()

        def forget(store):
            with store.database.transaction():
                store.database.change(text("DELETE FROM server_secrets"))

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


def test_calls_may_overlap(run):
    async def test(cluster):
        await cluster.add_server()
        results = await asyncio.gather(*[cluster.create(Stream(name="one")) for _ in range(50)])
        assert sorted(codes([each for (each,) in results])) == [0] + [StatusCode.CONFLICT] * 49

    run(test)
