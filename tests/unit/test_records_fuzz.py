"""Damaged batches raise RecordBatchError and nothing else, least of all a signal.

The batches are read in a process of their own: Arrow's reader is native code, and its crash would
take the test run with it. More of them: `python tests/unit/test_records_fuzz.py SEED COUNT`.
"""

import os
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from sbp_core.errors import RecordBatchError
from sbp_core.records import (
    ROWS_SCHEMA,
    decode_batches,
    decode_envelope,
    decode_rows,
    encode_rows,
)

NUMBERS = [0, 1, 8, 16, -1, 2**31 - 1, 2**31, -(2**31), 2**26, 2**63 - 1, -(2**63)]


def random_rows(rng, count):
    def maybe(make):
        return None if rng.random() < 0.2 else make()

    def headers():
        return [(f"h{index}", rng.randbytes(3)) for index in range(rng.randrange(4))]

    values = [
        {
            "key": maybe(lambda: rng.randbytes(rng.randrange(12))),
            "value": maybe(lambda: rng.randbytes(rng.randrange(60))),
            "headers": maybe(headers),
            "timestamp": maybe(lambda: rng.randrange(2**50)),
        }
        for _ in range(count)
    ]
    return pa.RecordBatch.from_pylist(values, schema=ROWS_SCHEMA)


def mutate(rng, data):
    """Damage a batch in a few places, most of them in Arrow's metadata."""
    mutated = bytearray(data)
    body_start = len(data) - len(decode_envelope(data).body)
    start = 0 if rng.random() < 0.2 else body_start
    stop = len(data) if rng.random() < 0.4 else min(len(data), body_start + 900)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        position = rng.randrange(start, stop)
        width = rng.choice((0, 1, 4, 8))
        if width == 0:
            mutated[position] ^= 1 << rng.randrange(8)
            continue
        position -= position % width
        number = rng.choice([*NUMBERS, rng.randrange(2**16)]) % 2 ** (8 * width)
        mutated[position : position + width] = number.to_bytes(width, "little")
    del mutated[len(data) :]
    return mutated


def use(batch):
    """Touch everything, as a reader of the columns does."""
    batch.to_pylist()
    twice = pa.Table.from_batches([batch, batch]).combine_chunks()
    twice.take(pa.array([batch.num_rows])).to_batches()[0].serialize()


def fuzz(seed, count):
    """Return how many damaged batches were read and how many refused."""
    rng = random.Random(seed)
    corpus = [
        encode_rows(random_rows(rng, rows), stream_id=1, timestamp_ms=5, compression=compression)
        for rows in (1, 7, 200)
        for compression in ("none", "lz4", "zstd")
    ]
    refused = 0
    for _ in range(count):
        shift = rng.randrange(2)
        sound = rng.choice(corpus)
        data = bytes(shift) + mutate(rng, sound)
        try:
            envelope = decode_envelope(memoryview(data)[shift:])
            batch = decode_rows(envelope)
        except RecordBatchError:
            refused += 1
            batch = None
        else:
            use(batch.set_column(3, "timestamp", batch.column(3).view(pa.int64())))
        check_among_others(decode_envelope(sound), memoryview(data)[shift:], batch)
    return count - refused, refused


def check_among_others(sound, damaged, maybe_batch):
    """A batch reads between two others as it does alone; small ones are decoded together."""
    try:
        envelopes = [sound, decode_envelope(damaged), sound]
        found = decode_batches(envelopes, rows_enough=2**31, bytes_enough=2**31)
        found = pa.Table.from_batches(found).combine_chunks()
    except RecordBatchError:
        assert maybe_batch is None
        return
    assert maybe_batch is not None
    other = decode_rows(sound)
    expected = pa.Table.from_batches([other, maybe_batch, other]).combine_chunks()
    assert as_octets(found) == as_octets(expected)


def as_octets(table):
    """All that is in a table, also where it is no valid text or time."""
    (batch,) = table.set_column(3, "t", table.column(3).cast(pa.int64())).to_batches()
    return batch.to_pylist()


@pytest.mark.parametrize("seed", [1, 2])
def test_damaged_batches_never_kill_the_process(seed):
    root = Path(__file__).parents[2]
    finished = subprocess.run(
        [sys.executable, __file__, str(seed), "1000"],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    read, refused = map(int, finished.stdout.split())
    assert read + refused == 1000
    assert refused > 500
    assert read > 20


if __name__ == "__main__":
    print(*fuzz(int(sys.argv[1]), int(sys.argv[2])))
