"""`python -m benchmarks.core.lake`: landing a stream in a table, and reading both as one.

400 MB of random values of 1 KiB. Landing goes on in this process, beside a server in a process of
its own; then PyArrow writes the same rows as one Parquet file with nothing around it. Then the log
is trimmed, and Spark reads the stream through `history`, and the same files by its own Parquet
reader. The sides run in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness.folders import new_folder
from benchmarks.harness.session import start_spark
from benchmarks.harness.tables import table
from sbp_core.client import AppendItem, AsyncClient, Client, StreamInfo, StreamSpec, StreamUpdate
from sbp_core.client import Writer as BatchWriter
from sbp_core.cluster import LocalCluster
from sbp_core.lake.catalog import open_catalog
from sbp_core.lake.files import read_file
from sbp_core.lake.landing import Landing, LandingSettings
from sbp_core.records import ROWS_SCHEMA, encode_rows

_VALUE_BYTES: Final = 1024
_BATCH_ROWS: Final = 1_000
_BATCHES: Final = 390
_ROWS: Final = _BATCHES * _BATCH_ROWS
_ROUNDS: Final = 5
_MB: Final = 1e6


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


def measure(rounds: int) -> None:
    """Measure all in turn, and print a table."""
    landed: list[float] = []
    busy: list[float] = []
    alone: list[float] = []
    union: list[float] = []
    parquet: list[float] = []
    with new_folder() as folder, LocalCluster(folder) as cluster:
        warehouse = folder / "lake"
        catalog = open_catalog(None, str(warehouse))
        with Client(cluster.endpoint) as client:
            stream = _write(client)
        for number in range(rounds + 1):
            name = "lake.values" if not number else f"lake.values{number}"
            os.sync()
            began, busy_s = time.perf_counter(), time.process_time()
            asyncio.run(_land(cluster.endpoint, warehouse, stream, name))
            landed.append(time.perf_counter() - began)
            busy.append(time.process_time() - busy_s)
            lake = catalog.load_table(name)
            files = [each.file.file_path for each in lake.scan().plan_files()]
            rows = pa.concat_tables(read_file(lake.io, each) for each in files)
            os.sync()
            began = time.perf_counter()
            pq.write_table(rows, folder / "alone.parquet", compression="zstd")
            alone.append(time.perf_counter() - began)
        with Client(cluster.endpoint) as client:
            client.trim_streams({stream.stream_id: _ROWS})
        spark = start_spark(folder, tasks=2, memory="4g")
        lake = catalog.load_table("lake.values")
        paths = [each.file.file_path for each in lake.scan().plan_files()]
        options = {"endpoint": cluster.endpoint, "streams": "values", "history": f"{warehouse}/"}
        for _ in range(rounds + 3):
            began = time.perf_counter()
            spark.read.format("sbp").options(**options).load().write.format("noop").mode(
                "overwrite"
            ).save()
            union.append(time.perf_counter() - began)
            began = time.perf_counter()
            spark.read.parquet(*paths).write.format("noop").mode("overwrite").save()
            parquet.append(time.perf_counter() - began)
        spark.stop()
    sides = {
        "landing": landed[1:],
        "its processor": busy[1:],
        "the file alone": alone[1:],
        "union read": union[3:],
        "Spark's Parquet": parquet[3:],
    }
    size = _ROWS * _VALUE_BYTES / _MB
    lines = [
        (name, f"{median(each):.2f}", f"{size / median(each):,.0f}", f"{min(each):.2f}")
        for name, each in sides.items()
    ]
    print(table(("side", "s", "MB/s", "least s"), lines, text_columns={0}))


def main(arguments: Sequence[str]) -> int:
    """Measure; print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.core.lake")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help=f"rounds ({_ROUNDS})")
    measure(parser.parse_args(arguments).rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
