"""`python -m benchmarks.core.encryption`: the cost of TLS, beside plain connections.

Two servers with one stream each, one of which speaks TLS, each in a process of its own. A client
in this process writes records of 1 KiB in batches of 1 MiB, and reads them back, as a task of the
connector does without Spark's part: it builds record batches, and sends the next one before the
last one is acknowledged; it fetches 8 MiB at a time ahead of what it decodes. The sides run in
turn.
"""

from __future__ import annotations

import argparse
import os
import ssl
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import psutil
import pyarrow as pa
import trustme

from benchmarks.harness.folders import new_folder
from benchmarks.harness.tables import table
from sbp_core.client import AppendItem, Client, Connecting, StreamSpec, Tls, Writer
from sbp_core.cluster import LocalCluster
from sbp_core.records import ROWS_SCHEMA, decode_batches, encode_rows, split_envelopes
from sbp_core.tls import ServerTls
from sbp_spark.reading.partition_planning import StreamSpan
from sbp_spark.reading.prefetch import Prefetcher, fetch_chunks

_VALUE_BYTES: Final = 1024
_BATCH_RECORDS: Final = 1000
_ROUND_BATCHES: Final = 200
_ROUND_BYTES: Final = _ROUND_BATCHES * _BATCH_RECORDS * _VALUE_BYTES
_ROUNDS: Final = 15
_AHEAD_BYTES: Final = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds of one run: by the clock, and of the processor in the client and the server."""

    wall: float
    client: float
    server: float


class Side:
    """A client and its server, with TLS or without."""

    def __init__(self, stack: ExitStack, folder: Path, tls: ServerTls | None) -> None:
        self._cluster = stack.enter_context(LocalCluster(folder, tls=tls))
        connecting = Connecting(tls=None if tls is None else Tls(tls.ca_file))
        self._client = stack.enter_context(Client(self._cluster.endpoint, connecting=connecting))
        (self._stream,) = self._client.create_streams([StreamSpec("records")])
        self._server = psutil.Process(self._cluster.pid)
        self._end_offset = 0

    def write(self, rows: pa.RecordBatch) -> Taken:
        """Append a round of batches."""
        stream_id = self._stream.stream_id

        def append() -> None:
            with self._client.appender(writer=Writer()) as appender:
                for _ in range(_ROUND_BATCHES):
                    data = encode_rows(rows, stream_id=stream_id, timestamp_ms=0)
                    appender.append([AppendItem(stream_id, data)])
                appender.finish()

        taken = self._time(append)
        self._end_offset += _ROUND_BATCHES * _BATCH_RECORDS
        return taken

    def read(self) -> Taken:
        """Read the last round of batches."""
        stream_id, end = self._stream.stream_id, self._end_offset
        start = end - _ROUND_BATCHES * _BATCH_RECORDS
        span = StreamSpan(stream_id, "records", 0, start, end, ())
        value_bytes = 0

        def fetch() -> None:
            nonlocal value_bytes
            chunks = Prefetcher(fetch_chunks(self._client, [span]), bytes_max=_AHEAD_BYTES)
            for chunk in chunks:
                envelopes = split_envelopes(chunk.batches.payload)
                for rows in decode_batches(envelopes, rows_enough=1, bytes_enough=1):
                    value_bytes += len(rows) * _VALUE_BYTES
            chunks.close()

        taken = self._time(fetch)
        if value_bytes != _ROUND_BYTES:
            raise AssertionError(f"{value_bytes} bytes were read instead of {_ROUND_BYTES}")
        return taken

    def _time(self, work: Callable[[], None]) -> Taken:
        os.sync()
        server, client = self._server.cpu_times(), time.process_time()
        started = time.perf_counter()
        work()
        wall = time.perf_counter() - started
        client = time.process_time() - client
        now = self._server.cpu_times()
        return Taken(wall, client, now.user + now.system - server.user - server.system)


def _certificate(folder: Path) -> ServerTls:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    files = ServerTls(folder / "server.pem", folder / "server.key", folder / "ca.pem")
    authority.cert_pem.write_to_path(str(files.ca_file))
    issued.cert_chain_pems[0].write_to_path(str(files.cert_file))
    issued.private_key_pem.write_to_path(str(files.key_file))
    return files


def _rows() -> pa.RecordBatch:
    columns = [
        pa.nulls(_BATCH_RECORDS, ROWS_SCHEMA.field("key").type),
        pa.array(
            [os.urandom(_VALUE_BYTES) for _ in range(_BATCH_RECORDS)],
            ROWS_SCHEMA.field("value").type,
        ),
        pa.nulls(_BATCH_RECORDS, ROWS_SCHEMA.field("headers").type),
        pa.array([0] * _BATCH_RECORDS, ROWS_SCHEMA.field("timestamp").type),
    ]
    return pa.record_batch(columns, schema=ROWS_SCHEMA)


def _rows_of_table(
    work: str, plain: Sequence[Taken], encrypted: Sequence[Taken]
) -> list[tuple[str, ...]]:
    ratios = [tls.wall / own.wall for own, tls in zip(plain, encrypted, strict=True)]
    lines: list[tuple[str, ...]] = []
    for name, found in (("plain", plain), ("TLS", encrypted)):
        megabytes = _ROUND_BYTES / 1e6
        numbers = (
            megabytes / median(each.wall for each in found),
            1e6 * median(each.client for each in found) / megabytes,
            1e6 * median(each.server for each in found) / megabytes,
        )
        lines.append((work, name, *(f"{number:,.0f}" for number in numbers), "", ""))
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    lines[-1] = (*lines[-1][:-2], f"{median(ratios):.2f}", spread)
    return lines


_HEADER: Final = ("what", "side", "MB/s", "client us/MB", "server us/MB", "time", "spread")


def measure(rounds: int) -> None:
    """Measure both sides in turn, and print a table."""
    with new_folder() as folder, ExitStack() as stack:
        rows = _rows()
        sides = [
            Side(stack, folder / name, files)
            for name, files in (("plain", None), ("tls", _certificate(folder)))
        ]
        writes: list[list[Taken]] = [[], []]
        reads: list[list[Taken]] = [[], []]
        for number in range(rounds + 1):
            for at, side in enumerate(sides):
                written, read = side.write(rows), side.read()
                if number:  # the first round warms up
                    writes[at].append(written)
                    reads[at].append(read)
        lines = [*_rows_of_table("write", *writes), *_rows_of_table("read", *reads)]
        print(f"{ssl.OPENSSL_VERSION}\n{table(_HEADER, lines, text_columns={0, 1})}")
        print("time: TLS / plain of the same round; us/MB: processor time")


def main(arguments: Sequence[str]) -> int:
    """Measure; print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.core.encryption")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help=f"rounds ({_ROUNDS})")
    settings = parser.parse_args(arguments)
    measure(settings.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
