"""The process of queries, one of each source: `query JSON`; see QueryProcess.

Each micro-batch becomes one file, written atomically. A replay of a micro-batch writes a file of
its own, so that the two can be compared.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Barrier

from pyspark.errors import StreamingQueryException

from sbp_spark.datasource import SbpDataSource
from sbp_spark.reading.locating import starting_offsets
from sbp_spark.reading.offsets import SourceOffset
from sbp_spark.streaming.stream_reader import SbpStreamReader
from tests.support.queries import TOO_SLOW, clear_unborn
from tests.support.spark import spark_session

BARRIER_SECONDS_MAX = 120
"""How long a source waits for the others, one of which may have failed."""


class ForgetfulReader(SbpStreamReader):
    """Resolves the start of a query whenever it is asked; what ends before it is empty."""

    def initialOffset(self):  # noqa: N802 - Spark's name
        watch = self._run._watch
        seen = watch.look()
        starts = starting_offsets(watch.client, self._run.options, seen.bounds, seen.streams)
        positions = seen.positions()
        moved = {each: replace(positions[each], next_offset=starts[each]) for each in starts}
        return SourceOffset(moved).to_json()

    def partitions(self, start, end):
        before, after = SourceOffset.from_json(start).next_offsets(), SourceOffset.from_json(end)
        moved = {
            each: replace(at, next_offset=max(at.next_offset, before.get(each, 0)))
            for each, at in after.streams.items()
        }
        return super().partitions(start, replace(after, streams=moved).to_json())


class ForgetfulSource(SbpDataSource):
    """Loses a first micro-batch that has to be replayed."""

    @classmethod
    def name(cls):
        return "sbp-forgetful"

    def streamReader(self, schema):  # noqa: N802
        return ForgetfulReader(self.options, schema)


class GreedyReader(SbpStreamReader):
    """Reads to the tails as they are, whatever end Spark has logged."""

    def partitions(self, start, end):
        logged, tails = SourceOffset.from_json(end), self._run._watch.look().positions()
        moved = {
            each: replace(at, next_offset=tails[each].next_offset)
            for each, at in logged.streams.items()
        }
        return super().partitions(start, replace(logged, streams=moved).to_json())


class GreedySource(SbpDataSource):
    """Gives records twice, and other ones when a micro-batch is replayed."""

    @classmethod
    def name(cls):
        return "sbp-greedy"

    def streamReader(self, schema):  # noqa: N802
        return GreedyReader(self.options, schema)


def main(order) -> None:
    folder = Path(order["folder"])
    barrier = Barrier(len(order["sources"]))

    def mark(what):
        (folder / f"{what}.{order['life']}").touch()

    def on_written(number):
        mark("has written")
        if number == order.get("dies_after"):  # and before the batch is committed
            barrier.wait(BARRIER_SECONDS_MAX)
            os.killpg(0, signal.SIGKILL)

    for source in order["sources"]:
        clear_unborn(folder / source / "checkpoint")

    def start(spark, source):
        reader = spark.readStream.format(source).options(**order["options"])
        writing = write_to(folder / source, order["life"], lambda: mark("writes"), on_written)
        writer = reader.load().writeStream.foreachBatch(writing)
        writer = writer.option("checkpointLocation", str(folder / source / "checkpoint"))
        return writer.trigger(**order["trigger"]).start()

    with spark_session(folder / "spark") as spark:
        for broken in (ForgetfulSource, GreedySource):
            spark.dataSource.register(broken)
        for _ in range(order.get("runs", 1)):
            queries = [start(spark, source) for source in order["sources"]]
            mark("starts")
            try:
                for query in queries:
                    query.awaitTermination()
            except StreamingQueryException as error:
                barrier.abort()
                if "Python worker failed to connect back" in str(error):
                    sys.exit(TOO_SLOW)
                raise


def write_to(
    folder: Path, life: int, on_begun: Callable[[], None], on_written: Callable[[int], None]
):
    """Return what writes each micro-batch into a file, whole or not at all."""
    folder.mkdir(exist_ok=True)

    def write(frame, number):
        on_begun()
        columns = frame.select("stream_id", "offset", frame.value.cast("string"))
        rows = [tuple(row) for row in columns.collect()]
        unfinished = folder / "unfinished"
        unfinished.write_text(json.dumps(rows), encoding="utf-8")
        unfinished.replace(folder / f"batch-{number:06d}.{life:04d}.json")
        on_written(number)

    return write


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
