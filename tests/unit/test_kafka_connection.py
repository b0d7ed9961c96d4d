"""A connection with a client: order of what it sends, and memory that it gives back."""

import asyncio
from collections import deque
from datetime import timedelta
from types import SimpleNamespace

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from sbp_core.errors import DeadlineExceededError
from sbp_core.kafka.connection import Connection
from sbp_core.kafka.memory import Memory
from sbp_core.kafka.producers import Producers
from sbp_core.records import decode_batch, decode_envelope
from tests.support.kafka_wire import decode_response, encode_request

PRODUCE, VERSIONS = 0, 18
GZIP = 1
BYTES_MAX = 1 << 20


class Writer:
    """The sending end of a connection, whose client may read nothing."""

    def __init__(self):
        self.sent = b""
        self.reads = asyncio.Event()
        self.reads.set()
        self.error = None
        self.transport = SimpleNamespace(abort=self.reads.set)

    def write(self, data):
        self.sent += data

    async def drain(self):
        await self.reads.wait()
        if self.error is not None:
            raise self.error


class Client:
    """A client of the cluster; each append waits until it may go on."""

    def __init__(self):
        self.values = []
        self.may_append = asyncio.Event()
        self.may_append.set()

    async def append(self, items, writer=None):
        await self.may_append.wait()
        (item,) = items
        self.values += decode_batch(decode_envelope(item.batch)).column("value").to_pylist()
        return [SimpleNamespace(base_offset=len(self.values) - 1)]


class Topics:
    """Looks up streams; the first look-ups take turns of the loop as `turns` says, or fail."""

    def __init__(self, *turns):
        self.turns = deque(turns)

    async def maybe_stream(self, client, topic, partition):
        turns = self.turns.popleft() if self.turns else 0
        for _ in range(turns):
            await asyncio.sleep(0)
        if turns < 0:
            raise DeadlineExceededError("no answer")
        return SimpleNamespace(stream_id=1, name=topic)


class Schemas:
    async def newest(self, client, stream_id):
        return None


class Served:
    """A connection that is being served, what it got and what it is sent."""

    def __init__(self, *turns):
        self.reader, self.writer = asyncio.StreamReader(), Writer()
        self.client, self.memory = Client(), Memory(BYTES_MAX)
        sign_in = SimpleNamespace(
            is_done=True, client=lambda: self.client, close=lambda: None, maybe_answer=self._none
        )
        gateway = SimpleNamespace(topics=Topics(*turns), schemas=Schemas(), producers=Producers())
        connection = Connection(
            self.reader,
            self.writer,
            gateway=gateway,
            memory=self.memory,
            sign_in=sign_in,
            address="1.2.3.4",
        )
        self.serving = asyncio.create_task(connection.serve())

    async def _none(self, request):
        return None

    def receive(self, request):
        self.reader.feed_data(len(request).to_bytes(4, "big") + request)

    async def end(self):
        """Let the client leave, and return when nothing of it is left."""
        self.reader.feed_eof()
        await asyncio.wait_for(self.serving, 30)
        assert self.memory._left == BYTES_MAX


def producing(number, size=1):
    builder = DefaultRecordBatchBuilder(2, GZIP, False, -1, -1, -1, 1 << 20)
    builder.append(0, 1, None, b"%d" % number * size, [])
    data = ({"name": "t", "partition_data": ({"index": 0, "records": bytes(builder.build())},)},)
    return encode_request(PRODUCE, 7, acks=1, timeout=timedelta(0), topic_data=data)


def run(body):
    asyncio.run(asyncio.wait_for(body(), 30))


@pytest.mark.parametrize("turns", [(), (5,), (9, 3, 1), (0, 7, 0, 7)])
def test_batches_are_appended_in_the_order_in_which_they_came(turns):
    async def body():
        served = Served(*turns)
        for number in range(10):
            served.receive(producing(number))
        await served.end()
        assert served.client.values == [b"%d" % number for number in range(10)]
        first = served.writer.sent[: 4 + int.from_bytes(served.writer.sent[:4], "big")]
        assert decode_response(PRODUCE, 7, first).responses

    run(body)


def test_responses_come_in_the_order_of_the_requests():
    async def body():
        served = Served()
        served.client.may_append.clear()
        served.receive(producing(0))
        served.receive(encode_request(VERSIONS, 0))
        for _ in range(50):
            await asyncio.sleep(0)
        assert served.writer.sent == b""
        served.client.may_append.set()
        await served.end()
        first = 4 + int.from_bytes(served.writer.sent[:4], "big")
        assert decode_response(PRODUCE, 7, served.writer.sent[:first]).responses
        assert decode_response(VERSIONS, 0, served.writer.sent[first:]).api_keys

    run(body)


def test_a_client_that_reads_nothing_has_one_response_in_memory():
    async def body():
        served = Served()
        served.writer.reads.clear()
        for _ in range(100):
            served.receive(encode_request(VERSIONS, 0))
        for _ in range(500):
            await asyncio.sleep(0)
        assert len(served.writer.sent) == 4 + int.from_bytes(served.writer.sent[:4], "big")
        served.writer.reads.set()
        await served.end()
        assert served.writer.sent.count(served.writer.sent[:20]) == 100

    run(body)


def test_a_client_that_is_lost_while_it_sends_ends_the_connection():
    async def body():
        served = Served()
        served.writer.reads.clear()
        for number in range(40):  # more than are answered at a time
            served.receive(producing(number))
        for _ in range(500):
            await asyncio.sleep(0)
        served.writer.error = ConnectionResetError()
        served.writer.reads.set()
        await asyncio.wait_for(served.serving, 30)
        assert served.memory._left == BYTES_MAX

    run(body)


def test_requests_that_are_dropped_before_they_begin_give_their_memory_back():
    async def body():
        served = Served()
        served.client.may_append.clear()
        for number in range(10):
            served.receive(producing(number))
        served.reader.feed_data(b"\xff" * 4)  # a length that no request has
        await asyncio.wait_for(served.serving, 30)
        assert served.memory._left == BYTES_MAX

    run(body)


def test_a_batch_whose_look_up_fails_does_not_hold_up_the_next_one():
    async def body():
        served = Served(-1)
        served.receive(producing(0))
        served.receive(producing(1))
        await served.end()
        assert served.client.values == [b"1"]

    run(body)


def test_batches_that_grow_do_not_fill_the_memory():
    async def body():
        served = Served()
        served.client.may_append.clear()
        for number in range(10):
            served.receive(producing(number, BYTES_MAX // 3))
        for _ in range(200):
            await asyncio.sleep(0)
        assert -BYTES_MAX // 2 < served.memory._left < 0
        served.client.may_append.set()
        await served.end()
        assert [each[:1] for each in served.client.values] == [b"%d" % at for at in range(10)]

    run(body)


def test_requests_wait_while_memory_is_full():
    async def body():
        served = Served()
        served.client.may_append.clear()
        with served.memory.holding(BYTES_MAX):
            served.receive(producing(0))
            for _ in range(50):
                await asyncio.sleep(0)
            assert served.client.values == []
        served.client.may_append.set()
        await served.end()
        assert served.client.values == [b"0"]

    run(body)
