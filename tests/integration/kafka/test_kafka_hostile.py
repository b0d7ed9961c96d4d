"""Clients that send what is no request, or read nothing: others are served, memory is bounded."""

import struct
from datetime import timedelta
from random import Random

import pytest

from sbp_core import limits
from tests.support.kafka import produce_all, run
from tests.support.kafka_wire import RawKafka, decode_response, encode_request

PRODUCE, FETCH, LIST_OFFSETS, METADATA, VERSIONS = 0, 1, 2, 3, 18
SIZE = struct.Struct(">i")


@pytest.fixture
def among_others(gateway):
    """Run a body with a connection; another client has to be answered before and after."""

    def go(body):
        async def main():
            async with RawKafka.at(gateway.address) as innocent:
                assert (await innocent.ask(VERSIONS, 0)).error_code == 0
                await body(lambda: RawKafka.at(gateway.address))
                assert (await innocent.ask(METADATA, 1, topics=())).brokers
                assert (await innocent.ask(VERSIONS, 0)).error_code == 0

        run(main)

    return go


NOISE = Random(1).randbytes(4_000)
HEAD = encode_request(METADATA, 4, topics=(), allow_auto_topic_creation=False)


BOMB = struct.pack(">hhih", 20, 4, 1, 2) + b"me\0" + b"\xff\xff\xff\xff\x0f"
"""A request to delete four thousand million topics."""


@pytest.mark.parametrize(
    "sent",
    [
        SIZE.pack(2**31 - 1),
        SIZE.pack(-1),
        SIZE.pack(0),
        SIZE.pack(64 * limits.MIB + 1),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00" + NOISE,
        SIZE.pack(4_000) + NOISE,
        SIZE.pack(1) + b"\0",
        SIZE.pack(9) + b"\0\x63" + bytes(7),
        SIZE.pack(9) + b"\0\x03\x00\x63" + bytes(5),
        SIZE.pack(len(BOMB)) + BOMB,
        SIZE.pack(len(HEAD) - 3) + HEAD[:-3],
        SIZE.pack(8) + HEAD[:8],
    ],
    ids=[
        *("largest", "negative", "empty", "large", "http", "tls", "noise", "one byte"),
        *("unknown API", "unknown version", "endless list", "cut off", "head only"),
    ],
)
def test_what_is_no_request_ends_its_connection_only(among_others, sent):
    async def body(connect):
        async with connect() as hostile:
            hostile.writer.write(sent)
            assert await hostile.is_closed()

    among_others(body)


def test_half_requests_do_not_keep_others_waiting(among_others):
    async def body(connect):
        halves = [connect() for _ in range(100)]
        opened = [await each.__aenter__() for each in halves]
        for at, each in enumerate(opened):
            each.writer.write((SIZE.pack(len(HEAD)) + HEAD)[: at % (len(HEAD) + 3)])
        async with connect() as innocent:
            assert (await innocent.ask(METADATA, 1, topics=())).brokers
        for each in halves:
            await each.__aexit__(None, None, None)

    among_others(body)


def test_senseless_values_have_an_answer(among_others, topic, stream_id):
    large = (-(2**63), -1, 0, 2**31, 2**63 - 1)

    async def body(connect):
        async with connect() as client:
            for offset in large:
                for size in (-(2**31), -1, 0, 2**31 - 1):
                    partition = {
                        "partition": 0,
                        "fetch_offset": offset,
                        "partition_max_bytes": size,
                        "log_start_offset": offset,
                    }
                    topics = ({"topic": topic, "partitions": (partition,)},)
                    answer = await client.ask(
                        *(FETCH, 11),
                        replica_id=-1,
                        max_wait=timedelta(0),
                        min_bytes=size,
                        max_bytes=size,
                        topics=topics,
                        session_epoch=-1,
                        forgotten_topics_data=(),
                        rack_id="",
                    )
                    assert len(answer.responses) == 1
                partition = {"partition_index": 0, "timestamp": offset}
                topics = ({"name": topic, "partitions": (partition,)},)
                answer = await client.ask(
                    LIST_OFFSETS, 5, replica_id=-1, isolation_level=0, topics=topics
                )
                assert len(answer.topics) == 1
            for index in (-(2**31), -1, 1, 2**31 - 1):
                for records in (None, b"", NOISE):
                    partition = {"index": index, "records": records}
                    data = ({"name": topic, "partition_data": (partition,)},)
                    answer = await client.ask(
                        PRODUCE, 7, acks=1, timeout=timedelta(0), topic_data=data
                    )
                    ((refused,),) = (each.partition_responses for each in answer.responses)
                    assert refused.error_code.name == "unknown_topic_or_partition"

    among_others(body)


def test_a_topic_that_cannot_be_is_not_created(among_others, client):
    names = ("", ".", "..", "a/b", "a b", "\0", "häuser", "x" * 250, "../../etc", "*")

    async def body(connect):
        async with connect() as asking:
            topics = tuple({"name": each} for each in names)
            answer = await asking.ask(METADATA, 4, topics=topics, allow_auto_topic_creation=True)
            assert all(each.error_code != 0 and not each.partitions for each in answer.topics)

    before = len(client.list_streams())
    among_others(body)
    assert len(client.list_streams()) == before


@pytest.fixture
def eight_mib(gateway, topic, stream_id):
    """A topic with some megabytes."""
    produce_all(gateway.config, topic, [{"value": bytes(900_000)}] * 8)
    return topic


def test_clients_that_read_nothing_do_not_fill_the_memory(gateway, among_others, eight_mib):
    partition = {
        "partition": 0,
        "fetch_offset": 0,
        "partition_max_bytes": 2**31 - 1,
        "log_start_offset": -1,
    }
    request = encode_request(
        *(FETCH, 11),
        replica_id=-1,
        max_wait=timedelta(0),
        min_bytes=1,
        max_bytes=2**31 - 1,
        topics=({"topic": eight_mib, "partitions": (partition,)},),
        session_epoch=-1,
        forgotten_topics_data=(),
        rack_id="",
    )

    async def body(connect):
        opened = [connect() for _ in range(8)]
        for each in opened:
            client = await each.__aenter__()
            client.writer.transport.pause_reading()
            for _ in range(100):
                client.send(request)
        before = gateway.peak_bytes()
        for _ in range(5):  # a request of an innocent client is answered behind theirs
            async with connect() as innocent:
                assert len((await _fetched(innocent, request)).responses) == 1
        assert gateway.peak_bytes() - before < 256 * limits.MIB
        for each in opened:
            await each.__aexit__(None, None, None)

    among_others(body)


async def _fetched(client, request):
    client.send(request)
    return decode_response(FETCH, 11, await client.receive())
