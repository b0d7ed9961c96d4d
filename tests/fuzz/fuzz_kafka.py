"""Mutated requests of Kafka's clients, sent to a gateway beside a client that does no harm.

A gateway serves on a thread of this process, in front of a cluster in another one. Each input is
sent on a connection, which the gateway may close; it must not meet an exception that its code does
not expect, and another client is answered all the time.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import logging
import socket
import struct
import tempfile
import threading
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from sbp_core.client import Connecting
from sbp_core.kafka.connection import Connection
from sbp_core.kafka.service import KafkaListener
from sbp_core.settings.kafka_settings import KafkaSettings
from sbp_core.settings.listening import Exposure
from sbp_core.web.callers import Callers
from tests.support.kafka_wire import encode_request
from tests.support.warm import WarmCluster

_SIZE = struct.Struct(">i")
_METADATA, _VERSIONS = 3, 18
_ANSWER_SECONDS = 0.02
"""How long an answer is waited for: requests to groups and for records may wait long."""
_INNOCENT_SECONDS = 10
_INPUTS_BETWEEN = 100
"""An innocent client asks after that many inputs."""
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_TOPIC = "fuzzed"


class _Mistakes(logging.Handler):
    """Keeps what the gateway logs as an error: its handlers must not raise anything else."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


class _World:
    """The gateway, a connection for inputs, and one of an innocent client."""

    def __init__(self) -> None:
        self._resources = ExitStack()
        folder = self._resources.enter_context(tempfile.TemporaryDirectory(prefix="sbp-fuzz-"))
        cluster = self._resources.enter_context(WarmCluster(Path(folder) / "data"))
        self.requests: list[bytes] = []
        self.mistakes = _Mistakes()
        logging.getLogger("sbp_core.kafka").addHandler(self.mistakes)
        logging.getLogger("asyncio").addHandler(self.mistakes)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        settings = KafkaSettings(endpoint=cluster.endpoint, connecting=Connecting(), port=0)
        self.port = asyncio.run_coroutine_threadsafe(self._start(settings), self._loop).result(60)
        self._innocent = self._connected(_INNOCENT_SECONDS)
        self._hostile: socket.socket | None = None
        self._numbers = itertools.count(1)

    async def _start(self, settings: KafkaSettings) -> int:
        self._listener = KafkaListener(settings, Callers(settings))
        return await self._listener.start("127.0.0.1", 0, Exposure.NOBODY)

    def close(self) -> None:
        stopping = asyncio.run_coroutine_threadsafe(self._listener.stop(), self._loop)
        with suppress(TimeoutError):
            stopping.result(30)
        self._resources.close()

    def _connected(self, seconds: float) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), seconds)

    def record(self) -> list[bytes]:
        """Return the requests of real clients."""
        begin = Connection._begin

        async def recording(connection: Connection, frame: bytes) -> None:
            self.requests.append(frame)
            await begin(connection, frame)

        Connection._begin = recording  # type: ignore[method-assign]
        try:
            self._use_librdkafka()
            asyncio.run(self._use_aiokafka())
        finally:
            Connection._begin = begin  # type: ignore[method-assign]
        by_kind: dict[bytes, list[bytes]] = {}
        for each in self.requests:
            by_kind.setdefault(each[:4], []).append(each)
        return [each for found in by_kind.values() for each in found[:8]]

    def _use_librdkafka(self) -> None:
        config = {"bootstrap.servers": f"127.0.0.1:{self.port}", "broker.address.family": "v4"}
        admin = AdminClient(config)
        admin.create_topics([NewTopic(_TOPIC, 2, 1, config={"retention.ms": "1000000"})])[
            _TOPIC
        ].result(30)
        for codec in _CODECS:
            more = {"compression.type": codec, "enable.idempotence": codec == "lz4"}
            producer = Producer(config | more)
            for number in range(20):
                producer.produce(_TOPIC, b"v" * 100, b"%d" % number, headers={"h": b"x"})
            assert producer.flush(30) == 0
        consumer = Consumer(
            config | {"group.id": "g", "auto.offset.reset": "earliest", "group.instance.id": "i"}
        )
        consumer.subscribe([_TOPIC])
        assert len(consumer.consume(50, 30)) == 50
        consumer.commit(asynchronous=False)
        consumer.close()
        admin.list_consumer_groups().result()
        admin.describe_consumer_groups(["g"])["g"].result()
        admin.delete_consumer_groups(["none"])["none"].exception()

    async def _use_aiokafka(self) -> None:
        address = f"127.0.0.1:{self.port}"
        producer = AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True)
        await producer.start()
        for _ in range(5):
            await producer.send_and_wait(_TOPIC, b"v", b"k", headers=[("h", b"x")])
        await producer.stop()
        consumer = AIOKafkaConsumer(
            _TOPIC, bootstrap_servers=address, group_id="a", auto_offset_reset="earliest"
        )
        await consumer.start()
        await consumer.getone()
        await consumer.commit()
        await consumer.stop()

    def send(self, data: bytes) -> None:
        """Send an input; read its answer if one comes soon."""
        if self._hostile is None:
            self._hostile = self._connected(_ANSWER_SECONDS)
        try:
            self._hostile.sendall(_SIZE.pack(len(data)) + data)
            if not self._hostile.recv(1 << 20):
                self._drop()
        except OSError:
            self._drop()
        if next(self._numbers) % _INPUTS_BETWEEN == 0:
            self.ask()

    def _drop(self) -> None:
        assert self._hostile is not None
        self._hostile.close()
        self._hostile = None

    def ask(self) -> None:
        """Let the innocent client ask, and check what the gateway logged."""
        for key, version, values in ((_VERSIONS, 0, {}), (_METADATA, 1, {"topics": ()})):
            request = encode_request(key, version, **values)
            self._innocent.sendall(_SIZE.pack(len(request)) + request)
            (size,) = _SIZE.unpack(self._read(_SIZE.size))
            assert int.from_bytes(self._read(size)[:4], "big") == 1
        assert not self.mistakes.found, self.mistakes.found[0]

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            part = self._innocent.recv(size - len(found))
            assert part, "the connection of an innocent client was closed"
            found += part
        return found


@cache
def _world() -> _World:
    world = _World()
    atexit.register(world.close)
    return world


@cache
def _recorded() -> list[bytes]:
    return _world().record()


def kafka_corpus() -> list[bytes]:
    """Requests of librdkafka and aiokafka, of each API and version that they use."""
    return _recorded()


def check_kafka(data: bytes) -> None:
    """Send a request; what it makes of it is the gateway's business, unless it trips over it."""
    _world().send(data)
    assert not _world().mistakes.found, _world().mistakes.found[0]
