"""`python -m benchmarks.core.log`: how a restart and reads depend on the length of the log.

For each size a server is filled with batches of 1 MiB in several streams until the log has the
wanted number of full segments and a quarter of the last one. Then the server is restarted a few
times, and read: at random offsets of all segments, and in full.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import psutil
import pyarrow as pa

from sbp_core import limits
from sbp_core.client import AppendItem, Client, FetchItem, StreamSpec
from sbp_core.cluster import LocalCluster
from sbp_core.log.disk import OsDisk
from sbp_core.log.durable_log import Log
from sbp_core.records import ROWS_SCHEMA, encode_rows

STREAMS: Final = 8
LAST_SEGMENT_BYTES: Final = limits.SEGMENT_BYTES // 4
BATCHES_PER_CALL: Final = 8
OPENINGS: Final = 25
RESTARTS: Final = 5
RANDOM_READS: Final = 200
FETCH_BYTES: Final = 4 * limits.MIB


@dataclass(frozen=True, slots=True)
class Figures:
    """Results for a log of `log_mb`; times are medians, rates in MB/s."""

    log_mb: float
    append_rate: float
    append_rss_mib: float
    open_ms: float
    start_s: float
    start_rss_mib: float
    random_read_ms: float
    fetch_rate: float
    read_rss_mib: float


def measure(folder: Path, full_segments: int) -> Figures:
    """Fill a log with `full_segments` segments and a part of the next, and measure."""
    log_folder = folder / "range-server-0" / "log"
    cluster = LocalCluster(folder)
    with cluster, Client(cluster.endpoint) as client:
        streams = client.create_streams([StreamSpec(f"log-{n}") for n in range(STREAMS)])
        stream_ids = [stream.stream_id for stream in streams]
        append_rate = fill(client, stream_ids, log_folder, full_segments)
        append_rss_mib = rss_mib(cluster)
    log_mb = sum(path.stat().st_size for path in log_folder.glob("*.log")) / 1e6
    open_ms = median(opening_seconds(log_folder) for _ in range(OPENINGS)) * 1000
    starts = []
    for _ in range(RESTARTS):
        began = time.perf_counter()
        cluster.start()
        starts.append(time.perf_counter() - began)
        cluster.stop()
    with cluster, Client(cluster.endpoint) as client:
        start_rss_mib = rss_mib(cluster)
        random_read_ms = read_at_random(client, stream_ids)
        fetch_rate = read_all(client, stream_ids)
        return Figures(
            log_mb,
            append_rate,
            append_rss_mib,
            open_ms,
            median(starts),
            start_rss_mib,
            random_read_ms,
            fetch_rate,
            rss_mib(cluster),
        )


def fill(client: Client, stream_ids: Sequence[int], folder: Path, full_segments: int) -> float:
    """Append until the log is as long as wanted; return MB/s."""
    batch = random_batch()
    appended_bytes, began = 0, time.perf_counter()
    while True:
        segments = sorted(folder.glob("*.log"))
        if len(segments) > full_segments and segments[-1].stat().st_size >= LAST_SEGMENT_BYTES:
            return appended_bytes / (time.perf_counter() - began) / 1e6
        client.append([AppendItem(stream_ids[n % STREAMS], batch) for n in range(BATCHES_PER_CALL)])
        appended_bytes += BATCHES_PER_CALL * len(batch)


def random_batch() -> bytes:
    """Return a record batch of 1 MiB that no file system compresses."""
    value = os.urandom(limits.MIB)
    columns = [[None], [value], [None], [0]]
    arrays = [
        pa.array(column, field.type) for column, field in zip(columns, ROWS_SCHEMA, strict=True)
    ]
    return encode_rows(
        pa.RecordBatch.from_arrays(arrays, schema=ROWS_SCHEMA), stream_id=0, timestamp_ms=0
    )


def opening_seconds(folder: Path) -> float:
    """Return how long it takes to open the log alone."""
    began = time.perf_counter()
    with Log.open(folder, disk=OsDisk(), now_ms=lambda: 0):
        return time.perf_counter() - began


def rss_mib(cluster: LocalCluster) -> float:
    """Return the resident memory of the server."""
    return float(psutil.Process(cluster.pid).memory_info().rss) / limits.MIB


def read_at_random(client: Client, stream_ids: Sequence[int]) -> float:
    """Fetch single batches at random offsets; return the median of milliseconds."""
    choose = random.Random(1)
    bounds = client.stream_bounds(stream_ids)
    times = []
    for _ in range(RANDOM_READS):
        chosen = choose.choice(bounds)
        offset = choose.randrange(chosen.start_offset, chosen.next_offset)
        began = time.perf_counter()
        (outcome,) = client.fetch([FetchItem(chosen.stream_id, offset, None, 1)])
        times.append(time.perf_counter() - began)
        check(outcome.error is None and outcome.next_offset == offset + 1)
    return median(times) * 1000


def read_all(client: Client, stream_ids: Sequence[int]) -> float:
    """Fetch everything, all streams in one frame; return MB/s."""
    tails = {each.stream_id: each.next_offset for each in client.stream_bounds(stream_ids)}
    offsets = dict.fromkeys(stream_ids, 0)
    read_bytes, began = 0, time.perf_counter()
    while items := list(_items(offsets, tails)):
        for outcome in client.fetch(items):
            check(outcome.error is None)
            read_bytes += len(outcome.payload)
            offsets[outcome.stream_id] = outcome.next_offset
    check(offsets == tails)
    return read_bytes / (time.perf_counter() - began) / 1e6


def _items(offsets: dict[int, int], tails: dict[int, int]) -> Iterator[FetchItem]:
    for stream_id, offset in offsets.items():
        if offset < tails[stream_id]:
            yield FetchItem(stream_id, offset, tails[stream_id], FETCH_BYTES)


def check(is_right: bool) -> None:  # noqa: FBT001 - it reads like an assertion
    """Fail a run whose reads are wrong."""
    if not is_right:
        raise RuntimeError("the records read differ from those written")


def main(arguments: Sequence[str]) -> int:
    """Measure the sizes that were asked for and print them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.core.log", description=__doc__)
    parser.add_argument(
        "--segments",
        type=int,
        nargs="+",
        default=[4, 75],
        help="full segments, 256 MiB each (4 75)",
    )
    parser.add_argument("--folder", type=Path, help="where the logs are written for the time")
    settings = parser.parse_args(arguments)
    print(
        "log MB | append MB/s | RSS MiB | open ms | start s | RSS MiB | random read ms | fetch MB/s"
        " | RSS MiB"
    )
    for full_segments in settings.segments:
        with tempfile.TemporaryDirectory(dir=settings.folder, prefix="log-") as folder:
            found = measure(Path(folder), full_segments)
        print(
            f"{found.log_mb:6,.0f} | {found.append_rate:11,.0f} | {found.append_rss_mib:7,.0f} |"
            f" {found.open_ms:7.1f} | {found.start_s:7.2f} | {found.start_rss_mib:7,.0f} |"
            f" {found.random_read_ms:14.2f} | {found.fetch_rate:10,.0f} |"
            f" {found.read_rss_mib:7,.0f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
