"""Times at which reading starts and ends, as they are written."""

from __future__ import annotations

import json

import pytest

from sbp_spark.options.read_positions import Ago, AtOffset, AtTime, Positions
from sbp_spark.options.source import parse_source_options
from tests.support.spark import GOOD, faults, only_fault, source

MORNING_MS = 1_769_851_800_000  # 2026-01-31T09:30 UTC

TIMES = [
    ("2026-01-31T09:30", AtTime(MORNING_MS)),
    ("2026-01-31 09:30:00Z", AtTime(MORNING_MS)),
    ("2026-01-31T11:30:00+02:00", AtTime(MORNING_MS)),
    ("2026-01-31", AtTime(MORNING_MS - 34_200_000)),
    ("2026-01-31T09:30:00.0019", AtTime(MORNING_MS + 1)),
    (str(MORNING_MS), AtTime(MORNING_MS)),
    ("20260131", AtTime(MORNING_MS - 34_200_000)),
    ("20260131T0930", AtTime(MORNING_MS)),
    ("2026013", AtTime(2_026_013)),
    ("202601310", AtTime(202_601_310)),
    ("0", AtTime(0)),
    ("-10m", Ago(600_000)),
    ("-90s", Ago(90_000)),
    ("-250ms", Ago(250)),
    ("-2h", Ago(7_200_000)),
    ("-7D", Ago(604_800_000)),
]

WRONG = [
    "yesterday",
    "10m",
    "-10",
    "-0m",
    "-10y",
    "--10m",
    "-1.5h",
    "1969-12-31T23:59:59Z",
    "2026-02-30",
    "20260230",
    "19691231",
    "24:00",
    "1e12",
    "0001-01-01T00:00+23:59",
    "9" * 19,
    "latest",
    "null",
    "[1]",
]


def must(position):
    """The same time, which has to have a record."""
    return AtTime(position.time_ms, must_exist=True) if isinstance(position, AtTime) else position


@pytest.mark.parametrize(("text", "position"), TIMES)
def test_times(text, position):
    assert source(startingTimestamp=text).starting == Positions(must(position))
    options = source(startingOffsets="earliest", endingTimestamp=text)
    assert options.ending == Positions(position)
    assert options.ending.option == "endingTimestamp"


@pytest.mark.parametrize(("text", "position"), TIMES)
def test_times_by_stream(text, position):
    options = source(
        startingOffsetsByTimestamp=json.dumps({"orders": text, "17": MORNING_MS}),
        endingOffsetsByTimestamp=json.dumps({"17": 2 * MORNING_MS}),
    )
    assert options.starting.by_stream == {
        "orders": must(position),
        "17": AtTime(MORNING_MS, must_exist=True),
    }
    assert options.ending.by_stream == {"17": AtTime(2 * MORNING_MS)}
    assert options.starting.option == "startingOffsetsByTimestamp"


@pytest.mark.parametrize("text", WRONG)
def test_texts_that_are_no_time(text):
    for name in ("startingTimestamp", "endingTimestamp"):
        line = only_fault(**{name: text})
        assert f"{name} is '{text}'; expected a time since 1970" in line
    by_stream = json.dumps({"orders": text, "17": 0})
    line = only_fault(startingOffsetsByTimestamp=by_stream)
    assert f"has for 'orders' the value '{text}'" in line
    assert "expected a time since 1970" in line


@pytest.mark.parametrize("value", ["-1", "1.0", "true", "null", "[]", "{}", str(2**63), "NaN"])
def test_json_values_that_are_no_time(value):
    line = only_fault(endingOffsetsByTimestamp=f'{{"orders": {value}, "17": 0}}')
    assert "endingOffsetsByTimestamp has for 'orders' the value" in line
    assert "-10m (before now" in line


def test_json_and_single_times_point_to_each_other():
    single = only_fault(startingTimestamp='{"orders": 1}')
    assert "startingOffsetsByTimestamp takes times by stream" in single
    assert "endingTimestamp takes one time" in only_fault(endingOffsetsByTimestamp="2026-01-31")
    (line,) = faults({**GOOD, "endingOffsetsByTimestamp": '{"a": 1, "a": 2}'})
    assert "names 'a' more than once" in line


@pytest.mark.parametrize(
    ("strategy", "absolute", "relative"),
    [(None, True, False), ("error", True, True), ("LATEST", False, False)],
)
def test_a_start_past_the_end(strategy, absolute, relative):
    given = {} if strategy is None else {"startingOffsetsByTimestampStrategy": strategy}
    text = '{"orders": 5, "17": "-1h"}'
    options = source(startingOffsetsByTimestamp=text, endingTimestamp="2026-01-31", **given)
    assert options.starting.by_stream == {
        "orders": AtTime(5, must_exist=absolute),
        "17": Ago(3_600_000, must_exist=relative),
    }
    assert not options.ending.everywhere.must_exist


def test_a_strategy_stands_beside_a_time():
    assert "without startingTimestamp" in only_fault(startingOffsetsByTimestampStrategy="latest")
    wrong = {"startingTimestamp": "0", "startingOffsetsByTimestampStrategy": "earliest"}
    assert "expected error or latest" in only_fault(**wrong)


def test_contradictions_are_named_with_all_other_faults():
    lines = faults(
        {
            **GOOD,
            "startingOffsets": "earliest",
            "startingTimestamp": "noon",
            "startingOffsetsByTimestamp": '{"orders": 1}',
            "endingOffsets": "latest",
            "endingTimestamp": "2026-01-31",
            "maxRecordsPerTrigger": "none",
        }
    )
    told = "\n".join(lines)
    assert len(lines) == 4
    assert "is given beside startingTimestamp and startingOffsetsByTimestamp" in told
    assert "startingTimestamp is 'noon'" in told
    assert "endingOffsets is given beside endingTimestamp" in told
    assert "maxRecordsPerTrigger" in told


@pytest.mark.parametrize(
    ("start", "end", "is_refused"),
    [
        ("2026-01-31", "2026-01-30", True),
        ("-10m", "-11m", True),
        ("2026-01-31", "2026-01-31", False),
        ("-10m", "-10m", False),
        ("-10m", "2026-01-31", False),
    ],
)
def test_an_end_before_its_start(start, end, is_refused):
    given = {"startingTimestamp": start, "endingTimestamp": end}
    if is_refused:
        assert "ends every stream before startingTimestamp starts it" in only_fault(**given)
    else:
        source(**given)


def test_batches_take_times_too():
    options = {**GOOD, "startingTimestamp": "-10m", "endingOffsets": '{"orders": 4, "17": 4}'}
    parsed = parse_source_options(options, streaming=False)
    assert parsed.starting == Positions(Ago(600_000))
    assert parsed.ending == Positions(None, {"orders": AtOffset(4), "17": AtOffset(4)})
