"""Queries in processes of their own, replays, checkpoints, and sinks that misbehave."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from sbp_core.failpoints import VARIABLE
from sbp_spark.datasource import SbpDataSource
from sbp_spark.logical_types import logical_arrow_schema
from sbp_spark.reading.offsets import SourceOffset, intervals
from sbp_spark.row_schema import source_schema
from sbp_spark.streaming.stream_reader import SbpStreamReader
from sbp_spark.writing.sinks import SbpStreamWriter
from tests.support.programs import program
from tests.support.spark_clusters import python_workers

METADATA = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}})


def sbp_offset(
    *, stalled: dict[str, int] | None = None, left_out: str | None = None, **streams: Any
) -> dict[str, Any]:
    """An offset: by stream id (`s1`) the next offset, or several fields."""
    texts = []
    for key, at in streams.items():
        fields = dict(at) if isinstance(at, dict) else {"next": at}
        more = "".join(f",{name}={fields[name]}" for name in sorted(fields) if name != "next")
        texts.append(f"{key.removeprefix('s')}={fields['next']}@7{more}")
    told: dict[str, Any] = {"stalled": stalled} if stalled else {}
    told |= {"left_out": left_out} if left_out else {}
    return {**told, "streams": " ".join(texts), "version": 3 if left_out else 2}


def write_checkpoint(folder: Path, *batches: Any, committed: int, first: int = 0) -> Path:
    """A checkpoint with these micro-batches, of which `committed` are committed.

    Each is the offset of one source, a list of several, or a dict of named ones: offset log v2.
    """
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": "the-query"}))
    for number, batch in enumerate(batches, first):
        if isinstance(batch, dict) and "version" not in batch:
            lines = ["v2", METADATA, *(f"{name}:{json.dumps(batch[name])}" for name in batch)]
        else:
            sources = batch if isinstance(batch, list) else [batch]
            texts = ["-" if each is None else json.dumps(each) for each in sources]
            lines = ["v1", METADATA, *texts]
        write(folder / "offsets", number, "\n".join(lines))
        if number < first + committed:
            write(folder / "commits", number, 'v1\n{"nextBatchWatermarkMs":0}')
    return folder


def write(folder: Path, number: int, text: str) -> None:
    """A file and its checksum."""
    (folder / str(number)).write_text(text)
    (folder / f".{number}.crc").write_bytes(b"crc")


def everything(folder: Path) -> dict[str, bytes]:
    """Return the content of each file below a folder, by relative path."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def clear_unborn(folder: Path) -> None:
    """Remove what is left of a first micro-batch whose driver was killed while it noted its end.

    Spark refuses such a folder for ever (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY), although
    nothing has been read for it yet.
    """
    files = list((folder / "offsets").glob("*"))
    if not any(file.name.isdecimal() for file in files):
        for file in files:
            file.unlink()


SCHEMA = source_schema(include_headers=True)

Offset = dict[str, Any]


@dataclass(frozen=True)
class MicroBatch:
    """A micro-batch as recorded in Spark's checkpoint."""

    start: Offset
    end: Offset

    def bounds(self) -> dict[int, tuple[int, int]]:
        """The offsets that are read of each stream, by id."""
        start, end = map(SourceOffset.from_json, (self.start, self.end))
        return {each: (begin, stop) for each, begin, stop in intervals(start, end)}


def stream_reader(endpoint: str, streams: str, **options: str) -> SbpStreamReader:
    """Return a reader, which Spark keeps while a query runs; a new one is a restarted driver."""
    given = {"endpoint": endpoint, "streams": streams, "includeHeaders": "true"}
    return SbpStreamReader({**given, "startingOffsets": "earliest", **options}, SCHEMA)


def micro_batches(reader: SbpStreamReader) -> Iterator[MicroBatch]:
    """Go to the tail as a query does; offsets are as they come back from a checkpoint."""
    start = reader.initialOffset()
    limit = reader.getDefaultReadLimit()
    while (end := reader.latestOffset(start, limit)) != start:
        end = json.loads(json.dumps(end))
        yield MicroBatch(start, end)
        start = end


def rows_between(reader: SbpStreamReader, batch: MicroBatch) -> pa.Table:
    """The rows of a micro-batch, by stream and offset."""
    task = SbpStreamReader({}, SCHEMA)
    return rows_of_partitions(task, reader.partitions(batch.start, batch.end))


def rows_of_partitions(
    reader: DataSourceReader | DataSourceStreamReader, partitions: list[InputPartition]
) -> pa.Table:
    """Return the rows read by tasks, by stream and offset; each task gets pickled copies."""
    schema = logical_arrow_schema(SCHEMA)
    tables = []
    for sent in partitions:
        task, partition = pickle.loads(pickle.dumps((reader, sent)))
        tables.append(pa.Table.from_batches(list(task.read(partition)), schema))
        check_order(tables[-1])
    table = pa.concat_tables([schema.empty_table(), *tables])
    return table.sort_by([("stream_id", "ascending"), ("offset", "ascending")])


def check_order(table: pa.Table) -> None:
    """Assert that a task gives each stream's records in their order."""
    last: dict[int, int] = {}
    pairs = zip(*(table.column(name).to_pylist() for name in ("stream_id", "offset")), strict=True)
    for stream_id, offset in pairs:
        assert offset > last.get(stream_id, -1)
        last[stream_id] = offset


def positions_json(offsets: Mapping[int, int]) -> str:
    """Offsets by stream id, as the options take them."""
    return json.dumps({str(stream_id): offset for stream_id, offset in offsets.items()})


PATIENCE_SECONDS = 300
TOO_SLOW = 75
"""Exit code of a life in which Spark gave up on its Python workers: the machine had no time."""


class QueryProcess:
    """One life of queries whose log is in `folder`; each has a folder there, named by its source.

    `order` is what the program `main` takes; `failpoints` are armed in it and in its
    Python workers. Driver and JVM are one process group.
    """

    def __init__(
        self, folder: Path, life: int, *, main: str = "query", failpoints: str = "", **order: Any
    ) -> None:
        self._folder, self._life = folder, life
        with (folder / "query.log").open("ab") as log:
            self._process = subprocess.Popen(
                program(main, json.dumps({"folder": str(folder), "life": life, **order})),
                env={**os.environ, **({VARIABLE: failpoints} if failpoints else {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until_it(self, does: str) -> None:
        """Wait until the query "starts", "writes" or "has written", or is over."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        mark = self._folder / f"{does}.{self._life}"
        while not mark.exists() and self._process.poll() is None:
            assert time.monotonic() < deadline, f"the query never {does}"
            time.sleep(0.01)

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def python_workers(self) -> list[int]:
        """The process ids of the Python workers that Spark has forked for it."""
        return python_workers(self._process.pid)

    def live(self, seconds: float) -> int | None:
        """Let it go on for so long; its exit code if it ended by itself."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def wait_for_end(self) -> int:
        """Wait until it ends by itself; return its exit code."""
        return self._process.wait(PATIENCE_SECONDS)

    def kill(self) -> None:
        """Kill driver and JVM at once (SIGKILL)."""
        with suppress(ProcessLookupError):  # it ended by itself
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Written(NamedTuple):
    """One record as a micro-batch had it."""

    stream_id: int
    offset: int
    value: str


def is_batch_open(checkpoint: Path) -> bool:
    """Whether the last micro-batch that was begun is not committed."""
    return _last_number(checkpoint / "offsets") > last_commit(checkpoint)


def last_commit(checkpoint: Path) -> int:
    """The number of the last micro-batch that is committed; -1 before the first."""
    return _last_number(checkpoint / "commits")


def written_batches(folder: Path) -> dict[int, list[list[Written]]]:
    """Return the rows of each micro-batch, one list per life of the query that wrote it.

    Micro-batches and lives are in order, rows are sorted by stream and offset.
    """
    found: defaultdict[int, list[list[Written]]] = defaultdict(list)
    for path in sorted(folder.glob("batch-*.json")):
        rows = sorted(Written(*row) for row in json.loads(path.read_text(encoding="utf-8")))
        found[int(path.name.split(".")[0].removeprefix("batch-"))].append(rows)
    return found


def find_anomalies(
    batches: Mapping[int, Sequence[Sequence[Written]]], log: Iterable[Written]
) -> set[str]:
    """Return what is wrong with micro-batches, by number all that was written, against the log.

    altered: a replay wrote something else; of the last ones: lost, invented, doubled, or reordered
    within a stream.
    """
    last = [row for _, lives in sorted(batches.items()) for row in lives[-1]]
    found = {
        "altered": any(each != lives[0] for lives in batches.values() for each in lives),
        "lost": set(log) - set(last),
        "invented": set(last) - set(log),
        "doubled": len(last) > len(set(last)),
        "reordered": any(
            later.offset < row.offset
            for row, later in pairwise(sorted(last, key=_stream_of))
            if later.stream_id == row.stream_id
        ),
    }
    return {kind for kind, is_there in found.items() if is_there}


def _stream_of(row: Written) -> int:
    return row.stream_id


def _last_number(folder: Path) -> int:
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)


def make_forgetful_sink(marker: Path):
    """A sink whose commit takes effect and fails, until there is a file `marker`."""

    class ForgetfulWriter(SbpStreamWriter):
        def commit(self, messages, batchId):  # noqa: N803
            super().commit(messages, batchId)
            if not marker.exists():
                marker.touch()
                raise RuntimeError("the answer was lost")

    class ForgetfulSink(SbpDataSource):
        @classmethod
        def name(cls):
            return "sbp-forgetful-sink"

        def streamWriter(self, schema, overwrite):  # noqa: N802
            return ForgetfulWriter(super().streamWriter(schema, overwrite)._options)

    return ForgetfulSink
