"""The records between two offsets are the same at every read, in any way."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pyarrow.compute as pc
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from sbp_core.client import Client, StreamSpec
from sbp_core.cluster import LocalCluster
from sbp_spark.options.source import parse_source_options
from sbp_spark.reading.input_partitions import SbpBatchReader
from sbp_spark.reading.losses import DataLossError
from tests.support.queries import (
    SCHEMA,
    MicroBatch,
    micro_batches,
    positions_json,
    rows_between,
    rows_of_partitions,
    stream_reader,
)
from tests.support.spark import Sbp, append_values, wait_until_over

STREAM_COUNT = 3
UPHEAVALS = ("seal", "trim", "restart", "crash", "append", "delete another", "create another")

layouts = st.lists(
    st.tuples(
        st.integers(0, STREAM_COUNT - 1),
        st.integers(1, 40) | st.just("seal"),
    ),
    min_size=4,
    max_size=12,
)
plans = st.fixed_dictionaries(
    {},
    optional={
        "minPartitions": st.integers(1, 9).map(str),
        "maxRecordsPerPartition": st.integers(1, 50).map(str),
        "maxBytesPerPartition": st.integers(1, 5_000).map(str),
        "networkCompression": st.just("zstd"),
        "isolationClass": st.just("replay"),
    },
)
triggers = st.fixed_dictionaries(
    {},
    optional={
        "maxRecordsPerTrigger": st.integers(5, 60).map(str),
        "maxBytesPerTrigger": st.integers(200, 5_000).map(str),
    },
)


@pytest.fixture(scope="module")
def two_servers():
    """A cluster whose streams go on elsewhere when they are sealed."""
    with LocalCluster(range_servers=2) as running:
        yield running


class World:
    """Streams of one example, and what may happen to them."""

    numbers = count()

    def __init__(self, cluster: LocalCluster, client: Client) -> None:
        self._cluster = cluster
        self._client = client
        number = next(self.numbers)
        self.names = [f"replay-{number}-{index}" for index in range(STREAM_COUNT)]
        self._others = [f"other-{number}-{index}" for index in range(3)]
        infos = client.create_streams([StreamSpec(name) for name in [*self.names, *self._others]])
        self.ids = [info.stream_id for info in infos[:STREAM_COUNT]]
        self._written = 0

    def reader(self, **options):
        return stream_reader(self._cluster.endpoint, ",".join(self.names), **options)

    def append(self, index: int, how_many: int) -> None:
        values = [b"%d" % (self._written + n) + b"." * (n % 70) for n in range(how_many)]
        self._written += how_many
        append_values(self._client, self.names[index], values)

    def build(self, layout) -> None:
        for index, what in layout:
            if what == "seal":
                self._client.seal_streams([self.ids[index]])
            else:
                self.append(index, what)

    def tails(self) -> dict[int, int]:
        return {each.stream_id: each.next_offset for each in self._client.stream_bounds(self.ids)}

    def befall(self, what: str, kept: MicroBatch) -> None:
        """Let something happen that leaves `kept` and what comes after it as it is."""
        match what:
            case "seal":
                self._client.seal_streams(self.ids)
                self.append(0, 3)
            case "trim":
                self._client.trim_streams({each: at for each, (at, _) in kept.bounds().items()})
            case "restart":
                self._cluster.restart()
            case "crash":
                self._cluster.kill()
                self._cluster.start()
            case "append":
                for index in range(STREAM_COUNT):
                    self.append(index, 7)
            case "delete another":
                if self._others:
                    self._client.delete_streams([self._others.pop()])
            case "create another":
                self._client.create_streams([StreamSpec(None)])


@settings(max_examples=3, phases=[Phase.reuse, Phase.generate])  # to shrink takes minutes
@given(
    layout=layouts,
    limits=triggers,
    first_plan=plans,
    upheavals=st.lists(st.tuples(st.sampled_from(UPHEAVALS), plans), min_size=1, max_size=4),
    kept=st.integers(0, 8),
)
def test_a_micro_batch_is_the_same_after_whatever_happened(
    two_servers, layout, limits, first_plan, upheavals, kept
):
    with Client(two_servers.endpoint) as client:
        world = World(two_servers, client)
        world.build(layout)
        reader = world.reader(**limits, **first_plan)
        batches = list(micro_batches(reader))
        rows = [rows_between(reader, batch) for batch in batches]
        read = dict.fromkeys(world.ids, 0)
        for batch, table in zip(batches, rows, strict=True):
            for stream_id, (start, end) in batch.bounds().items():
                of_stream = table.filter(pc.field("stream_id") == stream_id)
                assert read[stream_id] == start
                assert of_stream.column("offset").to_pylist() == list(range(start, end))
                read[stream_id] = end
        assert read == world.tails()
        trimmed = False
        kept = min(kept, len(batches) - 1)
        for what, plan in upheavals:
            world.befall(what, batches[kept])
            trimmed = trimmed or what == "trim"
            for number, batch in enumerate(batches):
                if number >= kept or not trimmed:
                    assert rows_between(world.reader(**plan), batch).equals(rows[number])
                    assert batch_rows(world, two_servers, batch, plan).equals(rows[number])
                elif rows[number].num_rows:
                    with pytest.raises(DataLossError):
                        rows_between(world.reader(**plan), batch)
                    assert rows_between(world.reader(failOnDataLoss="false"), batch).num_rows == 0


def batch_rows(world, cluster, batch, plan):
    """The same offsets, read as a batch."""
    bounds = batch.bounds()
    options = {
        "endpoint": cluster.endpoint,
        "streams": ",".join(world.names),
        "includeHeaders": "true",
        "startingOffsets": positions_json({each: at for each, (at, _) in bounds.items()}),
        "endingOffsets": positions_json({each: end for each, (_, end) in bounds.items()}),
        **plan,
    }
    reader = SbpBatchReader(parse_source_options(options, streaming=False), SCHEMA)
    return rows_of_partitions(reader, reader.partitions())


class Kept:
    """A foreachBatch function that keeps all rows, and calls `during` in each micro-batch."""

    def __init__(self, during: Callable[[int], None] = lambda _: None) -> None:
        self.batches: dict[int, list[tuple]] = {}
        self._during = during

    def __call__(self, frame, batch_id):
        self._during(batch_id)
        rows = frame.orderBy("stream_id", "offset").collect()
        self.batches[batch_id] = [tuple(row) for row in rows]


def run(frame, checkpoint: Path, kept: Kept) -> dict[int, list[tuple]]:
    writer = frame.writeStream.foreachBatch(kept).option("checkpointLocation", str(checkpoint))
    wait_until_over(writer.trigger(availableNow=True).start())
    return kept.batches


def test_spark_replays_what_was_not_committed(spark, two_servers, checkpoint):
    """After a seal and a restart, with other limits, and once more while a trim is going on."""
    sbp = Sbp(spark, two_servers.endpoint)
    with Client(two_servers.endpoint) as client:
        world = World(two_servers, client)
        world.build([(0, 40), (1, 7), (0, "seal"), (0, 25), (2, 30), (1, "seal"), (1, 20)])
        frame = sbp.load_stream(*world.names, maxRecordsPerTrigger="30")
        first = run(frame, checkpoint, Kept())
        assert [len(first[number]) for number in sorted(first)] == [30, 30, 30, 30, 2]
        forget_commits(checkpoint, 1)
        world.befall("seal", batch_of(checkpoint, 1))
        world.befall("restart", batch_of(checkpoint, 1))
        frame = sbp.load_stream(*world.names, minPartitions="5", maxRecordsPerPartition="9")
        again = run(frame, checkpoint, Kept())
        assert again[1] == first[1]
        rest = [row for number in (2, 3, 4) for row in first[number]]
        assert sorted(again) == [1, 2]
        came_with_the_seal = [row for row in again[2] if row not in rest]
        assert [row[3] for row in came_with_the_seal] == [65, 66, 67]
        whole = sorted([*rest, *came_with_the_seal], key=lambda row: (row[1], row[3]))
        assert again[2] == whole

        forget_commits(checkpoint, 2)
        trimming = Kept(lambda number: world.befall("trim", batch_of(checkpoint, number)))
        frame = sbp.load_stream(*world.names, maxBytesPerPartition="400")
        at_last = run(frame, checkpoint, trimming)
        assert at_last == {2: whole}


def forget_commits(checkpoint: Path, first: int) -> None:
    """Leave what a crash in batch `first` would have left."""
    for folder, oldest in (("commits", first), ("offsets", first + 1)):
        for file in (checkpoint / folder).iterdir():
            if int(file.name.lstrip(".").split(".")[0]) >= oldest:
                file.unlink()


def batch_of(checkpoint: Path, number: int) -> MicroBatch:
    start, end = (
        json.loads((checkpoint / "offsets" / str(each)).read_text().splitlines()[2])
        for each in (number - 1, number)
    )
    return MicroBatch(start, end)
