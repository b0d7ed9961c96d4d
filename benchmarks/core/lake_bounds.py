"""`python -m benchmarks.core.lake_bounds`: how late records land, and how little `where` reads.

lag      A producer appends 1 KiB records at a rate. How old is each record once it is in the table?
day      A table has some days of records, each in files of its own, and the log has none of them.
         Spark reads one day by `where`: how many bytes of the files does it read?
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import quantiles
from threading import Event
from typing import Any, Final

import numpy as np
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]
from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io.pyarrow import PyArrowFileIO

import sbp_core
from benchmarks.harness.folders import new_folder
from benchmarks.harness.session import start_spark
from benchmarks.harness.tables import table
from sbp_core.client import AppendItem, AsyncClient, Client, StreamInfo, StreamSpec, StreamUpdate
from sbp_core.client import Writer as BatchWriter
from sbp_core.cluster import LocalCluster
from sbp_core.lake.catalog import open_catalog
from sbp_core.lake.landing import Landing, LandingSettings
from sbp_core.records import ROWS_SCHEMA, StreamSchema, encode_rows

_NAME: Final = "values"
_TABLE: Final = "lake.values"
_VALUE_BYTES: Final = 1024
_BATCH_ROWS: Final = 500
_MB: Final = 1e6
_DAY_US: Final = 86_400_000_000
_DAY_MB: Final = 20
_READ: Final = "SBP_BENCHMARK_BYTES_READ"
"""The variable that names the file in which all processes note how many bytes they read."""


def _new_stream(client: Client, schema: pa.Schema | None = None) -> StreamInfo:
    (stream,) = client.create_streams([StreamSpec(_NAME)])
    if schema is not None:
        client.evolve_schema(stream.stream_id, StreamSchema.of(schema), may_change=True)
    client.update_streams([StreamUpdate(_NAME, properties={"lake.table": _TABLE})])
    return stream


def _produce(endpoint: str, stream: StreamInfo, rate_mb: float, stopped: Event) -> list[float]:
    """Append batches at a rate until an event; return when each was sent."""
    rows = [
        pa.RecordBatch.from_pylist(
            [{"value": os.urandom(_VALUE_BYTES)} for _ in range(_BATCH_ROWS)], ROWS_SCHEMA
        )
        for _ in range(16)
    ]
    pause = _BATCH_ROWS * _VALUE_BYTES / (rate_mb * _MB)
    sent: list[float] = []
    began = time.monotonic()
    with Client(endpoint) as client, client.appender(writer=BatchWriter()) as appender:
        while not stopped.wait(max(0.0, began + len(sent) * pause - time.monotonic())):
            now_ms = time.time_ns() // 1_000_000
            batch = rows[len(sent) % len(rows)]
            stored = encode_rows(batch, stream_id=stream.stream_id, timestamp_ms=now_ms)
            sent.append(time.monotonic())
            appender.append([AppendItem(stream.stream_id, stored)])
        appender.finish()
    return sent


async def _land(
    endpoint: str,
    catalog: Catalog,
    stream: StreamInfo,
    settings: LandingSettings,
    upto: Callable[[], int],
) -> list[tuple[float, int]]:
    """Land a stream up to the offset that `upto` returns; return when it came how far."""
    seen: list[tuple[float, int]] = []
    async with AsyncClient(endpoint) as client:
        with ThreadPoolExecutor(1) as workers:
            landing = Landing(client, catalog, stream, _TABLE, settings=settings, workers=workers)
            running = asyncio.create_task(landing.run())
            while not seen or seen[-1][1] != upto():
                landing.changed.clear()
                await landing.changed.wait()
                assert landing.state.error is None, landing.state.error
                seen.append((time.monotonic(), landing.state.landed_offset or 0))
            running.cancel()
    return seen


def measure_lag(rate_mb: float, seconds: float, interval_s: float) -> None:
    """Print how old records are when they are in the table, by the interval of commits."""
    settings = LandingSettings(interval_s)
    with new_folder() as folder, LocalCluster(folder) as cluster, ThreadPoolExecutor(2) as workers:
        with Client(cluster.endpoint) as client:
            stream = _new_stream(client)
        stopped = Event()
        catalog = open_catalog(None, str(folder / "lake"))
        producing = workers.submit(_produce, cluster.endpoint, stream, rate_mb, stopped)

        def upto() -> int:
            return len(producing.result()) * _BATCH_ROWS if stopped.is_set() else -1

        landing = workers.submit(
            lambda: asyncio.run(_land(cluster.endpoint, catalog, stream, settings, upto))
        )
        time.sleep(seconds)
        stopped.set()
        seen = landing.result()
        sent = np.array(producing.result())
    times, ends = np.array(seen).T
    at = np.searchsorted(ends, _BATCH_ROWS * np.arange(1, len(sent) + 1))
    lags = times[at] - sent
    rate = len(sent) * _BATCH_ROWS * _VALUE_BYTES / _MB / (sent[-1] - sent[0])
    points = quantiles(lags, n=100)
    numbers = rate, interval_s, points[49], points[98], lags.max(), lags.max() / interval_s
    heading = ("MB/s", "interval s", "lag p50 s", "p99 s", "most s", "intervals")
    print(table(heading, [tuple(f"{each:.1f}" for each in numbers)], text_columns=set()))


class _CountedFile(io.FileIO):
    """A file that notes how many bytes are read."""

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size)
        with Path(os.environ[_READ]).open("a") as note:
            note.write(f"{len(data or b'')}\n")
        return data or b""


class _CountedFiles(LocalFileSystem):  # type: ignore[misc]
    def open(self, path: str, mode: str = "rb", **options: object) -> Any:
        return _CountedFile(path) if mode == "rb" else super().open(path, mode, **options)


class CountingFileIO(PyArrowFileIO):
    """Reads local files, and notes how many bytes: the catalog names this class."""

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> FileSystem:
        return PyFileSystem(FSSpecHandler(_CountedFiles(auto_mkdir=True)))


def _day_rows(day: int) -> pa.Table:
    count = int(_DAY_MB * _MB / _VALUE_BYTES)
    times = day * _DAY_US + np.arange(count) * (_DAY_US // count)
    return pa.table(
        {
            "at": pa.array(times).cast(pa.timestamp("us", tz="UTC")),
            "text": [os.urandom(_VALUE_BYTES) for _ in range(count)],
        }
    )


def _bytes_read(note: Path) -> int:
    found = sum(map(int, note.read_text().split()))
    note.write_text("")
    return found


def measure_day(days: int) -> None:
    """Print how many bytes of the files Spark reads for one day, and for all of them."""
    schema = _day_rows(0).schema
    with (
        new_folder() as folder,
        LocalCluster(folder) as cluster,
        Client(cluster.endpoint) as client,
    ):
        note = Path(os.environ.setdefault(_READ, str(folder / "read.txt")))
        settings = {
            "type": "sql",
            "uri": f"sqlite:///{folder / 'catalog.db'}",
            "warehouse": (folder / "lake").as_uri(),
            "py-io-impl": "benchmarks.core.lake_bounds.CountingFileIO",
        }
        for name, value in settings.items():
            variable = name.upper().replace("-", "_")
            os.environ[f"PYICEBERG_CATALOG__COUNTED__{variable}"] = value
        stream = _new_stream(client, schema)
        with (
            sbp_core.connect(cluster.endpoint) as connection,
            connection.producer(_NAME, timestamp_column="at") as producer,
        ):
            for day in range(days):
                producer.send_many(_day_rows(day))
                producer.flush()
        (bounds,) = client.stream_bounds([stream.stream_id])
        catalog = load_catalog("counted", **settings)
        asyncio.run(
            _land(
                cluster.endpoint, catalog, stream, LandingSettings(1.0), lambda: bounds.next_offset
            )
        )
        client.trim_streams({stream.stream_id: bounds.next_offset})
        files = [each.file for each in catalog.load_table(_TABLE).scan().plan_files()]
        whole = sum(each.file_size_in_bytes for each in files)
        spark = start_spark(folder, tasks=2, memory="4g")
        lines = []
        for condition in (
            "",
            *(f"at >= {_date(day)} and at < {_date(day + 1)}" for day in (0, days // 2, days - 1)),
        ):
            note.write_text("")
            options = {"endpoint": cluster.endpoint, "streams": _NAME, "history": "counted"}
            options |= {"where": condition} if condition else {}
            frame = spark.read.format("sbp").options(**options).load()
            count = frame.agg({"text": "count"}).collect()[0][0]
            read = _bytes_read(note)
            lines.append(
                (condition or "all", f"{count:,}", f"{read / _MB:.1f}", f"{read / whole:.2%}")
            )
        spark.stop()
    heading = ("where", "rows", "MB read", f"of {whole / _MB:.0f} MB in {len(files)} files")
    print(table(heading, lines, text_columns={0}))


def _date(day: int) -> str:
    return f"timestamp '{np.datetime64(day, 'D')} 00:00:00Z'"


def main(arguments: Sequence[str]) -> int:
    """Measure; print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.core.lake_bounds")
    parser.add_argument("what", choices=["lag", "day"])
    parser.add_argument("--rate", type=float, default=20.0, help="MB/s that arrive (20)")
    parser.add_argument("--seconds", type=float, default=60.0, help="time of arriving (60)")
    parser.add_argument("--interval", type=float, default=5.0, help="seconds of a commit (5)")
    parser.add_argument("--days", type=int, default=24, help="days of the table (24)")
    given = parser.parse_args(arguments)
    if given.what == "lag":
        measure_lag(given.rate, given.seconds, given.interval)
    else:
        measure_day(given.days)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
