"""Damaged batches raise RecordBatchError and nothing else, least of all a signal.

The batches are read in a process of their own: Arrow's reader is native code, and its crash would
take the test run with it. More of them: `python tests/unit/test_records_fuzz.py rows SEED COUNT`.
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
    StreamSchema,
    decode_batch,
    decode_batches,
    decode_columns,
    decode_envelope,
    encode_columns,
    encode_envelope,
    encode_rows,
    map_columns,
    maybe_columns_together,
    small_runs,
)
from sbp_core.records.json_values import describe_columns

NUMBER = pa.field("element", pa.int32(), nullable=False)
ENTRY = pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("y", pa.binary())])
TYPED = StreamSchema.of(
    pa.schema(
        {
            "lists": pa.list_(pa.field("element", pa.list_(NUMBER))),
            "map": pa.map_(pa.string(), ENTRY),
            "struct": pa.struct([pa.field("texts", pa.list_(pa.field("element", pa.string())))]),
            "flag": pa.bool_(),
            "price": pa.decimal128(20, 3),
        }
    )
)
NO_ROWS_OFFSET = (2**30 + 7).to_bytes(4, "little")
WIDER = pa.schema([*TYPED.arrow, pa.field("added", pa.list_(NUMBER))])
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
            batch = decode_batch(envelope)
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
    other = decode_batch(sound)
    expected = pa.Table.from_batches([other, maybe_batch, other]).combine_chunks()
    assert as_bytes(found) == as_bytes(expected)


def random_columns(rng, count):
    def maybe(make):
        return None if rng.random() < 0.3 else make()

    def some(make):
        return [make() for _ in range(rng.randrange(3))]

    values = [
        {
            "lists": maybe(lambda: some(lambda: maybe(lambda: some(lambda: rng.randrange(9))))),
            "map": maybe(lambda: some(lambda: ("k", maybe(lambda: {"x": 1, "y": b"z"})))),
            "struct": maybe(lambda: {"texts": maybe(lambda: some(lambda: "text"))}),
            "flag": maybe(lambda: rng.random() < 0.5),
            "price": maybe(lambda: rng.randrange(1000)),
        }
        for _ in range(count)
    ]
    return pa.RecordBatch.from_pylist(values, schema=TYPED.arrow)


def list_with_offsets_of_no_rows():
    """A batch with an empty list of lists, whose offsets are of no list and not checked."""
    outer = TYPED.arrow.field("lists").type.value_field
    inner = pa.Array.from_buffers(
        outer.type, 0, [None, pa.py_buffer(NO_ROWS_OFFSET)], children=[pa.array([], pa.int32())]
    )
    offsets = pa.array([0, 0], pa.int32()).buffers()[1]
    lists = pa.Array.from_buffers(pa.list_(outer), 1, [None, offsets], children=[inner])
    others = [pa.nulls(1, field.type) for field in list(TYPED.arrow)[1:]]
    body = pa.RecordBatch.from_arrays([lists, *others], schema=TYPED.arrow).serialize()
    return encode_envelope(
        [body],
        stream_id=1,
        record_count=1,
        base_timestamp_ms=5,
        encoding="columns",
        schema_fingerprint=TYPED.fingerprint,
    )


def use_columns(columns):
    """Touch everything, as readers do."""
    list(describe_columns(columns))
    mapped = map_columns(columns, WIDER)
    pa.concat_arrays([mapped.column(0), mapped.column(0)])
    mapped.serialize()


def fuzz_columns(seed, count):
    """Return how many damaged batches of columns were read and how many refused."""
    rng = random.Random(seed)
    corpus = [list_with_offsets_of_no_rows()] + [
        encode_columns(
            random_columns(rng, rows), TYPED, stream_id=1, timestamp_ms=5, compression=compression
        )
        for rows in (1, 7, 100)
        for compression in ("none", "lz4")
    ]
    assert NO_ROWS_OFFSET in corpus[0]
    for sound in corpus:
        use_columns(decode_columns(decode_envelope(sound), TYPED))
    refused = 0
    for _ in range(count):
        sound = rng.choice(corpus)
        damaged = mutate(rng, sound)
        names = rng.sample(TYPED.arrow.names, rng.randrange(1, 6))
        try:
            use_columns(decode_columns(decode_envelope(damaged), TYPED, TYPED.arrow.names))
        except RecordBatchError:
            refused += 1
        try:
            envelopes = [decode_envelope(each) for each in (sound, damaged, sound)]
            for run in small_runs(envelopes, rows_enough=2**31, bytes_enough=2**31):
                together = maybe_columns_together(run, TYPED, names)
                if together is not None:
                    list(describe_columns(together))
        except RecordBatchError:
            pass
    return count - refused, refused


def as_bytes(table):
    """All that is in a table, also where it is no valid text or time."""
    (batch,) = table.set_column(3, "t", table.column(3).cast(pa.int64())).to_batches()
    return batch.to_pylist()


@pytest.mark.parametrize("what", ["rows", "columns"])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_damaged_batches_never_kill_the_process(what, seed):
    root = Path(__file__).parents[2]
    finished = subprocess.run(
        [sys.executable, __file__, what, str(seed), "1000"],
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
    fuzzes = {"rows": fuzz, "columns": fuzz_columns}
    print(*fuzzes[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3])))
