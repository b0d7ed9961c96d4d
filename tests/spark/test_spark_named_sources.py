"""Queries whose sources have names: reordered, added and removed; `sbp checkpoint` on them."""

from __future__ import annotations

import json
from functools import reduce

import pytest
from pyspark.sql import DataFrame, Row

from sbp_spark.command import main
from tests.support.spark import append_values, numbered, wait_until_over

EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


@pytest.fixture
def read(sbp, checkpoint):
    """Read what is available now of streams, each a named source; the values, sorted.

    Where a source starts can be given by its name.
    """
    values: list[bytes] = []

    def load(stream: str, starting_offsets: str) -> DataFrame:
        reader = sbp.spark.readStream.format("sbp").name(source_name(stream))
        reader = reader.options(endpoint=sbp.endpoint, startingOffsets=starting_offsets)
        return reader.load(stream).select("value")

    def call(*streams: str, **starts: str) -> list[bytes]:
        values.clear()
        frames = (load(each, starts.get(source_name(each), "earliest")) for each in streams)
        frame = reduce(DataFrame.union, frames)
        writer = frame.writeStream.option("checkpointLocation", str(checkpoint))
        writer = writer.foreachBatch(lambda rows, _: values.extend(map(value_of, rows.collect())))
        wait_until_over(writer.trigger(availableNow=True).start())
        return sorted(values)

    sbp.spark.conf.set(EVOLUTION, "true")
    yield call
    sbp.spark.conf.unset(EVOLUTION)


@pytest.fixture
def run(checkpoint, capsys):
    """Run an action of the command on the checkpoint; what it printed."""

    def call(action: str, *words: str) -> str:
        assert main(["checkpoint", action, str(checkpoint), *words]) == 0
        return capsys.readouterr().out

    return call


def value_of(row: Row) -> bytes:
    return bytes(row.value)


def source_name(stream: str) -> str:
    return stream.replace("-", "_")


def test_sources_are_reordered_added_and_removed(read, new_streams, client, run):
    first, second, third = new_streams(3)
    for stream, number in ((first, 10), (second, 20), (third, 30)):
        append_values(client, stream, numbered(number, number + 2))
    assert read(first, second) == [b"10", b"11", b"20", b"21"]
    append_values(client, first, numbered(12, 14))
    append_values(client, second, numbered(22, 23))
    assert read(third, second, first) == [b"12", b"13", b"22", b"30", b"31"]
    shown = json.loads(run("show", "--source", source_name(third), "--json"))
    assert [each["next_offset"] for each in shown["streams"]] == [2]
    append_values(client, second, numbered(23, 25))
    assert read(second, third) == [b"23", b"24"]
    printed = run("rewind", "--to-batch", "1", "--yes")
    assert f"of source {source_name(second)} is read again from offset 3 (it was at 5)" in printed
    assert read(second, third) == [b"23", b"24"]


def test_a_source_that_was_removed_is_added_again(read, new_streams, client, run):
    """Spark begins it as a new one after two batches without it, from where the options say."""
    kept, gone = new_streams(2)
    append_values(client, gone, numbered(0, 3))
    assert read(kept, gone) == [b"0", b"1", b"2"]
    for number in (10, 11):
        append_values(client, kept, numbered(number, number + 1))
        assert read(kept) == numbered(number, number + 1)
    append_values(client, gone, numbered(3, 5))
    name = source_name(gone)
    starts = {name: run("to-starting-offsets", "--source", name).strip()}
    assert read(gone, kept, **starts) == [b"3", b"4"]
