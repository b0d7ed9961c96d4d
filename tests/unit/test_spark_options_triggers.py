"""Limits of micro-batches and of partitions, as they are written."""

from __future__ import annotations

import pytest

from sbp_spark.options.source import PARTITIONS_MAX, PartitionLimits, TriggerLimits
from tests.support.spark import GOOD, faults, only_fault, source


@pytest.mark.parametrize(
    "text", ["0", "-1", "1.5", "1e3", "+1", "1_000", "\u0663", str(2**63), "x"]
)
def test_bad_record_limits(text):
    assert "maxRecordsPerTrigger is" in only_fault(maxRecordsPerTrigger=text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("64m", 64 << 20),
        ("64MB", 64 << 20),
        ("1 GiB", 1 << 30),
        ("3k", 3 << 10),
        ("2t", 2 << 40),
        ("7b", 7),
    ],
)
def test_sizes(text, size):
    assert source(maxBytesPerTrigger=text).limits.bytes_max == size


@pytest.mark.parametrize(
    ("text", "ms"),
    [("5", 5), ("500ms", 500), ("30 s", 30_000), ("15m", 900_000), ("2h", 7_200_000)],
)
def test_times(text, ms):
    limits = source(minRecordsPerTrigger="9", maxTriggerDelay=text).limits
    assert limits == TriggerLimits(records_min=9, delay_ms_max=ms)
    assert source(maxRangeStall=text).limits == TriggerLimits(stall_ms_max=ms)
    assert source(targetBatchDuration=text).limits == TriggerLimits(target_ms=ms)


@pytest.mark.parametrize("text", ["0", "0m", "1.5g", "-1m", "m", "5x", "5ib", "9" * 30, "1g1"])
def test_bad_sizes_and_times(text):
    assert "a size, such as 64m" in only_fault(maxBytesPerTrigger=text)
    line = only_fault(minRecordsPerTrigger="1", maxTriggerDelay=text)
    assert "a time, such as 500ms" in line


def test_limits_that_contradict_each_other():
    assert "above maxRecordsPerTrigger, 4" in only_fault(
        minRecordsPerTrigger="5", maxRecordsPerTrigger="4"
    )
    assert "without minRecordsPerTrigger" in only_fault(maxTriggerDelay="1m")


def test_a_batch_has_no_limits():
    given = {
        "maxRecordsPerTrigger": "5",
        "maxBytesPerTrigger": "5",
        "minRecordsPerTrigger": "5",
        "maxTriggerDelay": "5",
        "targetBatchDuration": "5s",
        "maxRangeStall": "5s",
    }
    lines = faults({**GOOD, **given}, streaming=False)
    assert [line.split()[1] for line in lines] == list(given)
    assert all("no triggers" in line for line in lines)


def test_partitions():
    given = {"minPartitions": "8", "maxRecordsPerPartition": "5", "maxBytesPerPartition": "1k"}
    given["fetchBufferBytes"] = "4m"
    for streaming in (True, False):
        assert source(streaming, **given).partitions == PartitionLimits(5, 1024, 8, 4 * 1024 * 1024)
    assert source().partitions == PartitionLimits(1_000_000, None, None, 16 * 1024 * 1024)
    lines = faults({**GOOD, **dict.fromkeys(given, "0")})
    assert [line.split()[1] for line in lines] == [
        "maxRecordsPerPartition",
        "maxBytesPerPartition",
        "minPartitions",
        "fetchBufferBytes",
    ]


def test_more_partitions_than_a_driver_can_keep_are_refused():
    assert source(minPartitions="10000").partitions.count_min == PARTITIONS_MAX
    (line,) = faults({**GOOD, "minPartitions": "10001"})
    assert "minPartitions is '10001'" in line
    assert str(PARTITIONS_MAX) in line
