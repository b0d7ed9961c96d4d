"""Charts of the console, and the picture of ranges: numbers that a template draws."""

from __future__ import annotations

import re

from sbp_core.client import RangeInfo, Reach, UnavailableRange
from sbp_core.errors import ConnectError
from sbp_core.web.console.charts import (
    DRAWN_MAX,
    HEIGHT,
    LEFT,
    LINES_MAX,
    PICTURE_WIDTH,
    SPARK_HEIGHT,
    SPARK_WIDTH,
    WIDTH,
    Series,
    draw,
    draw_ranges,
    draw_spark,
    span_of,
)

NOW_MS = 1_790_000_000_000.0


def points(path):
    return [tuple(map(float, each)) for each in re.findall(r"[ML]([\d.]+) ([\d.]+)", path)]


def test_a_line_ends_now_and_its_top_is_a_round_number():
    series = Series("all", [(NOW_MS - 10_000 * (6 - at), 7.0 * at) for at in range(7)])
    chart = draw("Rate", [series], NOW_MS, "/s")
    (line,) = chart.lines
    assert [each.text for each in chart.levels] == ["0", "25", "50"]
    assert points(line.path)[0] == (LEFT, chart.levels[0].y)
    assert points(line.path)[-1][0] == WIDTH
    assert (line.now, line.values.split("|")[:2]) == ("42/s", ["0/s", "7/s"])
    assert "The most: 42/s" in chart.summary
    assert all(0 <= y <= HEIGHT for _, y in points(line.path))


def test_a_chart_of_zeros_has_no_halves():
    zeros = Series("all", [(NOW_MS - 1, 0.0), (NOW_MS, 0.0)])
    assert [each.text for each in draw("Lag", [zeros], NOW_MS, "").levels] == ["0", "1"]


def test_a_line_has_a_gap_where_samples_failed():
    seen = [(NOW_MS - 300_000, 1.0), (NOW_MS - 290_000, 1.0), (NOW_MS - 10_000, 1.0), (NOW_MS, 2.0)]
    (line,) = draw("Rate", [Series("all", seen)], NOW_MS, "").lines
    assert re.findall("[ML]", line.path) == ["M", "L", "M", "L"]


def test_a_chart_begins_with_its_span_or_the_first_value():
    seen = [(NOW_MS - minute * 60_000, 1.0) for minute in range(60, -1, -1)]
    chart = draw("Rate", [Series("all", seen)], NOW_MS, "", 900_000.0)
    assert [(NOW_MS - each.at_ms) / 60_000 for each in chart.times] == [15, 7.5, 0]
    assert "over the last 15 min" in chart.summary
    assert [span_of({"span": each}) for each in ("6 h", "9 h", "")] == ["6 h", "15 min", "15 min"]


def test_old_points_are_connected_although_they_are_further_apart():
    seen = [(NOW_MS - minute * 60_000, 1.0) for minute in (700, 695, 690, 600, 595)]
    (line,) = draw("Rate", [Series("all", seen)], NOW_MS, "").lines
    assert re.findall("[ML]", line.path) == ["M", "L", "L", "M", "L"]


def test_a_spark_fits_its_cell_and_is_left_out_for_zeros():
    path = draw_spark([(NOW_MS - 60_000, 0.0), (NOW_MS, 9.0)], NOW_MS)
    assert all(0 < x < SPARK_WIDTH and 0 < y < SPARK_HEIGHT for x, y in points(path))
    assert draw_spark([(NOW_MS - 1, 0.0), (NOW_MS, 0.0)], NOW_MS) == ""
    assert draw_spark([(NOW_MS, 9.0)], NOW_MS) == ""


def test_a_chart_needs_two_points_and_has_few_lines():
    assert draw("Lag", [Series("g", [(NOW_MS, 1.0)])], NOW_MS, "").lines == ()
    many = [Series(str(each), [(NOW_MS - 1, 0.0), (NOW_MS, 0.0)]) for each in range(9)]
    assert len(draw("Lag", many, NOW_MS, "").lines) == LINES_MAX


def ranges(count, *servers):
    ends = [*range(100, 100 * count, 100), None]
    return [
        RangeInfo(1, index, 100 * index, end, 100 * index, servers)
        for index, end in enumerate(ends)
    ]


def test_ranges_have_a_lane_for_each_server_and_are_as_wide_as_they_have_records():
    at = Reach(1, 0, 600)
    picture = draw_ranges(ranges(3, "a:1", "b:1"), at)
    assert [server for server, _ in picture.lanes] == ["a:1", "b:1"]
    assert [(each.kind, each.inside) for each in picture.cells[:2]] == [
        ("primary", "P 0"),
        ("secondary", "S 0"),
    ]
    sealed, longest = picture.cells[0], picture.cells[-1]
    assert longest.width > sealed.width
    assert longest.x + longest.width == PICTURE_WIDTH
    assert longest.title == "range 2, open, 200 to 600: secondary on b:1"


def test_a_server_that_does_not_answer_is_marked_by_a_word_too():
    down = UnavailableRange(100, None, "a:1", ConnectError("refused"))
    at = Reach(1, 0, None, (down,))
    picture = draw_ranges(ranges(2, "a:1"), at)
    assert [(each.kind, each.inside) for each in picture.cells] == [
        ("primary", "P 0"),
        ("unavailable", "P 1 down"),
    ]


def test_only_the_newest_ranges_are_drawn_and_the_picture_says_so():
    picture = draw_ranges(ranges(DRAWN_MAX + 5, "a:1"), Reach(1, 0, 9_000))
    assert len(picture.cells) == DRAWN_MAX
    assert f"the newest {DRAWN_MAX} drawn" in picture.summary
    assert draw_ranges([], Reach(1, 0, 0)).cells == []
