"""Where rows go: none is lost or doubled, a key has one stream, and each stream keeps the order."""

from zlib import crc32

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sbp_spark.options.sink_targets import Routing
from sbp_spark.writing.directory import StreamDirectory
from sbp_spark.writing.payload import to_rows
from sbp_spark.writing.routing import NO_STREAM, RowRouter, split_rows
from tests.support.scripted_client import WritingClient, sink_options

keys = st.none() | st.binary(max_size=3)
batches = st.lists(st.lists(keys, max_size=20), max_size=6)
counts = st.integers(1, 7)
stream_names = st.sampled_from(["s0", "s1", "s12", "nowhere", "7", "no name", None])
ids_of_names = {"s0": 0, "s1": 1, "s12": 12, "7": 7}
runs_of_names = st.lists(st.tuples(stream_names, st.integers(1, 9)), min_size=1, max_size=4)


def routed(key_batches, count, routing, partition_id):
    """Return the rows of each stream in order, as (key, number of the row), and their count."""
    options = sink_options(*(f"s{number}" for number in range(count)), routing=routing)
    directory = StreamDirectory(WritingClient(), None, "option streams")
    router = RowRouter(options.targets, directory, partition_id=partition_id)
    found = {number: [] for number in range(count)}
    number = 0
    for batch_keys in key_batches:
        values = [b"%d" % each for each in range(number, number + len(batch_keys))]
        number += len(batch_keys)
        batch = pa.record_batch(
            {"key": pa.array(batch_keys, pa.binary()), "value": pa.array(values, pa.binary())}
        )
        rows = to_rows(batch)
        for stream_id, part in split_rows(rows, router.route(batch, rows).stream_ids):
            found[stream_id] += [(row["key"], int(row["value"])) for row in part.to_pylist()]
    return found, number


@given(batches, counts, st.sampled_from(Routing), st.integers(0, 9))
def test_every_row_is_in_one_stream_and_in_order(key_batches, count, routing, partition_id):
    found, number = routed(key_batches, count, routing, partition_id)
    numbers = [[each for _, each in rows] for rows in found.values()]
    assert all(rows == sorted(rows) for rows in numbers)
    assert sorted(each for rows in numbers for each in rows) == list(range(number))


@given(batches, counts, st.integers(0, 9))
def test_a_key_decides_and_rows_without_one_are_spread_evenly(key_batches, count, partition_id):
    found, _ = routed(key_batches, count, Routing.KEY, partition_id)
    for stream_id, rows in found.items():
        assert {crc32(key) % count for key, _ in rows if key is not None} <= {stream_id}
    keyless = [sum(key is None for key, _ in rows) for rows in found.values()]
    assert max(keyless) - min(keyless) <= 1


@given(batches, counts, st.integers(0, 9))
def test_round_robin_is_even_and_begins_where_the_partition_says(key_batches, count, partition_id):
    found, number = routed(key_batches, count, Routing.ROUND_ROBIN, partition_id)
    sizes = [len(rows) for rows in found.values()]
    assert max(sizes) - min(sizes) <= 1
    if number:
        assert found[partition_id % count][0][1] == 0


@given(runs_of_names)
def test_a_column_decides_row_by_row(runs):
    """Also where all rows of a batch say the same, be it a stream, none, or nothing."""
    names = [name for name, count in runs for _ in range(count)]
    batch = pa.record_batch({"stream": pa.array(names, pa.string())})
    router = RowRouter(
        sink_options().targets, StreamDirectory(WritingClient(), None, "column stream")
    )
    routed = router.route(batch, to_rows(batch))
    expected = [ids_of_names.get(name, NO_STREAM) for name in names]
    assert np.full(len(names), routed.stream_ids).tolist() == expected
    bad = {int(index): each for each in routed.bad for index in each.indexes}
    assert sorted(bad) == [index for index, each in enumerate(expected) if each == NO_STREAM]
    for index, each in bad.items():
        assert each.stream == names[index]
