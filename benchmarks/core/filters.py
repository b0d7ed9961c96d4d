"""`python -m benchmarks.core.filters`: reading one day of a hundred, beside reading all.

A stream with a column `day` and nineteen of random doubles, in batches of 1 MiB, two of each day,
with statistics of `day`, at a server in a process of its own. A client in this process fetches and
decodes all batches, or those of one day. Both run in turn.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np
import pyarrow as pa

from benchmarks.harness.folders import new_folder
from benchmarks.harness.tables import table
from sbp_core.client import AppendItem, Client, FetchItem, StreamSpec, Writer
from sbp_core.cluster import LocalCluster
from sbp_core.records import (
    BatchFilter,
    ColumnBounds,
    StreamSchema,
    batch_filter,
    decode_columns,
    encode_columns,
    order_key,
    split_envelopes,
)

_SCHEMA: Final = StreamSchema.of(
    pa.schema([("day", pa.int64()), *((f"c{at}", pa.float64()) for at in range(19))])
)
_KEY: Final = order_key(37, pa.int64())
_ONE_DAY: Final = batch_filter(
    _SCHEMA.fingerprint, [ColumnBounds("day", _KEY, _KEY, takes_null=False)]
)
_DAYS: Final = 100
_BATCHES_PER_DAY: Final = 2
_BATCH_ROWS: Final = 6_500
_FETCH_BYTES: Final = 8 * 1024 * 1024
_ROUNDS: Final = 7


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds of one run, and the bytes of answers."""

    seconds: float
    size_bytes: int


def _write(client: Client) -> int:
    """Return the id of a new stream that has all batches."""
    (stream,) = client.create_streams([StreamSpec("days")])
    values = np.random.default_rng(1)
    with client.appender(writer=Writer()) as appender:
        for number in range(_DAYS * _BATCHES_PER_DAY):
            days = np.full(_BATCH_ROWS, number // _BATCHES_PER_DAY)
            columns = [days, *(values.random(_BATCH_ROWS) for _ in range(19))]
            stored = encode_columns(
                pa.record_batch(columns, schema=_SCHEMA.arrow),
                _SCHEMA,
                stream_id=stream.stream_id,
                timestamp_ms=0,
                stats_columns=["day"],
            )
            appender.append([AppendItem(stream.stream_id, stored)])
        appender.finish()
    return stream.stream_id


def _read(client: Client, stream_id: int, filters: tuple[BatchFilter, ...]) -> Taken:
    payload_bytes = rows = offset = 0
    end_offset = _DAYS * _BATCHES_PER_DAY * _BATCH_ROWS
    started = time.perf_counter()
    while offset < end_offset:
        item = FetchItem(stream_id, offset, end_offset, _FETCH_BYTES, filters=filters)
        (outcome,) = client.fetch([item])
        if outcome.error is not None:
            raise outcome.error
        payload_bytes += len(outcome.payload)
        for envelope in split_envelopes(outcome.payload):
            if not envelope.is_skipped:
                rows += decode_columns(envelope, _SCHEMA).num_rows
        offset = outcome.next_offset
    seconds = time.perf_counter() - started
    wanted = _BATCH_ROWS * _BATCHES_PER_DAY * (1 if filters else _DAYS)
    if rows != wanted:
        raise AssertionError(f"{rows} records were read instead of {wanted}")
    return Taken(seconds, payload_bytes)


def _line(found: Sequence[Sequence[Taken]]) -> tuple[str, ...]:
    whole, one = found
    ratios = [some.seconds / both.seconds for both, some in zip(whole, one, strict=True)]
    share = one[0].size_bytes / whole[0].size_bytes
    times = (1e3 * median(each.seconds for each in side) for side in found)
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    return (*(f"{ms:,.0f}" for ms in times), f"{median(ratios):.2f}", spread, f"{share:.3f}")


_HEADER: Final = ("all ms", "one day ms", "time", "spread", "bytes")


def measure(rounds: int) -> None:
    """Measure both in turn, and print a table."""
    sides: tuple[tuple[BatchFilter, ...], ...] = ((), (_ONE_DAY,))
    with new_folder() as folder, LocalCluster(folder) as cluster:
        found: list[list[Taken]] = [[] for _ in sides]
        with Client(cluster.endpoint) as client:
            stream_id = _write(client)
            for number in range(rounds + 1):
                for taken, filters in zip(found, sides, strict=True):
                    once = _read(client, stream_id, filters)
                    if number:  # the first round warms up
                        taken.append(once)
    print(table(_HEADER, [_line(found)], text_columns=set()))
    print("time: one day / all of the same round; bytes: the same, of answers")


def main(arguments: Sequence[str]) -> int:
    """Measure; print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.core.filters")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help=f"rounds ({_ROUNDS})")
    settings = parser.parse_args(arguments)
    measure(settings.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
