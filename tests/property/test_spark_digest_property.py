"""The digest of rows: the same however they are divided and ordered, and of those rows only."""

from functools import reduce

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp_core.records import ROWS_SCHEMA
from sbp_spark.writing.digest import LONG_BYTES, digest_of, encode_digest, hash_bytes, join_digests
from tests.support.clock import examples

binaries = st.none() | st.binary(max_size=9) | st.binary(min_size=60, max_size=140)
headers = st.none() | st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=9)))
times = st.none() | st.integers(-(2**40), 2**40)
rows = st.tuples(binaries, binaries, headers, times, st.integers(0, 3))
many_rows = st.lists(rows, max_size=12)


def batch_of(given_rows):
    """Rows of ROWS_SCHEMA, and the stream of each."""
    *columns, streams = zip(*given_rows, strict=True) if given_rows else ((),) * 5
    arrays = [
        pa.array(column, field.type) for column, field in zip(columns, ROWS_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS_SCHEMA), np.array(streams, np.int64)


def digest(given_rows):
    return digest_of(*batch_of(given_rows))


@given(many_rows, st.randoms(use_true_random=False), st.integers(0, 12))
def test_neither_order_nor_division_counts(given_rows, random, cut):
    shuffled = list(given_rows)
    random.shuffle(shuffled)
    whole = digest(given_rows)
    assert join_digests(digest(shuffled[:cut]), digest(shuffled[cut:])) == whole
    assert reduce(join_digests, (digest([row]) for row in given_rows), 0) == whole
    batch, streams = batch_of(shuffled)
    sliced = [
        digest_of(batch.slice(*part), streams[part[0] : sum(part)])
        for part in ((0, cut), (cut, max(len(shuffled) - cut, 0)))
    ]
    assert join_digests(*sliced) == whole
    assert int.from_bytes(encode_digest(whole)) == 2 * 2**64 + whole


@given(many_rows, many_rows)
def test_other_rows_have_another_digest(first, second):
    def counted(given_rows):
        return sorted(map(repr, given_rows))

    assert (digest(first) == digest(second)) == (counted(first) == counted(second))


@settings(max_examples=examples(300))
@given(st.binary(min_size=1, max_size=300), st.data())
def test_every_bit_and_every_place_counts(value, data):
    at = data.draw(st.integers(0, len(value) - 1))
    changed = bytearray(value)
    changed[at] ^= 1 << data.draw(st.integers(0, 7))
    moved = value[1:] + value[:1]
    values = {value, bytes(changed), moved, value + b"\0", value[:-1], b"\0" + value, b""}
    hashes = hash_bytes(pa.array(list(values), pa.binary()))
    assert len(set(hashes.tolist())) == len(values)


@given(st.lists(binaries, max_size=20), st.data())
def test_a_hash_is_of_the_value_alone(values, data):
    kinds = [pa.binary(), pa.large_binary()]
    alone = [int(hash_bytes(pa.array([value], kinds[0]))[0]) for value in values]
    start = data.draw(st.integers(0, len(values)))
    for kind in kinds:
        array = pa.array(values, kind)
        assert hash_bytes(array).tolist() == alone
        assert hash_bytes(array.slice(start)).tolist() == alone[start:]


lengths = st.sampled_from(
    [0, 1, 7, 8, 9, 100, 1000, LONG_BYTES - 1, LONG_BYTES, LONG_BYTES + 1, 200_000]
)


@given(st.lists(st.tuples(lengths, st.integers(0, 255)), max_size=40))
def test_values_of_any_length_beside_each_other(kinds):
    values = [bytes([filling]) * length for length, filling in kinds]
    alone = [int(hash_bytes(pa.array([value], pa.binary()))[0]) for value in values]
    assert hash_bytes(pa.array(values, pa.binary())).tolist() == alone
    assert len(set(alone)) == len(set(values))


def test_many_values_of_uneven_lengths_are_hashed_in_parts():
    random = np.random.default_rng(0)
    values = [random.bytes(length) for length in random.integers(0, 300, 3000)]
    values[1000:1000] = [random.bytes(length) for length in (5000, LONG_BYTES, 40_000)]
    alone = [int(hash_bytes(pa.array([value], pa.binary()))[0]) for value in values]
    assert hash_bytes(pa.array(values, pa.binary())).tolist() == alone


@given(rows, rows)
def test_values_that_two_rows_swap_make_a_difference(first, second):
    for column in range(5):
        swapped = [list(first), list(second)]
        swapped[0][column], swapped[1][column] = second[column], first[column]
        other = [tuple(row) for row in swapped]
        same = sorted(map(repr, other)) == sorted(map(repr, [first, second]))
        assert (digest(other) == digest([first, second])) == same


def test_null_and_empty_differ_in_every_column():
    full = (b"", b"", [], 0, 0)
    variants = [full]
    for column in range(4):
        changed = list(full)
        changed[column] = None
        variants.append(tuple(changed))
    variants += [(b"", b"", [("", None)], 0, 0), (b"", b"", [("", b"")], 0, 0)]
    assert len({digest([row]) for row in variants}) == len(variants)


def test_numbers_whose_signs_change_together():
    numbers = np.arange(1, 33, dtype="<f4")
    values = [
        array.tobytes() for array in (numbers, -numbers, numbers * np.tile(np.float32([1, -1]), 16))
    ]
    assert len(set(hash_bytes(pa.array(values, pa.binary())).tolist())) == 3


def test_values_under_nulls_do_not_count():
    offsets, data = pa.py_buffer(b"\0\0\0\0\3\0\0\0"), pa.py_buffer(b"abc")
    hiding = pa.Array.from_buffers(pa.binary(), 1, [pa.py_buffer(b"\0"), offsets, data])
    assert hash_bytes(hiding).tolist() == hash_bytes(pa.array([None], pa.binary())).tolist()
