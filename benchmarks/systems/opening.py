"""Opens what a case needs: a server for each kind of system, on new folders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from benchmarks.harness.model import OURS
from benchmarks.peer.broker import open_brokers
from benchmarks.peer.jars import PeerAbsentError, Pinned, ensure_jars
from benchmarks.systems.base import System
from benchmarks.systems.ceiling import Ceiling
from benchmarks.systems.kafka import SYNCED, Kafka
from benchmarks.systems.sbp import Sbp, open_sbp

AT_LEAST_ONCE: Final = "sbp at-least-once"
CEILING: Final = "ceiling"
KAFKA: Final = "kafka"
KAFKA_SYNCED: Final = "kafka synced"

_SBP: Final[Mapping[str, Callable[[Sbp], Sbp]]] = {
    OURS: lambda sbp: sbp,
    AT_LEAST_ONCE: lambda sbp: sbp.with_options({"delivery": "at-least-once"}),
}
_KAFKA: Final[Mapping[str, Callable[[Kafka], Kafka]]] = {
    KAFKA: lambda kafka: kafka,
    KAFKA_SYNCED: lambda kafka: kafka.with_settings(SYNCED),
}
NAMES: Final = (*_SBP, CEILING, *_KAFKA)


@dataclass(frozen=True, slots=True)
class Peer:
    """Kafka by its jars; without them it is absent, and `absent` is the reason."""

    version: str = ""
    broker_jars: tuple[Path, ...] = ()
    connector_jars: tuple[Path, ...] = ()
    absent: str = ""

    @staticmethod
    def find(report: Callable[[str], None]) -> Peer:
        """Find the jars, fetching those that are not here."""
        pinned = Pinned.load()
        try:
            broker = ensure_jars(pinned.broker, report=report)
            return Peer(pinned.broker_version, broker, ensure_jars(pinned.connector, report=report))
        except PeerAbsentError as error:
            return Peer(pinned.broker_version, absent=str(error))


@contextmanager
def open_systems(
    spark: SparkSession, folder: Path, names: Sequence[str], peer: Peer
) -> Iterator[dict[str, System | str]]:
    """Start the servers of systems below `folder`; an unavailable one has the reason instead."""
    with ExitStack() as stack:
        found: dict[str, System | str] = {}
        if any(name in _SBP for name in names):
            sbp = stack.enter_context(open_sbp(spark, folder / "sbp"))
            found |= {name: make(sbp) for name, make in _SBP.items()}
        if any(name in _KAFKA for name in names):
            kafka = _open_kafka(stack, spark, folder / "kafka", peer)
            if isinstance(kafka, Kafka):
                found |= {name: make(kafka) for name, make in _KAFKA.items()}
            else:
                found |= dict.fromkeys(_KAFKA, kafka)
        found[CEILING] = Ceiling(spark)
        yield {name: found[name] for name in names}


def _open_kafka(stack: ExitStack, spark: SparkSession, folder: Path, peer: Peer) -> Kafka | str:
    if peer.absent:
        return peer.absent
    try:
        (broker,) = stack.enter_context(open_brokers(folder, peer.broker_jars))
    except PeerAbsentError as error:
        return str(error)
    return Kafka(spark, broker.address, broker.pid, spark.sparkContext.defaultParallelism)
