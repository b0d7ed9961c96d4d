"""Starting and ending offsets, as they are written."""

from __future__ import annotations

import pytest

from sbp_spark.options.read_positions import (
    AtCursor,
    AtOffset,
    BeforeTail,
    Earliest,
    Latest,
    Positions,
)
from sbp_spark.options.source import parse_source_options
from tests.support.spark import GOOD, faults, only_fault, source


@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets"])
@pytest.mark.parametrize(
    ("text", "positions"),
    [
        ("latest", Positions(Latest())),
        ("-1000", Positions(BeforeTail(1000))),
        ("-1", Positions(BeforeTail(1))),
        (
            '{"orders": 5, "17": -1}',
            Positions(None, {"orders": AtOffset(5), "17": Latest()}),
        ),
        (f'{{"a": {2**63 - 1}}}', Positions(None, {"a": AtOffset(2**63 - 1)})),
        ("{}", Positions(None)),
    ],
)
def test_positions(name, text, positions):
    options = source(**{"startingOffsets": "earliest", name: text})
    assert (options.starting if name == "startingOffsets" else options.ending) == positions


def test_a_group_is_a_start_and_no_end():
    assert source(startingOffsets="group:nightly").starting == Positions(AtCursor("nightly"))
    by_stream = source(startingOffsets='{"orders": "group:a.B_1-", "17": -2}').starting.by_stream
    assert by_stream == {"orders": AtCursor("a.B_1-"), "17": Earliest()}
    for text in ("group:nightly", '{"orders": "group:nightly", "17": 5}'):
        assert "group:nightly" in only_fault(endingOffsets=text)


@pytest.mark.parametrize("text", ["group:", "group:a b", "nightly", "group:" + "a" * 250])
def test_names_that_are_no_group(text):
    assert "expected earliest, latest, group:NAME" in only_fault(startingOffsets=text)
    told = only_fault(startingOffsets=f'{{"orders": "{text}", "17": 0}}')
    assert "has for 'orders' the value" in told
    assert 'or "group:NAME"' in told


def test_earliest_is_a_start_and_no_end():
    assert source(startingOffsets="earliest").starting == Positions(Earliest())
    assert source(startingOffsets='{"17": -2}').starting == Positions(None, {"17": Earliest()})
    for text in ("earliest", '{"orders": 5, "17": -2}'):
        assert "so nothing would be read" in only_fault(endingOffsets=text)


@pytest.mark.parametrize(
    "text",
    [
        "tomorrow",
        "1",
        "-0",
        "-1.5",
        "- 5",
        f"-{2**63}",
        "[1]",
        '"earliest"',
        "null",
        "{",
        "[" * 100_000,
        '{"a":' * 100_000,
        "9" * 10_000,
    ],
)
@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets"])
def test_positions_that_are_no_object(name, text):
    line = only_fault(**{name: text})
    assert "-1000 (records before the tail) or JSON" in line
    assert len(line) < 300


@pytest.mark.parametrize("value", ["-3", "1.0", "-1.0", "true", "null", '"5"', "NaN", "[]", "{}"])
def test_positions_that_are_no_offset(value):
    line = only_fault(startingOffsets=f'{{"orders": {value}, "17": 0}}')
    assert "has for 'orders' the value" in line
    assert "-2 (earliest) or -1 (latest)" in line


def test_a_position_over_int64_is_refused():
    assert "has for '17'" in only_fault(startingOffsets=f'{{"orders": 1, "17": {2**63}}}')


def test_positions_name_streams_once():
    lines = faults({**GOOD, "startingOffsets": '{"other": 2, "other": 3, "a/b": 1}'})
    assert "names 'other' more than once" in lines[0]
    assert "names no stream: 'a/b'" in lines[1]


@pytest.mark.parametrize(
    ("start", "end", "where"),
    [
        ('{"a": 5}', '{"a": 4}', "'a'"),
        ("-10", "-11", "every stream"),
        ("latest", "-1", "every stream"),
        ('{"a": -1}', "-1", "'a'"),
        ('{"a": 5}', '{"a": 5}', None),
        ("-10", "-10", None),
        ("latest", "latest", None),
        ("-10", '{"a": 0}', None),
        ('{"a": 5}', '{"b": 4}', None),
    ],
)
def test_an_end_before_its_start_is_named_before_anything_is_looked_at(start, end, where):
    options = {"startingOffsets": start, "endingOffsets": end}
    if where is None:
        source(**options)
    else:
        assert f"ends {where} before startingOffsets starts it" in only_fault(**options)


def test_before_it_is_known_what_is_loaded_only_faults_of_both_are_reported():
    ending = {**GOOD, "endingOffsets": "-5"}
    parse_source_options(ending, streaming=None)
    parse_source_options(ending, streaming=False)
    assert "before startingOffsets starts it" in faults(ending)[0]
    batch = {**GOOD, "startingOffsets": "latest", "maxRecordsPerTrigger": "5"}
    parse_source_options(batch, streaming=None)


@pytest.mark.parametrize("text", ["latest", '{"orders": -1, "17": 0}'])
def test_a_batch_does_not_start_at_the_latest_offset(text):
    assert "would read nothing" in only_fault(streaming=False, startingOffsets=text)
