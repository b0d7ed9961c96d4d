"""Records of the largest size through sink and source, at servers that are set to accept them."""

from __future__ import annotations

from zlib import crc32

import pytest
from pyspark.errors import PySparkException

from sbp_core import limits
from sbp_core.client import Client, StreamSpec
from sbp_core.cluster import LocalCluster
from tests.support.spark import Sbp

LARGEST = limits.RECORD_BYTES_LARGEST
VALUE_BYTES = LARGEST - 1024
MARKS = ["length(value) AS size", "crc32(value) AS crc"]


@pytest.fixture(scope="module")
def servers():
    with LocalCluster(options=["--record-bytes-max", str(LARGEST)]) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def large(spark, servers) -> Sbp:
    return Sbp(spark, servers.endpoint)


def values(spark, *sizes: int):
    """A row with a value of each size."""
    rows = spark.createDataFrame([(size,) for size in sizes], "size int").coalesce(1)
    return rows.selectExpr("CAST(repeat('x', size) AS BINARY) AS value")


def marks(frame) -> list[tuple[int, int]]:
    return sorted(tuple(row) for row in frame.selectExpr(*MARKS).collect())


def expected(*sizes: int) -> list[tuple[int, int]]:
    return sorted((size, crc32(b"x" * size)) for size in sizes)


def test_values_of_the_largest_size(spark, large, servers, checkpoint):
    sizes = (3, VALUE_BYTES)
    with Client(servers.endpoint) as client:
        client.create_streams([StreamSpec(name) for name in ("plain", "copy", "typed")])
    frame = values(spark, *sizes)
    large.save(frame, stream="plain")
    assert marks(large.load("plain")) == expected(*sizes)
    large.copy(large.load_stream("plain"), "copy", checkpoint)
    assert marks(large.load("copy")) == expected(*sizes)
    large.save(frame, stream="typed", encoding="columns", batchCompression="zstd")
    assert marks(large.load("typed", encoding="columns")) == expected(*sizes)


def test_a_value_that_is_larger_still(spark, large, servers):
    with Client(servers.endpoint) as client:
        client.create_streams([StreamSpec("refused")])
    frame = values(spark, LARGEST)
    with pytest.raises(PySparkException, match=f"at most {LARGEST} are allowed"):
        large.save(frame, stream="refused")
    large.save(frame, stream="refused", onBadRecord="skip")
    assert marks(large.load("refused")) == []
