"""Integers of numpy are accepted where integers of Python are: data frames give these."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from sbp_core.app.aio.assignment import locate
from sbp_core.app.positions import Positions
from sbp_core.app.record import checked_timestamp_us
from sbp_core.client import StreamBounds, StreamSpec, StreamUpdate
from sbp_core.client.operations.metadata import check_spec
from sbp_core.client.types import check_types
from sbp_core.errors import ConfigurationError

KINDS = (np.int8, np.uint16, np.int32, np.int64, np.uint64)


class Bounds:
    async def stream_bounds(self, stream_ids):
        return [StreamBounds(each, 0, 10) for each in stream_ids]


@pytest.mark.parametrize("kind", KINDS)
def test_offsets_timestamps_and_counts(kind):
    positions = Positions()
    positions.add(1, "s", 9, end_offset=None, committed_offset=None)
    (offset,) = positions.checked({"s": kind(7)}).values()
    (cursor,) = positions.checked_cursors({"s": kind(3)}, {"s": kind(7)}).values()
    start = asyncio.run(locate(Bounds(), {1: "s"}, kind(5)))[1]
    time_us = checked_timestamp_us(kind(6))
    found = (offset, cursor, start, time_us)
    assert found == (7, 3, 5, 6)
    assert {type(each) for each in found} == {int}
    check_spec(StreamSpec("s", replica_count=kind(3), retention_period_ms=kind(100)))
    check_types(StreamUpdate(kind(1), ack_count=kind(2)))


@pytest.mark.parametrize("value", [np.float64(7), "7", np.datetime64(7, "us"), True])
def test_other_values_are_refused(value):
    with pytest.raises(TypeError, match="pass microseconds"):
        checked_timestamp_us(value)


@pytest.mark.parametrize("value", [np.float64(1), np.int64(0), np.int64(128)])
def test_counts_that_no_stream_has_are_refused(value):
    with pytest.raises(ConfigurationError):
        check_spec(StreamSpec("s", replica_count=value))
