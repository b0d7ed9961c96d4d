"""Consumer groups as the console shows them."""

from __future__ import annotations

from sbp_core.client import GroupInfo
from sbp_core.operating.cursor_lag import Lag
from sbp_core.operating.samples import Lags, Samples
from sbp_core.web.console.charts import LINES_MAX
from sbp_core.web.console.groups import lag_series, longest_ms, make_rows
from sbp_core.web.console.words import streams_text


def sampled(*records: dict[tuple[str, int], int]) -> Samples:
    samples = Samples()
    samples.lags = [Lags.of(1_000.0 * at, each) for at, each in enumerate(records)]
    return samples


def lag(stream_id: int, records: int | None, lag_ms: int | None = 0) -> Lag:
    name = f"s{stream_id}"
    return Lag(stream_id, 0, 0, name, 0, 9, lag_records=records, lag_ms=lag_ms)


def test_groups_are_listed_with_their_lag_once_it_was_sampled():
    groups = [GroupInfo("billing", 5), GroupInfo("mail", 6)]
    rows = make_rows(groups, sampled({("billing", 1): 3, ("billing", 2): 4}), "")
    assert [(each.group, each.lag, each.stream_count) for each in rows] == [
        ("billing", 7, 2),
        ("mail", None, None),
    ]
    assert [each.group for each in make_rows(groups, Samples(), " MAI ")] == ["mail"]
    assert rows[0].path == "/groups/billing"


def test_the_longest_time_is_not_known_if_that_of_a_stream_is_not():
    assert longest_ms([lag(1, 2, 500), lag(2, 0), lag(3, None, None)]) == 500
    assert longest_ms([lag(1, 2, 500), lag(2, 1, None)]) is None
    assert longest_ms([lag(1, 0)]) == 0


def test_the_chart_has_the_streams_that_lag_most_and_their_sum():
    ids = range(1, LINES_MAX + 2)
    point = {("g", each): each for each in ids} | {("other", 1): 99}
    lags = [lag(each, each) for each in ids]
    series = lag_series("g", lags, sampled(point, point))
    assert [each.name for each in series] == ["s6", "s5", "s4", "s3", "all streams"]
    assert series[-1].points[-1][1] == 21
    few = lag_series("g", lags[:2], sampled(point, point))
    assert [each.name for each in few] == ["s2", "s1"]


def test_a_list_of_streams_names_some_and_counts_the_others():
    assert streams_text((1, 2), {1: "a1"}) == "a1, 2"
    assert streams_text((), {}) == "-"
    assert streams_text(range(4, 16), {}) == "4, 5, 6, 7, 8, 9, 10, 11, 12, 13 and 2 more"
