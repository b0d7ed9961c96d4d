"""`python -m benchmarks.core.columns`: reading two of twenty columns, beside reading all.

A stream with twenty columns of random doubles, in batches of 1 MiB, at a server in a process of its
own. A client in this process reads it as a task of the connector does, without Spark's part: all
columns, or two of them. The sides run in turn.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np
import psutil
import pyarrow as pa

from benchmarks.harness.folders import new_folder
from benchmarks.harness.tables import table
from sbp_core.client import AppendItem, Client, StreamSpec, Writer
from sbp_core.cluster import LocalCluster
from sbp_core.records import StreamSchema, encode_columns
from sbp_spark.options.endpoints import Servers
from sbp_spark.reading.input_partitions import decode_chunks
from sbp_spark.reading.layout import ColumnsLayout
from sbp_spark.reading.partition_planning import StreamSpan
from sbp_spark.reading.prefetch import Chunk, Prefetcher, fetch_chunks
from sbp_spark.reading.schema_versions import SchemaVersions

_SCHEMA: Final = StreamSchema.of(pa.schema([(f"c{at}", pa.float64()) for at in range(20)]))
_TWO: Final = pa.schema([_SCHEMA.arrow.field(at) for at in (3, 17)])
_BATCH_ROWS: Final = 6_500
_BATCHES: Final = 200
_FIRST_MS: Final = 1_700_000_000_000
_ROUNDS: Final = 7
_AHEAD_BYTES: Final = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds of one run, processor time, and the bytes of answers."""

    seconds: float
    processor_seconds: float
    size_bytes: int


def _write(client: Client) -> int:
    """Return the id of a new stream that has all batches."""
    (stream,) = client.create_streams([StreamSpec("doubles")])
    client.register_schema(stream.stream_id, _SCHEMA, version=1)
    values = np.random.default_rng(1)
    with client.appender(writer=Writer()) as appender:
        for at in range(_BATCHES):
            columns = [values.random(_BATCH_ROWS) for _ in _SCHEMA.arrow]
            rows = pa.record_batch(columns, schema=_SCHEMA.arrow)
            time_ms = _FIRST_MS + at
            stored = encode_columns(rows, _SCHEMA, stream_id=stream.stream_id, timestamp_ms=time_ms)
            appender.append([AppendItem(stream.stream_id, stored)])
        appender.finish()
    return stream.stream_id


def _processor_seconds(server: psutil.Process) -> float:
    """Return the processor time of client and server so far."""
    times = server.cpu_times()
    return float(time.process_time() + times.user + times.system)


def _read(client: Client, server: psutil.Process, stream_id: int, schema: pa.Schema) -> Taken:
    span = StreamSpan(stream_id, "doubles", 0, 0, _BATCHES * _BATCH_ROWS, ())
    layout = ColumnsLayout(schema, SchemaVersions(client, Servers(("any:1",)), {}))
    payload_bytes = 0

    def counted(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        nonlocal payload_bytes
        for chunk in chunks:
            payload_bytes += len(chunk.batches.payload)
            yield chunk

    busy_s, started = _processor_seconds(server), time.perf_counter()
    fetched = fetch_chunks(client, [span], projections_of=layout.projections)
    with closing(Prefetcher(fetched, bytes_max=_AHEAD_BYTES)) as ahead:
        rows = sum(each.num_rows for each in decode_chunks(counted(iter(ahead)), [span], layout))
    seconds, busy_s = time.perf_counter() - started, _processor_seconds(server) - busy_s
    if rows != _BATCHES * _BATCH_ROWS:
        raise AssertionError(f"{rows} records were read instead of {_BATCHES * _BATCH_ROWS}")
    return Taken(seconds, busy_s, payload_bytes)


def _line(found: Sequence[Sequence[Taken]]) -> tuple[str, ...]:
    whole, two = found
    ratios = [some.seconds / both.seconds for both, some in zip(whole, two, strict=True)]
    share = two[0].size_bytes / whole[0].size_bytes
    busy, busy_all = (sum(each.processor_seconds for each in side) for side in (two, whole))
    times = (1e3 * median(each.seconds for each in side) for side in found)
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    shares = (f"{median(ratios):.2f}", spread, f"{busy / busy_all:.2f}", f"{share:.3f}")
    return (*(f"{ms:,.0f}" for ms in times), *shares)


_HEADER: Final = ("all ms", "two ms", "time", "spread", "processor", "bytes")


def measure(rounds: int) -> None:
    """Measure both in turn, and print a table."""
    schemas = (_SCHEMA.arrow, _TWO)
    with new_folder() as folder, LocalCluster(folder) as cluster:
        found: list[list[Taken]] = [[] for _ in schemas]
        with Client(cluster.endpoint) as client:
            stream_id, server = _write(client), psutil.Process(cluster.pid)
            for number in range(rounds + 1):
                for taken, schema in zip(found, schemas, strict=True):
                    once = _read(client, server, stream_id, schema)
                    if number:  # the first round warms up
                        taken.append(once)
    print(table(_HEADER, [_line(found)], text_columns=set()))
    print(
        "two / all: time of the same round, processor time of client and server, bytes of answers"
    )


def main(arguments: Sequence[str]) -> int:
    """Measure; print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.core.columns")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help=f"rounds ({_ROUNDS})")
    settings = parser.parse_args(arguments)
    measure(settings.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
