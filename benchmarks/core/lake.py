"""`python -m benchmarks.core.lake`: landing a stream in a table, and reading both as one.

400 MB of random values of 1 KiB. Landing goes on in this process, beside a server in a process of
its own; then PyArrow writes the same files with nothing around it. Then the log is trimmed, and
Spark reads the stream through `history`, the same files by its own Parquet reader, and by a Python
source that does nothing else: no source in Python is faster than that one. The sides run in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks.harness.folders import new_folder
from benchmarks.harness.session import start_spark
from benchmarks.harness.tables import table
from sbp_core.client import AppendItem, AsyncClient, Client, StreamInfo, StreamSpec, StreamUpdate
from sbp_core.client import Writer as BatchWriter
from sbp_core.cluster import LocalCluster
from sbp_core.lake.catalog import open_catalog
from sbp_core.lake.columns import PLAIN
from sbp_core.lake.landing import Landing, LandingSettings
from sbp_core.lake.table import DICTIONARY_BYTES
from sbp_core.records import ROWS_SCHEMA, encode_rows

_VALUE_BYTES: Final = 1024
_BATCH_ROWS: Final = 1_000
_BATCHES: Final = 390
_ROWS: Final = _BATCHES * _BATCH_ROWS
_ROUNDS: Final = 5
_MB: Final = 1e6
_SIDES: Final = (
    "landing",
    "landing (processor)",
    "the files alone",
    "the files alone (processor)",
    "union read",
    "Spark's Parquet",
    "a Python source",
)


def _write(client: Client) -> StreamInfo:
    """Return a new stream that has all records."""
    (stream,) = client.create_streams([StreamSpec("values")])
    client.update_streams([StreamUpdate("values", properties={"lake.table": "lake.values"})])
    with client.appender(writer=BatchWriter()) as appender:
        for _ in range(_BATCHES):
            rows = pa.RecordBatch.from_pylist(
                [{"value": os.urandom(_VALUE_BYTES)} for _ in range(_BATCH_ROWS)], ROWS_SCHEMA
            )
            now_ms = time.time_ns() // 1_000_000
            stored = encode_rows(rows, stream_id=stream.stream_id, timestamp_ms=now_ms)
            appender.append([AppendItem(stream.stream_id, stored)])
        appender.finish()
    return stream


def _groups(path: str) -> list[pa.Table]:
    file = pq.ParquetFile(path)
    return [file.read_row_group(each) for each in range(file.num_row_groups)]


@dataclass(frozen=True)
class _File(InputPartition):
    path: str


class PythonParquet(DataSource):
    """Parquet files of a table, read by PyArrow and passed on."""

    @classmethod
    def name(cls) -> str:
        """Return how queries name it."""
        return "python_parquet"

    def schema(self) -> str:
        """Return the columns of a table of a plain stream."""
        return (
            "_offset bigint not null, _timestamp timestamp not null, _key binary, value binary,"
            " _headers map<string, binary>"
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads the files."""
        return _Reader(self.options["paths"].split(","))


class _Reader(DataSourceReader):
    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    def partitions(self) -> Sequence[InputPartition]:
        return [_File(urlsplit(each).path) for each in self._paths]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _File)
        file = pq.ParquetFile(partition.path)
        for number in range(file.num_row_groups):
            rows = file.read_row_group(number, use_threads=False)
            columns = [
                each.combine_chunks().cast(field.type)
                for each, field in zip(rows.columns, PLAIN, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=PLAIN)


async def _land(endpoint: str, warehouse: Path, stream: StreamInfo, name: str) -> None:
    catalog = open_catalog(None, str(warehouse))
    async with AsyncClient(endpoint) as client:
        with ThreadPoolExecutor(1) as workers:
            settings = LandingSettings(interval_seconds=1.0)
            landing = Landing(client, catalog, stream, name, settings=settings, workers=workers)
            running = asyncio.create_task(landing.run())
            while landing.state.landed_offset != _ROWS:
                landing.changed.clear()
                await landing.changed.wait()
            running.cancel()


class _Times(defaultdict[str, list[float]]):
    """Seconds by what was done, and of the processor by that and " (processor)"."""

    def __init__(self) -> None:
        super().__init__(list)

    def take(self, name: str, work: Callable[[], object]) -> None:
        os.sync()
        began, busy_s = time.perf_counter(), time.process_time()
        work()
        self[name].append(time.perf_counter() - began)
        self[f"{name} (processor)"].append(time.process_time() - busy_s)


def _write_alone(path: Path, files: Sequence[list[pa.Table]]) -> None:
    for groups in files:
        with pq.ParquetWriter(
            *(path, groups[0].schema),
            compression="zstd",
            dictionary_pagesize_limit=DICTIONARY_BYTES,
        ) as writer:
            for group in groups:
                writer.write(group)


def _paths(table: Table) -> list[str]:
    return [each.file.file_path for each in table.scan().plan_files()]


def _read(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def measure(rounds: int) -> None:
    """Measure all in turn, and print a table."""
    times = _Times()
    with new_folder() as folder, LocalCluster(folder) as cluster:
        warehouse = folder / "lake"
        catalog = open_catalog(None, str(warehouse))
        with Client(cluster.endpoint) as client:
            stream = _write(client)
        for number in range(rounds + 1):
            name = "lake.values" if not number else f"lake.values{number}"
            land = _land(cluster.endpoint, warehouse, stream, name)
            times.take("landing", partial(asyncio.run, land))
            files = [_groups(urlsplit(each).path) for each in _paths(catalog.load_table(name))]
            times.take("the files alone", partial(_write_alone, folder / "alone.parquet", files))
        with Client(cluster.endpoint) as client:
            client.trim_streams({stream.stream_id: _ROWS})
        spark = start_spark(folder, tasks=2, memory="4g")
        spark.dataSource.register(PythonParquet)
        paths = _paths(catalog.load_table("lake.values"))
        options = {"endpoint": cluster.endpoint, "streams": "values", "history": f"{warehouse}/"}
        bare = spark.read.format(PythonParquet.name()).option("paths", ",".join(paths))
        union = spark.read.format("sbp").options(**options)
        for _ in range(rounds + 3):
            times.take("union read", lambda: _read(union.load()))
            times.take("Spark's Parquet", lambda: _read(spark.read.parquet(*paths)))
            times.take("a Python source", lambda: _read(bare.load()))
        spark.stop()
    size = _ROWS * _VALUE_BYTES / _MB
    lines = []
    for name in _SIDES:
        found = times[name][-rounds:]
        lines.append(
            (name, f"{median(found):.2f}", f"{size / median(found):,.0f}", f"{min(found):.2f}")
        )
    print(table(("side", "s", "MB/s", "least s"), lines, text_columns={0}))


def main(arguments: Sequence[str]) -> int:
    """Measure; print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.core.lake")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help=f"rounds ({_ROUNDS})")
    measure(parser.parse_args(arguments).rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
