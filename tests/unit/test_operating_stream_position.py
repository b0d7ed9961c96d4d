"""Positions in a stream as people write them."""

from __future__ import annotations

import pytest

from sbp_core.client import Reach, UnavailableRange
from sbp_core.errors import ConfigurationError, ConnectError, OffsetOutOfRangeError, SbpError
from sbp_core.operating.stream_position import Position, PositionKind, find_offset, parse_position

HELD = Reach(5, 10, 30)
DOWN = Reach(5, 10, None, (UnavailableRange(20, None, "a:1", ConnectError("a:1 is down")),))


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("earliest", 10),
        ("latest", 30),
        ("10", 10),
        ("30", 30),
        ("-0", 30),
        ("-5", 25),
        ("-20", 10),
        ("-21", 10),
        (f"-{2**63 - 1}", 10),
    ],
)
def test_a_position_is_an_offset_of_the_stream(text, offset):
    assert find_offset(parse_position(text), HELD) == offset


@pytest.mark.parametrize(
    ("text", "time_us"), [("-10m", 599_401_000_000), ("-600001s", 0), ("-7d", 0)]
)
def test_a_time_before_now(text, time_us):
    position = parse_position(text, clock=lambda: 600_001_000_000_000)
    assert position == Position(PositionKind.TIME, time_us)


def test_a_time_is_where_the_servers_found_it():
    at_second = parse_position("1970-01-01T00:00:01")
    assert at_second == Position(PositionKind.TIME, 1_000_000)
    assert parse_position("1970-01-01T01:00:01+01:00") == at_second
    assert find_offset(at_second, HELD, 17) == 17
    with pytest.raises(SbpError, match="stream 5 does not answer"):
        find_offset(at_second, HELD, None)


@pytest.mark.parametrize("text", ["9", "31"])
def test_an_offset_that_the_stream_does_not_have_is_refused(text):
    with pytest.raises(OffsetOutOfRangeError, match="offsets 10 to 30, exclusive"):
        find_offset(parse_position(text), HELD)


@pytest.mark.parametrize("text", ["latest", "15", "-1", "2025-01-31"])
def test_what_depends_on_a_server_that_is_down_has_its_error(text):
    with pytest.raises(ConnectError, match="a:1 is down"):
        find_offset(parse_position(text), DOWN)


def test_the_begin_does_not_depend_on_the_tail():
    assert find_offset(parse_position("earliest"), DOWN) == 10


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "--1",
        "+1",
        "1.5",
        "tail",
        "10m",
        "-1.5h",
        "-m",
        "1" * 5_000,
        str(2**63),
        "1969-12-31",
        "²",
    ],
)
def test_other_texts_are_refused(text):
    with pytest.raises(ConfigurationError, match="is not earliest, latest, an offset, -N"):
        parse_position(text)
