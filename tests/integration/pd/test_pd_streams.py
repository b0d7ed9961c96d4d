"""The placement driver over a real connection: creating, describing and deleting streams."""

import asyncio

import pytest

from sbp_core import limits
from sbp_core.errors import InvalidRequestError, StatusCode
from sbp_core.wire.headers import (
    CreateStreamsRequest,
    DeleteStreamsRequest,
    DescribeStreamsRequest,
    ListRangesRequest,
    Stream,
)
from sbp_core.wire.opcodes import Opcode
from tests.support.placement_driver import by_stream, codes, runner, running


@pytest.fixture
def run(tmp_path):
    return runner(tmp_path / "data")


# CREATE_STREAMS


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


def test_the_settings_reach_the_store(tmp_path):
    async def main():
        async with running(tmp_path, streams_max=1) as cluster:
            await cluster.add_server()
            results = await cluster.create(Stream(name="a"), Stream(name="b"))
            return [each.status.code for each in results]

    assert asyncio.run(main()) == [StatusCode.NONE, StatusCode.INVALID_REQUEST]
