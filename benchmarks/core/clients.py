"""`python -m benchmarks.core.clients`: producers and consumers in Python, beside those of Kafka.

One thread sends records of 100 B, or of `--bytes`, to one stream, one call for each, and waits
until all are acknowledged; then it reads them back: in batches, and record by record. At last it
sends some records one by one, and waits for the acknowledgement of each. Ours is
`sbp_core.connect`; beside it are confluent-kafka (over librdkafka, in C) and kafka-python, with
one broker. Both servers acknowledge what is on the disk: the topics have `flush.messages=1`. All
producers are idempotent, and have the same linger and size of batches. The sides run in turn. With
`sbp kafka` confluent-kafka talks to our server, through a gateway in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.harness.folders import new_folder
from benchmarks.harness.model import Series
from benchmarks.harness.tables import table
from benchmarks.peer.broker import open_brokers
from benchmarks.peer.jars import PeerAbsentError, Pinned, ensure_jars
from benchmarks.peer.produce import create_topic
from sbp_core import connect
from sbp_core.cluster import LocalCluster
from sbp_core.processes import COMMAND, POLL_SECONDS
from sbp_spark.java import use_java

_OURS: Final = "sbp"
_NAME: Final = "records"
_VALUE_BYTES: Final = 100
_LINGER_MS: Final = 5
_BATCH_BYTES: Final = 1 << 20
_RECORDS: Final = 300_000
_SINGLE: Final = 200
"""Records of a round that are sent one by one."""
_ROUNDS: Final = 5
_POLL_SECONDS: Final = 10.0
_SEND: Final = "send"
_BATCHES: Final = "read in batches"
_RECORD: Final = "read by record"
_ACKNOWLEDGE: Final = "acknowledge"


class Side(ABC):
    """A client and its server. Each method works on the records from an offset on."""

    name: str
    first_offset = 0
    value = b""

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return self.name.replace(" ", "-")

    @abstractmethod
    def send(self, count: int) -> None:
        """Send records, and return when all are acknowledged."""

    @abstractmethod
    def acknowledge(self, count: int) -> list[float]:
        """Send records one by one; return how long each took to be acknowledged, in seconds."""

    @abstractmethod
    def read_batches(self, start: int, count: int) -> int:
        """Read records in batches; return how many these were."""

    @abstractmethod
    def read_records(self, start: int, count: int) -> int:
        """Read records one by one; return how many bytes their values have."""


class Ours(Side):
    """`sbp_core.connect`."""

    name = _OURS

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        cluster = stack.enter_context(LocalCluster(folder))
        self.endpoint = cluster.endpoint
        self._sbp = stack.enter_context(connect(cluster.endpoint))
        self._sbp.create_stream(_NAME)

    def send(self, count: int) -> None:
        with self._sbp.producer(_NAME, linger_ms=_LINGER_MS, batch_bytes=_BATCH_BYTES) as producer:
            send = producer.send
            for _ in range(count):
                send(self.value)

    def acknowledge(self, count: int) -> list[float]:
        with self._sbp.producer(_NAME, linger_ms=0) as producer:
            return _times(lambda: producer.send(self.value).result(), count)

    def read_batches(self, start: int, count: int) -> int:
        return sum(map(len, self._sbp.consumer(_NAME, start=start).batches()))

    def read_records(self, start: int, count: int) -> int:
        return sum(len(each.value or b"") for each in self._sbp.consumer(_NAME, start=start))


class Confluent(Side):
    """confluent-kafka; a topic has `first_offset` records before."""

    def __init__(self, address: str, *, name: str = "confluent-kafka", first_offset: int) -> None:
        import confluent_kafka

        self.name = name
        self.first_offset = first_offset
        self._library: Any = confluent_kafka
        self._address = address

    def _producer(self, linger_ms: int) -> Any:
        settings = {
            "bootstrap.servers": self._address,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": linger_ms,
            "batch.size": _BATCH_BYTES,
        }
        return self._library.Producer(settings)

    def acknowledge(self, count: int) -> list[float]:
        producer = self._producer(0)

        def send() -> None:
            producer.produce(self.topic, self.value)
            if producer.flush(60):
                raise AssertionError("confluent-kafka has not sent a record within 60 s")

        return _times(send, count)

    def send(self, count: int) -> None:
        producer = self._producer(_LINGER_MS)
        produce, poll, topic, value = producer.produce, producer.poll, self.topic, self.value
        for _ in range(count):
            try:
                produce(topic, value)
            except BufferError:
                while True:
                    poll(0.01)
                    try:
                        produce(topic, value)
                    except BufferError:
                        continue
                    break
        if producer.flush(60):
            raise AssertionError("confluent-kafka has not sent all within 60 s")

    def read_batches(self, start: int, count: int) -> int:
        consumer, found = self._consumer(start), 0
        while found < count:
            found += len(consumer.consume(10_000, _POLL_SECONDS))
        consumer.close()
        return found

    def read_records(self, start: int, count: int) -> int:
        consumer, size_bytes = self._consumer(start), 0
        for _ in range(count):
            size_bytes += len(consumer.poll(_POLL_SECONDS).value())
        consumer.close()
        return size_bytes

    def _consumer(self, start: int) -> Any:
        settings = {
            "bootstrap.servers": self._address,
            "group.id": "bench",
            "enable.auto.commit": False,
        }
        consumer = self._library.Consumer(settings)
        consumer.assign([self._library.TopicPartition(self.topic, 0, start)])
        return consumer


class KafkaPython(Side):
    """kafka-python."""

    name = "kafka-python"
    first_offset = 1

    def __init__(self, address: str) -> None:
        import kafka

        self._library: Any = kafka
        self._address = address

    @contextmanager
    def _producer(self, linger_ms: int) -> Iterator[Any]:
        producer = self._library.KafkaProducer(
            bootstrap_servers=self._address,
            acks="all",
            enable_idempotence=True,
            linger_ms=linger_ms,
            batch_size=_BATCH_BYTES,
        )
        yield producer
        producer.flush()
        producer.close()

    def send(self, count: int) -> None:
        with self._producer(_LINGER_MS) as producer:
            send, topic, value = producer.send, self.name, self.value
            for _ in range(count):
                send(topic, value)

    def acknowledge(self, count: int) -> list[float]:
        with self._producer(0) as producer:
            return _times(lambda: producer.send(self.name, self.value).get(), count)

    def read_batches(self, start: int, count: int) -> int:
        consumer, found = self._consumer(start), 0
        while found < count:
            polled = consumer.poll(1000 * _POLL_SECONDS, max_records=10_000)
            found += sum(map(len, polled.values()))
        consumer.close()
        return found

    def read_records(self, start: int, count: int) -> int:
        consumer, size_bytes = self._consumer(start), 0
        for _ in range(count):
            size_bytes += len(next(consumer).value)
        consumer.close()
        return size_bytes

    def _consumer(self, start: int) -> Any:
        consumer = self._library.KafkaConsumer(bootstrap_servers=self._address, group_id=None)
        partition = self._library.TopicPartition(self.name, 0)
        consumer.assign([partition])
        consumer.seek(partition, start)
        return consumer


def _times(work: Callable[[], object], count: int) -> list[float]:
    """Return how long each call takes, after the first one, which connects."""
    work()
    times = []
    for _ in range(count - 1):
        began_at = time.perf_counter()
        work()
        times.append(time.perf_counter() - began_at)
    return times


@contextmanager
def _gateway(endpoint: str, folder: Path) -> Iterator[str]:
    """Run `sbp kafka` for a while; yield its address."""
    ready = folder / "kafka-ready.json"
    options = ["--endpoint", endpoint, "--port", "0", "--ready-file", str(ready)]
    process = subprocess.Popen([*COMMAND, "kafka", *options], stdout=subprocess.DEVNULL)
    try:
        while not ready.exists():
            if process.poll() is not None:
                raise AssertionError(f"sbp kafka ended with {process.returncode}")
            time.sleep(POLL_SECONDS)
        yield json.loads(ready.read_text(encoding="utf-8"))["kafka"]
    finally:
        process.terminate()
        process.wait()


def _round(sides: Sequence[Side], start: int, count: int) -> dict[tuple[str, str], float]:
    """Return the rate of each work and side, in records per second, in one round."""
    rates = {}
    for side in sides:
        works: dict[str, tuple[Callable[..., int | None], tuple[int, ...], int | None]] = {
            _SEND: (side.send, (count,), None),
            _BATCHES: (side.read_batches, (side.first_offset + start, count), count),
            _RECORD: (
                side.read_records,
                (side.first_offset + start, count),
                count * len(side.value),
            ),
        }
        for name, (work, arguments, expected) in works.items():
            os.sync()
            began_at = time.perf_counter()
            found = work(*arguments)
            rates[name, side.name] = count / (time.perf_counter() - began_at)
            if found != expected:
                raise AssertionError(f"{side.name}, {name}: {found} instead of {expected}")
    return rates


def _rows(
    sides: Sequence[Side], rounds: Sequence[dict[tuple[str, str], float]]
) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for work in (_SEND, _BATCHES, _RECORD):
        for side in sides:
            ratios = [each[work, _OURS] / each[work, side.name] for each in rounds]
            rate = median(each[work, side.name] for each in rounds)
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            rows.append((work, side.name, f"{rate:,.0f}", f"{median(ratios):.2f}", spread))
    return rows


def _latency_rows(
    sides: Sequence[Side], times: Sequence[dict[str, list[float]]]
) -> list[tuple[str, ...]]:
    found = [Series(side.name, tuple(tuple(each[side.name]) for each in times)) for side in sides]
    return [
        (_ACKNOWLEDGE, each.system, *(f"{1000 * each.percentile(p):.2f}" for p in (50, 99)))
        for each in found
    ]


_HEADER: Final = ("what", "client", "records/s", "ratio", "spread")
_LATENCY_HEADER: Final = ("what", "client", "median, ms", "p99, ms")


def measure(
    *, rounds: int, count: int, value: bytes, with_kafka: bool, report: Callable[[str], None]
) -> None:
    """Measure all sides in turn, and print two tables."""
    with new_folder() as folder, ExitStack() as stack:
        ours = Ours(stack, folder / "sbp")
        address = stack.enter_context(_gateway(ours.endpoint, folder))
        sides: list[Side] = [ours, Confluent(address, name="sbp kafka", first_offset=0)]
        if with_kafka:
            try:
                use_java()
                jars = ensure_jars(Pinned.load().broker, report=report)
                (broker,) = stack.enter_context(open_brokers(folder / "kafka", jars))
                for side in (
                    Confluent(broker.address, first_offset=1),  # `create_topic` appends a record
                    KafkaPython(broker.address),
                ):
                    create_topic(broker.address, side.name, [1], {"flush.messages": "1"})
                    sides.append(side)
            except (PeerAbsentError, ImportError) as error:
                report(f"kafka is absent: {error}")
        for each in sides:
            each.value = value
        found, times = [], []
        start = 0
        for number in range(rounds + 1):
            rates = _round(sides, start, count)
            waits = {each.name: each.acknowledge(_SINGLE) for each in sides}
            start += count + _SINGLE
            if number:  # the first round warms up
                found.append(rates)
                times.append(waits)
            report(f"round {number}: " + ", ".join(f"{rate:,.0f}" for rate in rates.values()))
        print(table(_HEADER, _rows(sides, found), text_columns={0, 1}))
        print(table(_LATENCY_HEADER, _latency_rows(sides, times), text_columns={0, 1}))
        print(f"ratio: records/s of {_OURS} / records/s of the client, of the same round")


def main(arguments: Sequence[str]) -> int:
    """Measure; print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.core.clients")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help=f"rounds ({_ROUNDS})")
    parser.add_argument("--records", type=int, default=_RECORDS, help=f"of a round ({_RECORDS})")
    parser.add_argument(
        "--bytes", type=int, default=_VALUE_BYTES, help=f"of a value ({_VALUE_BYTES})"
    )
    parser.add_argument("--no-kafka", action="store_true", help="without the peer")
    settings = parser.parse_args(arguments)
    measure(
        rounds=settings.rounds,
        count=settings.records,
        value=bytes(each % 256 for each in range(settings.bytes)),
        with_kafka=not settings.no_kafka,
        report=lambda line: print(line, file=sys.stderr, flush=True),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
