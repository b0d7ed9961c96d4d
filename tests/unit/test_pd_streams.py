"""The placement driver over a real connection: creating, describing and deleting streams."""

import pytest

from sbp_core import limits
from sbp_core.errors import InvalidRequestError, StatusCode
from sbp_core.wire.headers import (
    CreateStreamsRequest,
    DeleteStreamsRequest,
    DescribeStreamsRequest,
    ListRangesRequest,
    RangeServer,
    Stream,
)
from sbp_core.wire.opcodes import Opcode
from tests.support.placement_driver import by_stream, codes, runner


@pytest.fixture
def run(tmp_path):
    return runner(tmp_path / "data")


# CREATE_STREAMS


def test_a_created_stream_comes_with_its_range(run):
    async def test(cluster):
        server_id = await cluster.add_server("10.0.0.1:10911")
        (result,) = await cluster.create(Stream(name="orders", retention_period_ms=60_000))
        stream, first = result.stream, result.stream_range
        assert (stream.name, stream.replica_nums, stream.ack_count) == ("orders", 1, 1)
        assert stream.retention_period_ms == 60_000
        assert stream.created_at_ms == cluster.clock.wall_ms()
        assert (first.stream_id, first.range_index) == (stream.stream_id, 0)
        assert (first.start_offset, first.end_offset, first.next_offset) == (0, -1, 0)
        assert (first.replica_count, first.ack_count, first.epoch) == (1, 1, 0)
        (replica,) = first.servers
        assert replica.is_primary
        assert replica.server == RangeServer(server_id=server_id, advertise_addr="10.0.0.1:10911")

    run(test)


def test_without_a_live_server_nothing_is_created(run):
    async def test(cluster):
        server_id = await cluster.add_server()
        cluster.clock.advance(limits.HEARTBEAT_TIMEOUT_MS)
        results = await cluster.create(Stream(name="a"), Stream(replica_nums=2))
        assert codes(results) == [StatusCode.PD_NO_AVAILABLE_RS] * 2
        assert await cluster.describe(all_streams=True) == []
        await cluster.beat(server_id)
        assert codes(await cluster.create(Stream(name="a"))) == [0]

    run(test)


def test_ranges_are_spread_over_the_servers(run):
    async def test(cluster):
        first = await cluster.add_server("h:1")
        second = await cluster.add_server("h:2")
        results = await cluster.create(*[Stream()] * 3)
        hosts = [result.stream_range.servers[0].server.server_id for result in results]
        assert hosts == [first, second, first]
        (result,) = await cluster.create(Stream())
        assert result.stream_range.servers[0].server.server_id == second

    run(test)


def test_wrong_items_fail_alone(run):
    async def test(cluster):
        await cluster.add_server()
        results = await cluster.create(
            Stream(name="a"),
            Stream(name="a"),
            Stream(replica_nums=limits.REPLICAS_MAX + 1),
            Stream(replica_nums=-1),
            Stream(ack_count=2),
            Stream(retention_period_ms=-1),
            Stream(replica_nums=1, ack_count=1),
        )
        bad = StatusCode.INVALID_REQUEST
        assert codes(results) == [0, StatusCode.CONFLICT, bad, bad, bad, bad, 0]
        assert "replica_nums must be 1 to 7, or 0 (not given), got 8" in results[2].status.message
        assert "'a'" in results[1].status.message
        assert all(result.stream is None for result in results[1:6])
        assert codes(await cluster.create(Stream(name="a"))) == [StatusCode.CONFLICT]
        assert len(await cluster.describe(all_streams=True)) == 2

    run(test)


HOSTILE_NAMES = [
    *("", ".", "..", "../x", "/etc/passwd", "a/b", "a\\b", "C:\\x", "%2e%2e", "a b", " a", "a\n"),
    *(
        "_audit",
        "_x",
        "0",
        "123",
        "\x00",
        "a\x00b",
        "\u202egpj",
        "caf\u00e9",
        "\u0661",
        "a'b",
        'a"b',
        "a;b",
        "*",
    ),
    *(
        "'; DROP TABLE streams; --",
        "n" * 250,
        "n" * 10_000,
        "${x}",
        "{name}",
        "a,b",
        "a:b",
        "\ud7ff",
    ),
]


def test_hostile_names_are_refused(run):
    async def test(cluster):
        await cluster.add_server()
        results = await cluster.create(*[Stream(name=name) for name in HOSTILE_NAMES])
        assert codes(results) == [StatusCode.INVALID_REQUEST] * len(HOSTILE_NAMES)
        for result in results:
            assert result.status.message.isascii()
            assert result.status.message.isprintable()
            assert len(result.status.message) < 700
        found = await cluster.describe(names=tuple(HOSTILE_NAMES))
        assert codes(found) == [StatusCode.NOT_FOUND] * len(HOSTILE_NAMES)
        assert all(result.status.message.isprintable() for result in found)

    run(test)


@pytest.mark.parametrize("name", ["a", "A", "...", "-", "a_", "1a", "a.b_c-d", "1.0", "n" * 249])
def test_names(run, name):
    async def test(cluster):
        await cluster.add_server()
        (created,) = await cluster.create(Stream(name=name))
        (found,) = await cluster.describe(names=(name,))
        assert found.stream == created.stream

    run(test)


def test_ten_thousand_streams_in_one_request(run):
    async def test(cluster):
        await cluster.add_server("h:1")
        await cluster.add_server("h:2")
        count = 10_000
        results = await cluster.create(*[Stream(name=f"s-{n}") for n in range(count)])
        assert [result.stream.name for result in results] == [f"s-{n}" for n in range(count)]
        ids = tuple(result.stream.stream_id for result in results)
        assert len(set(ids)) == count
        answers = await cluster.list(*[by_stream(stream_id) for stream_id in ids])
        assert len(answers) > 1
        assert len({answer.revision for answer in answers}) == 1
        listed = [result for answer in answers for result in answer.list_responses]
        assert [result.stream_id for result in listed] == list(ids)
        assert [result.ranges for result in listed] == [(each.stream_range,) for each in results]
        everything = await cluster.describe(all_streams=True)
        assert [result.stream.stream_id for result in everything] == sorted(ids)
        by_name = await cluster.describe(names=tuple(f"s-{n}" for n in reversed(range(count))))
        assert tuple(result.stream.stream_id for result in reversed(by_name)) == ids

    run(test)


def test_too_many_items_are_refused(run):
    async def test(cluster):
        count = limits.STREAMS_PER_REQUEST_MAX + 1
        for opcode, request in (
            (Opcode.CREATE_STREAMS, CreateStreamsRequest(streams=(Stream(),) * count)),
            (Opcode.DELETE_STREAMS, DeleteStreamsRequest(streams=(Stream(),) * count)),
            (Opcode.DESCRIBE_STREAMS, DescribeStreamsRequest(stream_ids=(1,) * count)),
            (Opcode.LIST_RANGES, ListRangesRequest(range_owners=(by_stream(1),) * count)),
        ):
            with pytest.raises(InvalidRequestError, match="at most 20000 are accepted"):
                await cluster.client.ask(opcode, request)

    run(test)


# DESCRIBE_STREAMS, DELETE_STREAMS


def test_streams_are_described_by_id_then_by_name(run):
    async def test(cluster):
        await cluster.add_server()
        a, b = await cluster.created_id("a"), await cluster.created_id("b")
        results = await cluster.describe(stream_ids=(b, 99, a), names=("no", "a"))
        missing = StatusCode.NOT_FOUND
        assert codes(results) == [0, missing, 0, missing, 0]
        assert [result.stream_id for result in results] == [b, 99, a, -1, a]
        assert "stream 99" in results[1].status.message
        assert "'no'" in results[3].status.message
        assert await cluster.describe() == []
        with pytest.raises(InvalidRequestError, match="not both"):
            await cluster.describe(all_streams=True, names=("a",))

    run(test)


def test_deleted_streams_are_gone_and_their_ids_stay_theirs(run):
    async def test(cluster):
        await cluster.add_server()
        a, b = await cluster.created_id("a"), await cluster.created_id("b")
        results = await cluster.delete(b, 99, b)
        assert codes(results) == [0, StatusCode.NOT_FOUND, StatusCode.NOT_FOUND]
        assert results[0].deleted_stream.name == "b"
        again = await cluster.created_id("b")
        assert again not in {a, b}
        assert codes([await cluster.list_one(by_stream(b))]) == [StatusCode.NOT_FOUND]

    run(test)
