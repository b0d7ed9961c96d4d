"""Times of starts and ends: as text, and for any times that the records of a stream can have."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_spark.options.read_positions import Ago, AtTime, maybe_time
from tests.support.fake_streams import read_up, reader, use_fake_cluster

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

zones = st.none() | st.integers(-1439, 1439).map(lambda m: timezone(timedelta(minutes=m)))
moments = st.datetimes(
    datetime.fromisoformat("1970-01-02"), datetime.fromisoformat("9999-12-30"), timezones=zones
)


@given(moments, st.sampled_from(["T", " "]))
def test_iso_8601_is_the_ms_since_1970_in_utc_unless_a_zone_is_named(moment, separator):
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    expected = (aware - EPOCH) // timedelta(milliseconds=1)
    assert maybe_time(moment.isoformat(separator), is_start=True) == AtTime(
        expected, must_exist=True
    )


@given(st.integers(0, (2**63 - 1) // 1000).filter(lambda time_ms: len(str(time_ms)) != 8))
def test_ms_are_the_same_as_number_and_as_text(time_ms):
    assert (
        maybe_time(time_ms, is_start=True)
        == maybe_time(str(time_ms), is_start=True)
        == AtTime(time_ms, True)
    )


@given(st.dates(datetime.fromisoformat("1970-01-01").date()))
def test_eight_digits_are_a_date_as_number_and_as_text(day):
    text = day.strftime("%Y%m%d")
    assert (
        maybe_time(int(text), is_start=True)
        == maybe_time(text, is_start=True)
        == maybe_time(str(day), is_start=True)
    )


@given(st.integers(1, 10**9), st.sampled_from(["ms", "s", "m", "h", "d"]))
def test_relative_times(count, unit):
    scale = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}[unit]
    assert maybe_time(f"-{count}{unit}", is_start=True) == Ago(count * scale)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=3
)


@given(json_values | st.text("0123456789-+:TZW. msdh"))
def test_anything_else_is_no_time_or_one_that_servers_take(value):
    found = maybe_time(value, is_start=True)
    assert found is None or isinstance(found, AtTime | Ago)
    if isinstance(found, AtTime):
        assert 0 <= found.time_ms * 1000 < 2**63


def first_since(times, time_ms):
    return next((n for n, each in enumerate(times) if each >= time_ms), None)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
    st.integers(0, 10),
    st.integers(0, 10),
    st.data(),
)
def test_a_query_reads_from_the_first_record_of_one_time_to_that_of_another(
    times, start_ms, length_ms, data
):
    """However the records come, and wherever the query is started again; clocks may go back."""
    stop_ms = start_ms + length_ms
    options = {
        "startingTimestamp": str(start_ms),
        "startingOffsetsByTimestampStrategy": "latest",
        "endingOffsetsByTimestamp": json.dumps({"a": stop_ms}),
    }
    with pytest.MonkeyPatch.context() as monkeypatch:
        fake = use_fake_cluster(monkeypatch)
        fake.times = {1: times}
        tail = data.draw(st.integers(0, len(times)))
        fake.streams = {"a": [1, 100, 0, tail]}
        start = first_since(times[:tail], start_ms)
        start = tail if start is None else start
        read, offset = [], None
        while True:
            pieces, offset = read_up(reader("a", **options), offset)
            read += [n for _, begin, end in pieces for n in range(begin, end)]
            if tail == len(times):
                break
            tail = data.draw(st.integers(tail + 1, len(times)))
            fake.streams["a"][3] = tail
    stop = first_since(times, stop_ms)
    assert read == list(range(start, len(times) if stop is None else stop))
